// SPDX-License-Identifier: Apache-2.0
// Bulk copies and cp.async. Copies that signal different mbarriers, or belong to different groups, are in no order; those
// of one mbarrier or lane are known to be complete in the order of issue, since phases and groups are.
#include "../machine/error.h"
#include "detector.h"

namespace opdeck::emu {

// One CTA's part of a load: `box` and `mbarrier` name the CTA that gets the data and the one that is signalled.
Signal ClusterHazards::load_bulk(Warp& warp, const SharedBox& box, uint32_t mbarrier_address) {
  const Knowledge& knows = state(warp).knows;
  fenced_mbarrier(knows, mbarrier_address);
  const AgentId agent = agents_.find_or_add(AgentKind::bulk_load, shared_rank(mbarrier_address), 0, mbarrier_address);
  const Actor actor{agents_.tick(agent), &knows, false, true, site(warp)};
  seal(state(warp));
  shared_box(actor, box, true);
  auto signal = std::make_shared<Knowledge>(knows);
  signal->learn(agent, actor.now.time());
  return signal;
}

// The async proxy writes it, so reads of the one before are of another proxy. CUTLASS's schedulers (dynamic persistent
// tile schedulers of C++ and of the DSL) have a proxy fence behind such reads.
// Kernels leave such fences out before bulk copies, which come long after the reads.
Signal ClusterHazards::load_response(Warp& warp, const SharedBox& box, uint32_t mbarrier_address) {
  if (level_ == HazardLevel::strict) {
    const uint32_t rank = shared_rank(box.address), offset = shared_offset(box.address);
    const size_t first = offset / granule_bytes_, end = (offset + box.num_bytes - 1) / granule_bytes_ + 1;
    const Actor actor{{}, &state(warp).knows, false, true, site(warp)};
    if (const Conflict conflict = ctas_[rank]->shared.unfenced_read(first, end - first, actor))
      fail(conflict, actor, Memory::shared, rank, true);
  }
  return load_bulk(warp, box, mbarrier_address);
}

// Shared memory to another CTA's: the mbarrier's completion covers the read of the source too.
Signal ClusterHazards::copy_bulk(Warp& warp, const SharedBox& from, uint32_t to, uint32_t mbarrier_address) {
  const Knowledge& knows = state(warp).knows;
  fenced_mbarrier(knows, mbarrier_address);
  const AgentId agent = agents_.find_or_add(AgentKind::bulk_load, shared_rank(mbarrier_address), 0, mbarrier_address);
  const Actor actor{agents_.tick(agent), &knows, false, true, site(warp)};
  seal(state(warp));
  shared_box(actor, from, false);
  shared_box(actor, {to, from.num_bytes, Swizzle::none}, true);
  auto signal = std::make_shared<Knowledge>(knows);
  signal->learn(agent, actor.now.time());
  return signal;
}

ClusterHazards::GroupStream& ClusterHazards::bulk_stream(Warp& warp, uint32_t lane) {
  GroupStream& stream = state(warp).bulk[lane];
  stream.agent = agents_.find_or_add(AgentKind::bulk_read, warp.cta.rank, warp.warp_idx, lane);
  stream.writer = agents_.find_or_add(AgentKind::bulk_write, warp.cta.rank, warp.warp_idx, lane);
  return stream;
}

void ClusterHazards::store_bulk(Warp& warp, uint32_t lane, const SharedBox& box) {
  const Knowledge& knows = state(warp).knows;
  const GroupStream& stream = bulk_stream(warp, lane);
  agents_.tick(stream.writer);
  seal(state(warp));
  shared_box({agents_.tick(stream.agent), &knows, false, true, site(warp)}, box, false);
}

void ClusterHazards::commit_bulk(Warp& warp, uint32_t lane) {
  GroupStream& stream = bulk_stream(warp, lane);
  stream.commit(agents_[stream.agent].time);
}

void ClusterHazards::wait_bulk(Warp& warp, uint32_t lane, uint32_t num_allowed, GroupPhase phase) {
  WarpState& s = state(warp);
  const auto it = s.bulk.find(lane);
  if (it == s.bulk.end()) return;
  const uint32_t time = it->second.done_time(num_allowed);
  s.knows.learn(it->second.agent, time);
  if (phase == GroupPhase::complete) s.knows.learn(it->second.writer, time);
}

void ClusterHazards::copy_thread(Warp& warp, uint32_t address, uint32_t num_bytes) {
  const Knowledge& knows = state(warp).knows;
  shared_range({agents_.now(state(warp).thread_copies.agent), &knows, true, false, site(warp)}, address, num_bytes, true);
}

Signal ClusterHazards::track_thread_copies(Warp& warp, uint32_t mbarrier_address) {
  WarpState& s = state(warp);
  mbarrier(s.knows, mbarrier_address);
  auto signal = std::make_shared<Knowledge>(s.knows);
  signal->learn(s.thread_copies.agent, agents_[s.thread_copies.agent].time);
  seal(s.thread_copies.agent);
  seal(s);
  return signal;
}

void ClusterHazards::commit_thread_copies(Warp& warp) {
  GroupStream& stream = state(warp).thread_copies;
  stream.commit(agents_[stream.agent].time);
  seal(stream.agent);
}

void ClusterHazards::wait_thread_copies(Warp& warp, uint32_t num_allowed) {
  WarpState& s = state(warp);
  s.knows.learn(s.thread_copies.agent, s.thread_copies.done_time(num_allowed));
}

// Whatever still reads or writes shared memory when its CTA exits does so in a memory that is another CTA's by then.
void ClusterHazards::finish() {
  Knowledge everything;
  for (const WarpState& s : warps_) everything.join(s.knows);
  check_exit_of_copies(everything);
  check_exit_of_peers();
  check_register_counts();
  check_barriers_at_exit();
}

void ClusterHazards::check_exit_of_copies(const Knowledge& everything) const {
  for (AgentId id = 0; id < agents_.size(); ++id) {
    const Agent& agent = agents_[id];
    if ((agent.kind != AgentKind::bulk_read && agent.kind != AgentKind::bulk_load) || agent.time == 1) continue;
    if (everything.all.get(id) >= agent.time) continue;
    const bool reads = agent.kind == AgentKind::bulk_read;
    fail(reads ? "exit-with-bulk-read" : "exit-with-bulk-load",
         cta_text(agent.rank) + " exited while " +
             (reads ? "bulk copies of warp " + std::to_string(agent.warp_idx) +
                          " may still read its shared memory (cp.async.bulk.wait_group.read is missing)"
                    : "a bulk load into shared memory was in flight: no warp waited for " +
                          place_text(Memory::shared, agent.rank, shared_offset(agent.key) / granule_bytes_)));
  }
}

// What another CTA does to a CTA's shared memory must be known to it before it exits.
void ClusterHazards::check_exit_of_peers() const {
  for (const auto& cta : cluster_.ctas) {
    Knowledge at_exit;
    for (const Warp& warp : cta->warps) at_exit.join(warps_[cta->rank * num_warps_ + warp.warp_idx].knows);
    for (const auto& [agent, touch] : ctas_[cta->rank]->touches)
      if (!at_exit.all.covers(touch.epoch))
        fail("exit-before-peer", cta_text(cta->rank) + " may exit before its shared memory is accessed by " +
                                     describe(touch.epoch, touch.site));
  }
}

// PTX ISA, "setmaxnreg": all warps of a warpgroup execute the same one. Kernels that do not are known to run on GPUs.
void ClusterHazards::check_register_counts() const {
  constexpr uint32_t kWarpsPerGroup = 4;
  for (const auto& cta : cluster_.ctas)
    for (const Warp& warp : cta->warps) {
      const Warp& first = cta->warps[warp.warp_idx / kWarpsPerGroup * kWarpsPerGroup];
      if (warp.max_registers == first.max_registers) continue;
      fail("setmaxnreg-differs", "setmaxnreg gave warp " + std::to_string(warp.warp_idx) + " of " + cta_text(cta->rank) +
                                     " " + std::to_string(warp.max_registers) + " registers and warp " +
                                     std::to_string(first.warp_idx) + " of its warpgroup " +
                                     std::to_string(first.max_registers) + " (0: none was executed)");
    }
}

// PTX says nothing of a barrier that others arrived at and nobody waits for any more; a new CTA starts with fresh ones.
// Kernels that end so are known to run on GPUs.
void ClusterHazards::check_barriers_at_exit() const {
  for (const auto& cta : cluster_.ctas)
    for (size_t i = 0; i < cta->named_barriers.size(); ++i) {
      const NamedBarrier& barrier = cta->named_barriers[i];
      if (barrier.arrived_threads == 0) continue;
      fail("exit-with-barrier-arrivals", cta_text(cta->rank) + " exited with " + std::to_string(barrier.arrived_threads) +
                                             " of " + std::to_string(barrier.expected_threads) +
                                             " threads arrived at barrier " + std::to_string(i));
    }
}

}  // namespace opdeck::emu
