// SPDX-License-Identifier: Apache-2.0
// Which reads of a kernel may find bytes of a register that the thread has not written: a data-flow analysis over its
// basic blocks, once a kernel. Called by hazard/unproven_registers.cpp, which follows at run time only the bytes found
// here. What only moves bits about is no use of them (byte_flow.h).
#pragma once

#include <cstdint>
#include <vector>

#include "../ptx/ast.h"
#include "byte_flow.h"
#include "register_uses.h"

namespace opdeck::emu {

// One instruction's part in it. Bytes are numbered as in RegisterBytes.
struct UnprovenUse {
  std::vector<uint32_t> used;          // needed, and not proven to be written before
  std::vector<uint32_t> accumulators;  // written, and perhaps needed before
};

struct UnprovenBytes {
  std::vector<bool> followed;     // by byte: what those uses may find depends on it
  std::vector<UnprovenUse> uses;  // one an instruction
};

// uses and flows: one an instruction.
UnprovenBytes find_unproven_bytes(const ptx::Kernel& kernel, const RegisterBytes& bytes,
                                  const std::vector<RegisterUses>& uses, const std::vector<ByteFlow>& flows);

}  // namespace opdeck::emu
