// SPDX-License-Identifier: Apache-2.0
#include "agent.h"

#include "../machine/error.h"

namespace opdeck::emu {

Touch Touch::of_set(uint32_t set_idx) {
  if (set_idx > Epoch::kMaxTime)
    throw EmulatorError(Fault::failed, "hazard checks: too many unordered reads of one memory");
  return {Epoch(Epoch::kReadSet, set_idx), {}};
}

AgentId AgentTable::find_or_add(AgentKind kind, uint32_t rank, uint32_t warp_idx, uint32_t key) {
  const auto [it, is_new] = ids_.try_emplace(std::make_tuple(kind, rank, warp_idx, key), size());
  if (!is_new) return it->second;
  if (size() == Epoch::kMaxAgents)
    throw EmulatorError(Fault::failed, "hazard checks: more than " + std::to_string(Epoch::kMaxAgents) + " agents in a cluster");
  Agent agent;
  agent.kind = kind;
  agent.rank = rank;
  agent.warp_idx = warp_idx;
  agent.key = key;
  agent.hash = mix_bits(mix_bits(uint64_t{key} << 32 | warp_idx << 16 | rank << 8 | static_cast<uint32_t>(kind)) + 1);
  agents_.push_back(agent);
  return it->second;
}

Epoch AgentTable::now(AgentId id) {
  Agent& agent = agents_[id];
  if (agent.sealed) {
    agent.sealed = false;
    agent.accesses_by_time.push_back(agent.num_accesses);
    if (++agent.time > Epoch::kMaxTime)
      throw EmulatorError(Fault::failed, "hazard checks: an agent's time exceeds " + std::to_string(Epoch::kMaxTime));
  }
  return {id, agent.time};
}

// 0 for an agent that had done nothing by then, and for a time in progress, which only the agent itself knows.
uint64_t AgentTable::hash(AgentId id, uint32_t time, uint64_t flip) const {
  const Agent& agent = agents_[id];
  if (time == 0 || (time == agent.time && !agent.sealed)) return 0;
  const uint32_t count = time < agent.time ? agent.accesses_by_time[time - 1] : agent.num_accesses;
  return count == 0 ? 0 : mix_bits((agent.hash ^ flip) + count);
}

uint64_t AgentTable::hash(const Knowledge& knowledge, AgentId own_warp) const {
  if (knowledge.is_hashed) return knowledge.hash;
  uint64_t sum = 0;
  for (AgentId id = 0; id < knowledge.all.size(); ++id) {
    if (id != own_warp) sum += hash(id, knowledge.all.get(id), 0);
  }
  for (AgentId id = 0; id < knowledge.fenced.size(); ++id) sum += hash(id, knowledge.fenced.get(id), ~uint64_t{0});
  for (AgentId id = 0; id < knowledge.released_maps.size(); ++id)
    sum += hash(id, knowledge.released_maps.get(id), uint64_t{1} << 32);
  knowledge.is_hashed = true;
  return knowledge.hash = sum;
}

}  // namespace opdeck::emu
