// SPDX-License-Identifier: Apache-2.0
// Which reads of a kernel may find a register that the thread has not written: a data-flow analysis over its basic
// blocks, once a kernel. Called by hazard/uninitialized.cpp, which follows at run time only the registers found here.
// A copy (mov, packing and unpacking, and what only moves bits about) is no use of a register: the undefined part of a
// vector may be copied with the rest of it. What it writes is as undefined as what it reads. Every other read is a use.
#pragma once

#include <cstdint>
#include <vector>

#include "../ptx/ast.h"
#include "register_uses.h"

namespace opdeck::emu {

// One instruction's part in it. Indices of ptx::Kernel::registers.
struct UnprovenUse {
  uint32_t instruction = 0;
  std::vector<uint32_t> used;    // read, and not proven to be written before
  std::vector<uint32_t> copied;  // the same, of a copy
  std::vector<uint32_t> accumulators;  // written, and perhaps read before
};

struct UnprovenRegisters {
  std::vector<bool> followed;  // by register: what those uses may find depends on it
  std::vector<UnprovenUse> uses;
};

bool is_register_copy(const ptx::Instruction& instruction);
UnprovenRegisters find_unproven_registers(const ptx::Kernel& kernel, const std::vector<RegisterUses>& uses);

}  // namespace opdeck::emu
