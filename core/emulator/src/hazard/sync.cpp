// SPDX-License-Identifier: Apache-2.0
// Barriers: what an arrival passes on and what a wait takes over.
#include <algorithm>

#include "../machine/error.h"
#include "detector.h"

namespace opdeck::emu {

void ClusterHazards::SyncPoint::release(uint64_t generation, const Knowledge& knows) {
  const size_t slot = generation & 1;
  if (generations[slot] != generation) passed[slot].clear();
  generations[slot] = generation;
  passed[slot].join(knows);
}

// The mbarrier, whose initialisation the user must know of.
ClusterHazards::MbarrierState& ClusterHazards::mbarrier(const Knowledge& knows, uint32_t address) {
  const auto it = mbarriers_.find(address);
  if (it == mbarriers_.end())
    throw EmulatorError(Fault::illegal_instruction, "no mbarrier was initialised at this address");
  if (!knows.all.covers(it->second.init))
    fail("mbarrier-use-before-init", "the use of the mbarrier at " +
                                         place_text(Memory::shared, shared_rank(address), shared_offset(address) / granule_bytes_) +
                                         " is not ordered after its initialisation by " +
                                         describe(it->second.init, it->second.init_site));
  return it->second;
}

// The state of a mbarrier with its generation brought to the phase in progress.
ClusterHazards::MbarrierState& ClusterHazards::advance_mbarrier(uint32_t address) {
  MbarrierState& m = mbarriers_.at(address);
  if (cluster_.read_mbarrier(address).phase != (m.generation & 1)) {
    check_waits(address, m);
    m.waits.clear();
    m.tx_changes.clear();
    ++m.generation;
  }
  return m;
}

// The phase m.generation is complete. A wait for the phase before it that its arrivals do not know of could have come
// after it, found the parity flipped twice and waited for a later phase, or for ever.
void ClusterHazards::check_waits(uint32_t address, const MbarrierState& m) const {
  const VectorClock& arrivals = m.sync.of(m.generation).all;
  for (const Touch& wait : m.waits)
    if (!arrivals.covers(wait.epoch) && !m.tx_changes.covers(wait.epoch))
      fail("mbarrier-phase-missed",
           "the mbarrier at " + place_text(Memory::shared, shared_rank(address), shared_offset(address) / granule_bytes_) +
               " may complete two phases before the first of them is seen by " + describe(wait.epoch, wait.site));
}

void ClusterHazards::init_mbarrier(Warp& warp, uint32_t address) {
  const Actor actor = actor_of(warp, Site::kMbarrier);
  shared_range(actor, address, 8, true);
  MbarrierState& m = mbarriers_[address];
  m.init = actor.now;
  m.init_site = actor.site;
}

void ClusterHazards::invalidate_mbarrier(Warp& warp, uint32_t address) {
  mbarrier(state(warp).knows, address);
  mbarriers_.erase(address);
  const uint32_t first = shared_offset(address) / granule_bytes_;
  ctas_[shared_rank(address)]->shared.forget(first, 8 / granule_bytes_);
}

void ClusterHazards::arrive_mbarrier(Warp& warp, uint32_t address) {
  WarpState& s = state(warp);
  mbarrier(s.knows, address);
  MbarrierState& m = advance_mbarrier(address);
  m.sync.release(m.generation, s.knows);
  const uint32_t rank = shared_rank(address);
  if (rank != warp.cta.rank) ctas_[rank]->touches[s.agent] = {Epoch(s.agent, agents_[s.agent].time), site(warp)};
  seal(s);
}

// Relaxed: it takes part in the phase, but passes nothing on.
void ClusterHazards::change_mbarrier_tx(Warp& warp, uint32_t address) {
  WarpState& s = state(warp);
  mbarrier(s.knows, address);
  advance_mbarrier(address).tx_changes.join(s.knows.all);
  seal(s);
}

void ClusterHazards::use_mbarrier(Warp& warp, uint32_t address) { mbarrier(state(warp).knows, address); }

void ClusterHazards::signal_mbarrier(uint32_t address, const Signal& signal) {
  if (mbarriers_.count(address) == 0) return;  // the machine reports it
  MbarrierState& m = advance_mbarrier(address);
  m.sync.release(m.generation, *signal);
}

// A phase of that parity is complete and its successor in progress. Before the first arrival of phase 0, the phase
// before it counts as complete: nothing was passed.
void ClusterHazards::wait_mbarrier(Warp& warp, uint32_t address, uint32_t parity) {
  WarpState& s = state(warp);
  mbarrier(s.knows, address);
  MbarrierState& m = advance_mbarrier(address);
  s.knows.join(m.sync.of(parity));
  const Touch wait{moment(warp), site(warp)};
  const auto it = std::find_if(m.waits.begin(), m.waits.end(), [&](const Touch& w) { return w.epoch.agent() == s.agent; });
  if (it == m.waits.end())
    m.waits.push_back(wait);
  else
    *it = wait;
}

void ClusterHazards::arrive_barrier(Warp& warp, uint32_t barrier_idx, uint64_t generation) {
  ctas_[warp.cta.rank]->barriers[barrier_idx].release(generation, state(warp).knows);
  seal(state(warp));
}

void ClusterHazards::wait_barrier(Warp& warp, uint32_t barrier_idx, uint64_t generation) {
  state(warp).knows.join(ctas_[warp.cta.rank]->barriers[barrier_idx].of(generation));
}

void ClusterHazards::arrive_cluster_barrier(Warp& warp, uint64_t generation) {
  cluster_barrier_.release(generation, state(warp).knows);
  seal(state(warp));
}

void ClusterHazards::wait_cluster_barrier(Warp& warp, uint64_t generation) {
  state(warp).knows.join(cluster_barrier_.of(generation));
}

}  // namespace opdeck::emu
