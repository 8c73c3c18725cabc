// SPDX-License-Identifier: Apache-2.0
// Basic blocks of a kernel and where each may go. Made by control_flow.cpp for analyses of the decoder.
// Source: PTX ISA, "Control Flow Instructions".
#pragma once

#include <cstdint>
#include <vector>

#include "../ptx/ast.h"

namespace opdeck::emu {

struct BasicBlock {
  uint32_t first = 0, end = 0;  // instructions
  std::vector<uint32_t> successors;
};

// In the order of the text; block 0 is the entry. A kernel without instructions has no blocks.
std::vector<BasicBlock> find_basic_blocks(const ptx::Kernel& kernel);

}  // namespace opdeck::emu
