// SPDX-License-Identifier: Apache-2.0
// Which registers may share a row of the register file. Called by decoder.cpp.
// PTX has a register for every value, so a kernel declares thousands; most live for a few instructions of one basic
// block. Only those share rows: their first appearance is an unguarded definition and the last stands in the same
// block, and no wgmma may use them later, so nothing can be live around them on any path. All others keep a row of their own.
#pragma once

#include <cstdint>
#include <vector>

#include "../ptx/ast.h"

namespace opdeck::emu {

// slot[i] is the slot of register i; slots of different widths are never shared.
struct RegisterSlots {
  std::vector<uint32_t> slot;
  std::vector<uint16_t> slot_bits;
};
RegisterSlots assign_register_slots(const ptx::Kernel& kernel);

}  // namespace opdeck::emu
