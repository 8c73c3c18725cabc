// SPDX-License-Identifier: Apache-2.0
// The registers that an instruction names, as its decode function took them: no second table of operands that could
// disagree with what it does. Made by decode.cpp; used by decoder.cpp and by the hazard checks that follow registers.
#pragma once

#include <cstdint>
#include <vector>

namespace opdeck::emu {

// Indices of ptx::Kernel::registers. The guard is a read.
struct RegisterUses {
  std::vector<uint32_t> reads, writes;
  std::vector<uint32_t> accumulators;  // among the writes, those that are read too where the instruction says so (wgmma)
};

}  // namespace opdeck::emu
