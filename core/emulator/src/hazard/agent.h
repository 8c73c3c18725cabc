// SPDX-License-Identifier: Apache-2.0
// Agents: what executes accesses in an order of its own. A warp is one; so is each asynchronous unit that works for it.
// Made by detector.cpp; used by shadow.cpp and report.cpp.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "clock.h"

namespace opdeck::emu {

enum class AgentKind : uint8_t {
  warp,         // generic proxy, program order
  mbarrier_init,  // mbarrier.init of a warp: a fence may release these alone
  thread_copy,  // cp.async of a warp: generic proxy
  bulk_load,    // bulk copies that signal one mbarrier (its shared address is the key)
  bulk_read,    // shared memory as the source of the bulk groups of one lane (the key)
  bulk_write,   // global memory as their destination
  tensor_pipe,  // tcgen05.mma and cp of a CTA (pair), in order
  tmem_load,    // tcgen05.ld of a warp
  tmem_store,   // tcgen05.st of a warp
  wgmma         // of a warpgroup (the key)
};

struct Agent {
  AgentKind kind = AgentKind::warp;
  uint32_t rank = 0, warp_idx = 0, key = 0;
  uint32_t time = 1;
  bool sealed = false;  // what it does next belongs to a new time: somebody may know the present one
  uint64_t hash = 0;    // of its identity
  uint32_t num_accesses = 0;                // noted in the fingerprint
  std::vector<uint32_t> accesses_by_time;   // num_accesses at the end of each past time

  bool is_generic() const {
    return kind == AgentKind::warp || kind == AgentKind::mbarrier_init || kind == AgentKind::thread_copy;
  }
};

class AgentTable {
 public:
  AgentId find_or_add(AgentKind kind, uint32_t rank, uint32_t warp_idx, uint32_t key = 0);
  Agent& operator[](AgentId id) { return agents_[id]; }
  const Agent& operator[](AgentId id) const { return agents_[id]; }
  AgentId size() const { return static_cast<AgentId>(agents_.size()); }
  // The epoch of what the agent does now; throws when time runs out.
  Epoch now(AgentId id);
  // A new time of one operation: for agents whose operations are told apart one by one.
  Epoch tick(AgentId id) {
    agents_[id].sealed = true;
    const Epoch epoch = now(id);
    agents_[id].sealed = true;
    return epoch;
  }
  Epoch current(AgentId id) const { return {id, agents_[id].time}; }
  // Of what is known, by the accesses of each agent, so that an arrival which nobody waits for does not change it.
  // own_warp: the one that knows, or issued what does. Its program order is no synchronisation's.
  uint64_t hash(const Knowledge& knowledge, AgentId own_warp) const;

 private:
  uint64_t hash(AgentId id, uint32_t time, uint64_t flip) const;

  std::vector<Agent> agents_;
  std::map<std::tuple<AgentKind, uint32_t, uint32_t, uint32_t>, AgentId> ids_;
};

// Where an access came from: op index, issuing warp and CTA rank, packed, with two flags.
class Site {
 public:
  static constexpr uint32_t kMaxOps = 1u << 20, kMaxWarps = 32, kMaxRanks = 16;
  static constexpr uint32_t kStrong = 1u << 29;    // atomic, volatile, relaxed, acquire, release: does not race with its like
  static constexpr uint32_t kMbarrier = 1u << 30;  // the cell is part of an mbarrier

  constexpr Site() = default;
  constexpr Site(uint32_t op_idx, uint32_t warp_idx, uint32_t rank, uint32_t flags = 0)
      : bits_(op_idx | warp_idx << 20 | rank << 25 | flags) {}
  constexpr uint32_t op_idx() const { return bits_ & (kMaxOps - 1); }
  constexpr uint32_t warp_idx() const { return bits_ >> 20 & (kMaxWarps - 1); }
  constexpr uint32_t rank() const { return bits_ >> 25 & (kMaxRanks - 1); }
  constexpr bool has(uint32_t flag) const { return (bits_ & flag) != 0; }
  constexpr bool operator==(const Site&) const = default;

 private:
  uint32_t bits_ = 0;
};

// An access: when and where. Or, as the reads of a granule, the number of a set of them (read_sets.h).
struct Touch {
  Epoch epoch;
  Site site;

  static Touch of_set(uint32_t set_idx);
  bool is_set() const { return epoch.agent() == Epoch::kReadSet; }
  uint32_t set_idx() const { return epoch.time(); }
  bool is_of_moment(const Touch& other) const { return epoch == other.epoch; }
  bool operator==(const Touch&) const = default;
};

// Who wrote a granule of memory last, and who has read it since.
struct ShadowCell {
  Touch write, read;
};

// One access as the shadow memory sees it.
struct Actor {
  Epoch now;
  const Knowledge* knows = nullptr;
  bool in_order = false;     // earlier operations of the same agent are ordered before this one
  bool async_proxy = false;  // generic writes must have passed a proxy fence
  Site site;
  const VectorClock* order = nullptr;  // what it comes after; NULL: all that it knows

  // The same, where not all that it knows of is ordered before it.
  Actor in_order_of(const VectorClock& clock) const {
    Actor actor = *this;
    actor.order = &clock;
    return actor;
  }
  bool is_after(Epoch epoch) const {
    return (in_order && epoch.agent() == now.agent()) || (order != nullptr ? *order : knows->all).covers(epoch);
  }
};

}  // namespace opdeck::emu
