// SPDX-License-Identifier: Apache-2.0
// Bulk copies and cp.async. Copies that signal different mbarriers, or belong to different groups, are in no order; those
// of one mbarrier or lane are known to be complete in the order of issue, since phases and groups are.
#include "../machine/error.h"
#include "detector.h"

namespace opdeck::emu {

// One CTA's part of a load: `box` and `mbarrier` name the CTA that gets the data and the one that is signalled.
Signal ClusterHazards::load_bulk(Warp& warp, const SharedBox& box, uint32_t mbarrier_address) {
  const Knowledge& knows = *actor_of(warp).knows;
  mbarrier(knows, mbarrier_address);
  const AgentId agent = agents_.find_or_add(AgentKind::bulk_load, shared_rank(mbarrier_address), 0, mbarrier_address);
  const Actor actor{agents_.tick(agent), &knows, false, true, site(warp)};
  shared_box(actor, box, true);
  auto signal = std::make_shared<Knowledge>(knows);
  signal->learn(agent, actor.now.time());
  return signal;
}

// Shared memory to another CTA's: the mbarrier's completion covers the read of the source too.
Signal ClusterHazards::copy_bulk(Warp& warp, const SharedBox& from, uint32_t to, uint32_t mbarrier_address) {
  const Knowledge& knows = *actor_of(warp).knows;
  mbarrier(knows, mbarrier_address);
  const AgentId agent = agents_.find_or_add(AgentKind::bulk_load, shared_rank(mbarrier_address), 0, mbarrier_address);
  const Actor actor{agents_.tick(agent), &knows, false, true, site(warp)};
  shared_box(actor, from, false);
  shared_box(actor, {to, from.num_bytes, Swizzle::none}, true);
  auto signal = std::make_shared<Knowledge>(knows);
  signal->learn(agent, actor.now.time());
  return signal;
}

void ClusterHazards::store_bulk(Warp& warp, uint32_t lane, const SharedBox& box) {
  const Knowledge& knows = *actor_of(warp).knows;
  GroupStream& stream = state(warp).bulk[lane];
  stream.agent = agents_.find_or_add(AgentKind::bulk_read, warp.cta.rank, warp.warp_idx, lane);
  shared_box({agents_.tick(stream.agent), &knows, false, true, site(warp)}, box, false);
}

void ClusterHazards::commit_bulk(Warp& warp, uint32_t lane) {
  GroupStream& stream = state(warp).bulk[lane];
  stream.agent = agents_.find_or_add(AgentKind::bulk_read, warp.cta.rank, warp.warp_idx, lane);
  stream.commit(agents_[stream.agent].time);
}

void ClusterHazards::wait_bulk(Warp& warp, uint32_t lane, uint32_t num_allowed) {
  WarpState& s = state(warp);
  const auto it = s.bulk.find(lane);
  if (it != s.bulk.end()) s.knows.learn(it->second.agent, it->second.done_time(num_allowed));
}

void ClusterHazards::copy_thread(Warp& warp, uint32_t address, uint32_t num_bytes) {
  const Knowledge& knows = *actor_of(warp).knows;
  shared_range({agents_.now(state(warp).thread_copies.agent), &knows, true, false, site(warp)}, address, num_bytes, true);
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

}  // namespace opdeck::emu
