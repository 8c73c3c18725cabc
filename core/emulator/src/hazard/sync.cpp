// SPDX-License-Identifier: Apache-2.0
// Barriers: what an arrival passes on and what a wait takes over.
#include <algorithm>

#include "../machine/error.h"
#include "detector.h"

namespace opdeck::emu {

Knowledge& ClusterHazards::SyncPoint::released(uint64_t generation) {
  const size_t slot = generation & 1;
  if (generations[slot] != generation) passed[slot].clear();
  generations[slot] = generation;
  return passed[slot];
}

void ClusterHazards::release(WarpState& s, Knowledge& passed, Semantics semantics) {
  if (semantics == Semantics::synchronizing) {
    passed.join(s.knows);
  } else {
    passed.join(s.released);
    passed.tensor.join(s.knows.tensor);
  }
  seal(s);
}

void ClusterHazards::acquire(WarpState& s, const Knowledge& passed, Semantics semantics) {
  if (semantics == Semantics::synchronizing) return s.knows.join(passed);
  s.acquirable.join(passed);
  s.knows.tensor.join(passed.tensor);
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

// An mbarrier that another CTA or an asynchronous operation uses.
ClusterHazards::MbarrierState& ClusterHazards::fenced_mbarrier(const Knowledge& knows, uint32_t address) {
  MbarrierState& m = mbarrier(knows, address);
  if (level_ == HazardLevel::strict && (m.init_fence.empty() || !knows.all.covers(m.init_fence)))
    fail("missing-mbarrier-init-fence",
         "another CTA or an asynchronous operation uses the mbarrier at " +
             place_text(Memory::shared, shared_rank(address), shared_offset(address) / granule_bytes_) +
             ", but no fence.mbarrier_init or fence.proxy.async stands behind its initialisation by " +
             describe(m.init, m.init_site));
  return m;
}

// The state of a mbarrier with its generation brought to the phase in progress.
ClusterHazards::MbarrierState& ClusterHazards::advance_mbarrier(uint32_t address) {
  MbarrierState& m = mbarriers_.at(address);
  if (cluster_.read_mbarrier(address).phase != (m.generation & 1)) {
    check_waits(address, m);
    m.waits.clear();
    m.relaxed.clear();
    ++m.generation;
  }
  return m;
}

// The phase m.generation is complete. A wait for the phase before it that its arrivals do not know of could have come
// after it, found the parity flipped twice and waited for a later phase, or for ever.
void ClusterHazards::check_waits(uint32_t address, const MbarrierState& m) const {
  const VectorClock& arrivals = m.sync.of(m.generation).all;
  for (const Touch& wait : m.waits)
    if (!arrivals.covers(wait.epoch) && !m.relaxed.covers(wait.epoch))
      fail("mbarrier-phase-missed",
           "the mbarrier at " + place_text(Memory::shared, shared_rank(address), shared_offset(address) / granule_bytes_) +
               " may complete two phases before the first of them is seen by " + describe(wait.epoch, wait.site));
}

void ClusterHazards::init_mbarrier(Warp& warp, uint32_t address) {
  WarpState& s = state(warp);
  const Actor actor{agents_.tick(s.mbarrier_init), &s.knows, true, false, site(warp, Site::kMbarrier)};
  shared_range(actor, address, 8, true);
  s.knows.learn(s.mbarrier_init, actor.now.time());
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

void ClusterHazards::arrive_mbarrier(Warp& warp, uint32_t address, Semantics semantics) {
  WarpState& s = state(warp);
  const uint32_t rank = shared_rank(address);
  const bool is_remote = rank != warp.cta.rank;
  is_remote ? fenced_mbarrier(s.knows, address) : mbarrier(s.knows, address);
  MbarrierState& m = advance_mbarrier(address);
  if (is_remote) ctas_[rank]->touches[s.agent] = {Epoch(s.agent, agents_[s.agent].time), site(warp)};
  if (semantics == Semantics::relaxed) m.relaxed.join(s.knows.all);
  release(s, m.sync.released(m.generation), semantics);
}

// Relaxed: it takes part in the phase, but passes nothing on.
void ClusterHazards::change_mbarrier_tx(Warp& warp, uint32_t address) {
  WarpState& s = state(warp);
  mbarrier(s.knows, address);
  advance_mbarrier(address).relaxed.join(s.knows.all);
  seal(s);
}

void ClusterHazards::use_mbarrier(Warp& warp, uint32_t address) { fenced_mbarrier(state(warp).knows, address); }

void ClusterHazards::signal_mbarrier(uint32_t address, const Signal& signal) {
  if (mbarriers_.count(address) == 0) return;  // the machine reports it
  MbarrierState& m = advance_mbarrier(address);
  m.sync.released(m.generation).join(*signal);
}

// A phase of that parity is complete and its successor in progress. Before the first arrival of phase 0, the phase
// before it counts as complete: nothing was passed.
void ClusterHazards::wait_mbarrier(Warp& warp, uint32_t address, uint32_t parity, Semantics semantics) {
  WarpState& s = state(warp);
  mbarrier(s.knows, address);
  MbarrierState& m = advance_mbarrier(address);
  acquire(s, m.sync.of(parity), semantics);
  const Touch wait{moment(warp), site(warp)};
  const auto it = std::find_if(m.waits.begin(), m.waits.end(), [&](const Touch& w) { return w.epoch.agent() == s.agent; });
  if (it == m.waits.end())
    m.waits.push_back(wait);
  else
    *it = wait;
}

void ClusterHazards::arrive_barrier(Warp& warp, uint32_t barrier_idx, uint64_t generation) {
  BarrierPoint& barrier = ctas_[warp.cta.rank]->barriers[barrier_idx];
  if (!barrier.passed || barrier.generation != generation) barrier = {generation, std::make_shared<Knowledge>()};
  release(state(warp), *barrier.passed, Semantics::synchronizing);
  state(warp).barrier = barrier.passed;
}

void ClusterHazards::wait_barrier(Warp& warp) {
  WarpState& s = state(warp);
  s.knows.join(*s.barrier);
  s.barrier.reset();
}

void ClusterHazards::arrive_cluster_barrier(Warp& warp, uint64_t generation, Semantics semantics) {
  WarpState& s = state(warp);
  if (semantics == Semantics::synchronizing) fence_own_mbarriers(s);
  release(s, cluster_barrier_.released(generation), semantics);
}

void ClusterHazards::wait_cluster_barrier(Warp& warp, uint64_t generation) {
  state(warp).knows.join(cluster_barrier_.of(generation));
}

}  // namespace opdeck::emu
