// SPDX-License-Identifier: Apache-2.0
#include "tmem_consumers.h"

#include <algorithm>

#include "detector.h"

namespace opdeck::emu {
namespace {

Flow tell_and_execute(Warp& warp, const Op& op) {
  const Program& program = warp.launch.program;
  const TmemConsumer& consumer = program.tmem_consumers[program.tmem_consumer_of[warp.pc]];
  if (ClusterHazards* hazards = hazards_of(warp))
    for (const uint32_t load : consumer.loads) hazards->consume_tmem_load(warp, load);
  return consumer.execute(warp, op);
}

}  // namespace

void mark_tmem_consumers(Program& program, const ptx::Kernel& kernel, const std::vector<RegisterUses>& uses) {
  std::vector<std::vector<uint32_t>> loads_of(kernel.registers.size());  // by register
  bool any = false;
  for (uint32_t i = 0; i < kernel.instructions.size(); ++i) {
    if (kernel.instructions[i].opcode.rfind("tcgen05.ld.", 0) != 0) continue;
    any = true;
    for (const uint32_t reg : uses[i].writes) loads_of[reg].push_back(i);
  }
  if (!any) return;
  program.tmem_consumer_of.assign(program.ops.size(), 0);
  for (uint32_t i = 0; i < kernel.instructions.size(); ++i) {
    std::vector<uint32_t> loads;
    for (const uint32_t reg : uses[i].reads) loads.insert(loads.end(), loads_of[reg].begin(), loads_of[reg].end());
    if (loads.empty()) continue;
    std::sort(loads.begin(), loads.end());
    loads.erase(std::unique(loads.begin(), loads.end()), loads.end());
    program.tmem_consumer_of[i] = static_cast<uint32_t>(program.tmem_consumers.size());
    program.tmem_consumers.push_back({program.ops[i].execute, std::move(loads)});
    program.ops[i].execute = &tell_and_execute;
  }
}

}  // namespace opdeck::emu
