// SPDX-License-Identifier: Apache-2.0
// Logical time: who has done what (an epoch), and what somebody knows to have happened (vector clocks).
// Used by everything in src/hazard. Source: Flanagan and Freund, "FastTrack: efficient and precise dynamic race
// detection" (2009); proxies: PTX ISA, "Memory Consistency Model: Proxy-preserved base causality order".
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace opdeck::emu {

using AgentId = uint32_t;

// One agent's time. Times begin at 1; an empty epoch says "never".
class Epoch {
 public:
  static constexpr uint32_t kTimeBits = 20;
  static constexpr uint32_t kMaxTime = (1u << kTimeBits) - 1;
  static constexpr AgentId kMaxAgents = (1u << (32 - kTimeBits)) - 1;
  static constexpr AgentId kReadSet = kMaxAgents;  // no agent: `time` names a set of reads (read_sets.h)

  constexpr Epoch() = default;
  constexpr Epoch(AgentId agent, uint32_t time) : bits_(agent << kTimeBits | time) {}
  constexpr AgentId agent() const { return bits_ >> kTimeBits; }
  constexpr uint32_t time() const { return bits_ & kMaxTime; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool operator==(const Epoch&) const = default;

 private:
  uint32_t bits_ = 0;
};

class VectorClock {
 public:
  uint32_t get(AgentId agent) const { return agent < times_.size() ? times_[agent] : 0; }
  bool covers(Epoch epoch) const { return get(epoch.agent()) >= epoch.time(); }
  void raise(AgentId agent, uint32_t time) {
    if (agent >= times_.size()) times_.resize(agent + 1, 0);
    times_[agent] = std::max(times_[agent], time);
  }
  void join(const VectorClock& other) {
    if (other.times_.size() > times_.size()) times_.resize(other.times_.size(), 0);
    for (size_t i = 0; i < other.times_.size(); ++i) times_[i] = std::max(times_[i], other.times_[i]);
  }
  // What both know.
  void meet(const VectorClock& other) {
    if (times_.size() > other.times_.size()) times_.resize(other.times_.size());
    for (size_t i = 0; i < times_.size(); ++i) times_[i] = std::min(times_[i], other.times_[i]);
  }
  void clear() { times_.clear(); }
  size_t size() const { return times_.size(); }

 private:
  std::vector<uint32_t> times_;
};

// What an agent knows to have happened before what it does next.
struct Knowledge {
  VectorClock all;
  VectorClock fenced;  // of that, what a fence.proxy.async has made visible to the async proxy
  VectorClock released_maps;  // of that, what a fence.proxy.tensormap has released to the tensormap proxy
  // The operations of tcgen05 that are ordered before what is executed next. A relaxed arrival passes these on too.
  VectorClock tensor;
  mutable bool is_hashed = false;
  mutable uint64_t hash = 0;  // AgentTable::hash keeps it here

  void learn(AgentId agent, uint32_t time) {
    all.raise(agent, time);
    is_hashed = false;
  }
  void fence() {
    fenced.join(all);
    is_hashed = false;
  }
  void release_maps() {
    released_maps.join(all);
    is_hashed = false;
  }
  void join(const Knowledge& other) {
    all.join(other.all);
    fenced.join(other.fenced);
    released_maps.join(other.released_maps);
    tensor.join(other.tensor);
    is_hashed = false;
  }
  void meet(const Knowledge& other) {
    all.meet(other.all);
    fenced.meet(other.fenced);
    released_maps.meet(other.released_maps);
    is_hashed = false;
  }
  void clear() {
    all.clear();
    fenced.clear();
    released_maps.clear();
    tensor.clear();
    is_hashed = false;
  }
};

// A 64-bit mixer (the finaliser of MurmurHash3).
constexpr uint64_t mix_bits(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  return x ^ x >> 33;
}

}  // namespace opdeck::emu
