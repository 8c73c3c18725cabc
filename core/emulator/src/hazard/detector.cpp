// SPDX-License-Identifier: Apache-2.0
#include "detector.h"

#include <algorithm>

#include "../isa/lanes.h"
#include "../machine/error.h"

namespace opdeck::emu {
namespace {

constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;  // mixes offsets: 2^64 / golden ratio
constexpr uint32_t kTmemGranuleLanes = 16;
constexpr uint32_t kTmemCells = TmemView::num_columns * TmemView::num_lanes / kTmemGranuleLanes;

// What a Site has room for.
static_assert(LaunchShape::kMaxThreads <= Site::kMaxWarps * kWarpLanes);
static_assert(LaunchShape::kMaxClusterCtas <= Site::kMaxRanks);

}  // namespace

ClusterHazards::ClusterHazards(Launch& launch, Cluster& cluster)
    : launch_(launch), cluster_(cluster), level_(static_cast<HazardLevel>(launch.options.hazards)),
      num_warps_(launch.shape.num_warps()),
      granule_bytes_(launch.program.narrowest_shared_bytes) {
  if (launch.program.ops.size() > Site::kMaxOps)
    throw EmulatorError(Fault::failed, "hazard checks: more than " + std::to_string(Site::kMaxOps) + " instructions");
  if (!launch.grid.global_hazards)
    launch.grid.global_hazards = std::make_unique<GlobalHazards>(launch.program.narrowest_global_bytes);
  cluster_idx_ = launch.grid.global_hazards->add_cluster(cluster.ctas[0]->index);
  warps_.resize(size_t{cluster.num_ctas()} * num_warps_);
  for (const auto& cta : cluster.ctas) {
    ctas_.push_back(std::make_unique<CtaState>(
        CtaState{Shadow(agents_, (cta->shared_bytes() + granule_bytes_ - 1) / granule_bytes_), Shadow(agents_, kTmemCells), {}, {}, {}}));
    for (const Warp& warp : cta->warps) {
      WarpState& s = state(warp);
      s.agent = agents_.find_or_add(AgentKind::warp, cta->rank, warp.warp_idx);
      s.written_bytes.assign(launch.program.followed_bytes.size(), 0);
      s.knows.learn(s.agent, agents_.now(s.agent).time());
      s.mbarrier_init = agents_.find_or_add(AgentKind::mbarrier_init, cta->rank, warp.warp_idx);
      s.tmem_load = agents_.find_or_add(AgentKind::tmem_load, cta->rank, warp.warp_idx);
      s.tmem_store = agents_.find_or_add(AgentKind::tmem_store, cta->rank, warp.warp_idx);
      s.thread_copies.agent = agents_.find_or_add(AgentKind::thread_copy, cta->rank, warp.warp_idx);
      s.wgmma_registers.resize(launch.program.wgmma_registers.size());
      s.wgmma.agent = agents_.find_or_add(AgentKind::wgmma, cta->rank, 0, warp.warp_idx / 4);
    }
  }
}

Actor ClusterHazards::actor_of(Warp& warp, uint32_t flags) {
  WarpState& s = state(warp);
  if (agents_[s.agent].sealed) s.knows.learn(s.agent, agents_.now(s.agent).time());
  return {agents_.now(s.agent), &s.knows, true, false, site(warp, flags)};
}

// When a warp does what is no access: known to whoever learns of what it does next, and no part of the fingerprint.
Epoch ClusterHazards::moment(Warp& warp) {
  WarpState& s = state(warp);
  if (agents_[s.agent].sealed) s.knows.learn(s.agent, agents_.tick(s.agent).time());
  return agents_.current(s.agent);
}

// The fingerprint is a sum, so the order in which independent warps run does not matter.
void ClusterHazards::note(const Actor& actor, uint64_t where) {
  Agent& agent = agents_[actor.now.agent()];
  const AgentId own_warp = warps_[actor.site.rank() * num_warps_ + actor.site.warp_idx()].agent;
  const uint64_t known = agents_.hash(*actor.knows, own_warp);
  fingerprint_ += mix_bits(mix_bits(known + where) + agent.hash + agent.num_accesses++);
}

void ClusterHazards::access_shared(Warp& warp, uint32_t address, uint32_t num_bytes, AccessMode mode) {
  const bool weak = mode == AccessMode::read || mode == AccessMode::write;
  acquire_shared_flag(warp, address, mode);
  const Actor actor = actor_of(warp, weak ? 0 : Site::kStrong);
  note(actor, uint64_t{address} << 32 | num_bytes << 3 | static_cast<uint32_t>(mode));
  if (mode != AccessMode::write && mode != AccessMode::strong_write) shared_range(actor, address, num_bytes, false);
  if (mode != AccessMode::read && mode != AccessMode::strong_read) shared_range(actor, address, num_bytes, true);
  release_shared_flag(warp, address, mode);
}

// Lanes that follow one another in memory are looked at as one range.
void ClusterHazards::shared_lanes(Warp& warp, const LaneOffsets& offsets, uint32_t num_bytes, bool writes) {
  const Actor actor = actor_of(warp);
  const uint32_t rank = warp.cta.rank;
  uint32_t first = 0, end = 0;  // of a range, as long as end is not 0
  uint64_t where = uint64_t{num_bytes} << 1 | static_cast<uint32_t>(writes);
  for_each_lane(warp.mask, [&](uint32_t lane) {
    const uint32_t offset = offsets[lane];
    where = (where + offset) * kOdd;
    if (end == 0 || offset < first || offset > end) {
      shared_range(actor, shared_address(rank, first), end - first, writes);
      first = end = offset;
    }
    end = std::max(end, offset + num_bytes);
  });
  shared_range(actor, shared_address(rank, first), end - first, writes);
  note(actor, where);
}

void ClusterHazards::shared_range(const Actor& actor, uint32_t address, uint32_t num_bytes, bool writes) {
  if (num_bytes == 0) return;
  const uint32_t rank = shared_rank(address), offset = shared_offset(address);
  Shadow& shadow = ctas_[rank]->shared;
  const size_t first = offset / granule_bytes_, end = (offset + num_bytes - 1) / granule_bytes_ + 1;
  const Conflict conflict =
      writes ? shadow.write(first, end - first, actor) : shadow.read(first, end - first, actor);
  if (conflict) fail(conflict, actor, Memory::shared, rank, writes);
  if (rank != actor.site.rank()) touch_remote(actor, rank);
}

void ClusterHazards::shared_box(const Actor& actor, const SharedBox& box, bool writes) {
  note(actor, uint64_t{box.address} << 32 | box.num_bytes << 1 | static_cast<uint32_t>(writes));
  // A swizzle permutes the bytes of each 128.
  if (box.swizzle == Swizzle::none || (box.address % 128 == 0 && box.num_bytes % 128 == 0))
    return shared_range(actor, box.address, box.num_bytes, writes);
  for (uint32_t done = 0; done < box.num_bytes; done += 8)
    shared_range(actor, swizzle_address(box.swizzle, box.address + done), 8, writes);
}

void ClusterHazards::touch_remote(const Actor& actor, uint32_t rank) {
  ctas_[rank]->touches[actor.now.agent()] = {actor.now, actor.site};
}

}  // namespace opdeck::emu
