// SPDX-License-Identifier: Apache-2.0
#include "tmem_consumers.h"

#include <algorithm>
#include <string_view>

#include "detector.h"

namespace opdeck::emu {
namespace {

template <class Visit>
void for_each_register(const ptx::Operand& operand, const Visit& visit) {
  if (operand.kind == ptx::Operand::Kind::reg) visit(operand.reg);
  for (const ptx::Operand& item : operand.items) for_each_register(item, visit);
}

bool starts_with(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

// Whether the first operand is read, not written.
bool reads_first_operand(const ptx::Instruction& instruction) {
  if (instruction.operands.empty()) return false;
  const ptx::Operand::Kind kind = instruction.operands[0].kind;
  return kind == ptx::Operand::Kind::address || starts_with(instruction.opcode, "red") || starts_with(instruction.opcode, "bar");
}

Flow tell_and_execute(Warp& warp, const Op& op) {
  const Program& program = warp.launch.program;
  const TmemConsumer& consumer = program.tmem_consumers[program.tmem_consumer_of[warp.pc]];
  if (ClusterHazards* hazards = hazards_of(warp))
    for (const uint32_t load : consumer.loads) hazards->consume_tmem_load(warp, load);
  return consumer.execute(warp, op);
}

}  // namespace

void mark_tmem_consumers(Program& program, const ptx::Kernel& kernel) {
  std::vector<std::vector<uint32_t>> loads_of(kernel.registers.size());  // by register
  bool any = false;
  for (uint32_t i = 0; i < kernel.instructions.size(); ++i) {
    if (!starts_with(kernel.instructions[i].opcode, "tcgen05.ld.")) continue;
    any = true;
    for_each_register(kernel.instructions[i].operands[0], [&](uint32_t reg) { loads_of[reg].push_back(i); });
  }
  if (!any) return;
  program.tmem_consumer_of.assign(program.ops.size(), 0);
  for (uint32_t i = 0; i < kernel.instructions.size(); ++i) {
    const ptx::Instruction& instruction = kernel.instructions[i];
    std::vector<uint32_t> loads;
    const auto add = [&](uint32_t reg) { loads.insert(loads.end(), loads_of[reg].begin(), loads_of[reg].end()); };
    for (size_t k = reads_first_operand(instruction) ? 0 : 1; k < instruction.operands.size(); ++k)
      for_each_register(instruction.operands[k], add);
    if (loads.empty()) continue;
    std::sort(loads.begin(), loads.end());
    loads.erase(std::unique(loads.begin(), loads.end()), loads.end());
    program.tmem_consumer_of[i] = static_cast<uint32_t>(program.tmem_consumers.size());
    program.tmem_consumers.push_back({program.ops[i].execute, std::move(loads)});
    program.ops[i].execute = &tell_and_execute;
  }
}

}  // namespace opdeck::emu
