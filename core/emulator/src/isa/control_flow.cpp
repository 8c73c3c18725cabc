// SPDX-License-Identifier: Apache-2.0
#include "control_flow.h"

#include <algorithm>
#include <string_view>

namespace opdeck::emu {
namespace {

// Whether nothing but the instruction's labels can follow it.
bool ends_path(const ptx::Instruction& instruction) {
  constexpr std::string_view kEnds[] = {"bra", "brx", "ret", "exit", "trap", "brkpt"};
  const std::string_view name = std::string_view(instruction.opcode).substr(0, instruction.opcode.find('.'));
  return !instruction.has_guard && std::find(std::begin(kEnds), std::end(kEnds), name) != std::end(kEnds);
}

template <class Visit>
void for_each_target(const ptx::Operand& operand, const Visit& visit) {
  if (operand.kind == ptx::Operand::Kind::label) visit(static_cast<uint32_t>(operand.value));
  for (const ptx::Operand& item : operand.items) for_each_target(item, visit);
}

template <class Visit>
void for_each_target(const ptx::Instruction& instruction, const Visit& visit) {
  for (const ptx::Operand& operand : instruction.operands) for_each_target(operand, visit);
}

}  // namespace

std::vector<BasicBlock> find_basic_blocks(const ptx::Kernel& kernel) {
  const uint32_t num_instructions = static_cast<uint32_t>(kernel.instructions.size());
  std::vector<bool> starts_block(num_instructions + 1, false);
  for (uint32_t i = 0; i < num_instructions; ++i) {
    bool branches = ends_path(kernel.instructions[i]);
    for_each_target(kernel.instructions[i], [&](uint32_t target) { starts_block[target] = branches = true; });
    if (branches) starts_block[i + 1] = true;
  }
  std::vector<BasicBlock> blocks;
  std::vector<uint32_t> block_of(num_instructions + 1, UINT32_MAX);
  for (uint32_t i = 0; i < num_instructions; ++i) {
    if (i == 0 || starts_block[i]) blocks.push_back({i, i, {}});
    blocks.back().end = i + 1;
    block_of[i] = static_cast<uint32_t>(blocks.size() - 1);
  }
  for (BasicBlock& block : blocks) {
    // A label behind the last instruction, or falling off the end, is a return.
    const auto add = [&](uint32_t target) {
      if (target < num_instructions) block.successors.push_back(block_of[target]);
    };
    const ptx::Instruction& last = kernel.instructions[block.end - 1];
    for_each_target(last, add);
    if (!ends_path(last)) add(block.end);
  }
  return blocks;
}

}  // namespace opdeck::emu
