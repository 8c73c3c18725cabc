// SPDX-License-Identifier: Apache-2.0
#include "agent.h"

#include "../machine/error.h"

namespace opdeck::emu {

AgentId AgentTable::find_or_add(AgentKind kind, uint32_t rank, uint32_t warp_idx, uint32_t key) {
  const auto [it, is_new] = ids_.try_emplace(std::make_tuple(kind, rank, warp_idx, key), size());
  if (!is_new) return it->second;
  if (size() == Epoch::kMaxAgents)
    throw EmulatorError(Fault::failed, "hazard checks: more than " + std::to_string(Epoch::kMaxAgents) + " agents in a cluster");
  Agent agent{kind, rank, warp_idx, key};
  agent.hash = mix_bits(mix_bits(uint64_t{key} << 32 | warp_idx << 16 | rank << 8 | static_cast<uint32_t>(kind)) + 1);
  agents_.push_back(agent);
  return it->second;
}

Epoch AgentTable::now(AgentId id) {
  Agent& agent = agents_[id];
  if (agent.sealed) {
    agent.sealed = false;
    if (++agent.time > Epoch::kMaxTime)
      throw EmulatorError(Fault::failed, "hazard checks: an agent's time exceeds " + std::to_string(Epoch::kMaxTime));
  }
  return {id, agent.time};
}

uint64_t AgentTable::hash(const Knowledge& knowledge) const {
  if (knowledge.is_hashed) return knowledge.hash;
  uint64_t sum = 0;
  for (AgentId id = 0; id < knowledge.all.size(); ++id)
    if (const uint32_t time = knowledge.all.get(id); time != 0) sum += mix_bits(agents_[id].hash + time);
  for (AgentId id = 0; id < knowledge.fenced.size(); ++id)
    if (const uint32_t time = knowledge.fenced.get(id); time != 0) sum += mix_bits(~agents_[id].hash + time);
  knowledge.is_hashed = true;
  return knowledge.hash = sum;
}

}  // namespace opdeck::emu
