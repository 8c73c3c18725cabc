// SPDX-License-Identifier: Apache-2.0
// Accesses of global memory that a launch may write, and synchronisation through flags in global and shared memory.
#include "../machine/error.h"
#include "detector.h"

namespace opdeck::emu {
namespace {

bool reads_flag(AccessMode mode) { return mode == AccessMode::strong_read || mode == AccessMode::atomic; }
bool writes_flag(AccessMode mode) {
  return mode == AccessMode::strong_write || mode == AccessMode::atomic || mode == AccessMode::reduction;
}

}  // namespace

void ClusterHazards::acquire_shared_flag(Warp& warp, uint32_t address, AccessMode mode) {
  if (!reads_flag(mode)) return;
  const auto it = shared_flags_.find(address);
  if (it != shared_flags_.end()) state(warp).knows.join(it->second);
}

void ClusterHazards::release_shared_flag(Warp& warp, uint32_t address, AccessMode mode) {
  if (!writes_flag(mode)) return;
  shared_flags_[address].join(state(warp).knows);
  seal(state(warp));
}

void ClusterHazards::acquire_global_flag(Warp& warp, uint64_t address) {
  const GlobalFlag& flag = launch_.grid.global_hazards->flag(address);
  if (flag.cluster == cluster_idx_) {
    state(warp).knows.join(flag.knows);
  } else if (flag.cluster != GlobalFlag::kNobody) {
    earlier_clusters_.add(flag.cluster);
  }
  earlier_clusters_.join(flag.clusters);
}

void ClusterHazards::release_global_flag(Warp& warp, uint64_t address) {
  GlobalFlag& flag = launch_.grid.global_hazards->flag(address);
  if (flag.cluster != cluster_idx_) {
    if (flag.cluster != GlobalFlag::kNobody) flag.clusters.add(flag.cluster);
    flag.knows.clear();
    flag.cluster = cluster_idx_;
  }
  flag.knows.join(state(warp).knows);
  flag.clusters.join(earlier_clusters_);
  seal(state(warp));
}

void ClusterHazards::access_global(Warp& warp, uint64_t address, uint32_t num_bytes, AccessMode mode) {
  const bool weak = mode == AccessMode::read || mode == AccessMode::write;
  if (reads_flag(mode)) acquire_global_flag(warp, address);
  const Actor actor = actor_of(warp, weak ? 0 : Site::kStrong);
  global_range(actor, address, num_bytes, mode != AccessMode::read && mode != AccessMode::strong_read);
  if (writes_flag(mode)) release_global_flag(warp, address);
}

void ClusterHazards::read_global_bulk(Warp& warp, uint32_t mbarrier_address, uint64_t address, uint64_t num_bytes) {
  const AgentId agent = agents_.find_or_add(AgentKind::bulk_load, shared_rank(mbarrier_address), 0, mbarrier_address);
  global_range({agents_.current(agent), &state(warp).knows, false, true, site(warp)}, address, num_bytes, false);
}

void ClusterHazards::write_global_bulk(Warp& warp, uint32_t lane, uint64_t address, uint64_t num_bytes, uint32_t flags) {
  const AgentId agent = state(warp).bulk[lane].writer;
  global_range({agents_.current(agent), &state(warp).knows, true, true, site(warp, flags)}, address, num_bytes, true);
}

Conflict::Why ClusterHazards::against_global(Epoch other, Site other_site, uint32_t cluster, const Actor& actor,
                                             bool needs_fence) const {
  if (other.empty() || (other_site.has(Site::kStrong) && actor.site.has(Site::kStrong))) return Conflict::Why::none;
  if (cluster != cluster_idx_) return earlier_clusters_.has(cluster) ? Conflict::Why::none : Conflict::Why::unordered;
  if (!(actor.in_order && other.agent() == actor.now.agent()) && !actor.knows->all.covers(other))
    return Conflict::Why::unordered;
  const bool crosses = needs_fence && actor.async_proxy && agents_[other.agent()].is_generic();
  return crosses && !actor.knows->fenced.covers(other) ? Conflict::Why::unfenced : Conflict::Why::none;
}

void ClusterHazards::global_range(const Actor& actor, uint64_t address, uint64_t num_bytes, bool writes) {
  if (num_bytes == 0) return;
  note(actor, mix_bits(address - launch_.memory.base_of(address)) + (num_bytes << 1) + static_cast<uint32_t>(writes));
  launch_.grid.global_hazards->for_each_cell(address, num_bytes, [&](GlobalCell& cell, uint64_t at) {
    ShadowCell& access = cell.access;
    Conflict::Why why = against_global(access.write, access.write_site, cell.write_cluster, actor, true);
    if (why != Conflict::Why::none) fail_global(why, at, access.write, access.write_site, cell.write_cluster, writes, true);
    if (!writes) {
      access.read = actor.now;
      access.read_site = actor.site;
      cell.read_cluster = cluster_idx_;
      return;
    }
    why = against_global(access.read, access.read_site, cell.read_cluster, actor, false);
    if (why != Conflict::Why::none) fail_global(why, at, access.read, access.read_site, cell.read_cluster, writes, false);
    access.read = Epoch();
    access.write = actor.now;
    access.write_site = actor.site;
    cell.write_cluster = cluster_idx_;
  });
}

void ClusterHazards::fail_global(Conflict::Why why, uint64_t address, Epoch other, Site site, uint32_t cluster, bool writes,
                                 bool other_writes) const {
  std::string text = std::string("this ") + (writes ? "write" : "read") + " of " + launch_.memory.describe(address);
  std::string by = " by ";
  if (cluster == cluster_idx_) {
    by += describe(other, site);
  } else {
    const auto& first = launch_.grid.global_hazards->first_cta(cluster);
    const SourcePlace& place = launch_.program.places[site.op_idx()];
    by += "`" + place.text + "` at " + place.line_text() + " of warp " + std::to_string(site.warp_idx()) +
          ", CTA " + std::to_string(site.rank()) + " of the cluster at (" + std::to_string(first[0]) + ", " +
          std::to_string(first[1]) + ", " + std::to_string(first[2]) + ")";
  }
  if (why == Conflict::Why::unfenced)
    fail("missing-proxy-fence", text + " by the async proxy is ordered after the write" + by +
                                    ", but no fence.proxy.async is between");
  fail("global-race", text + " is not ordered after the " + (other_writes ? "write" : "read") + by);
}

}  // namespace opdeck::emu
