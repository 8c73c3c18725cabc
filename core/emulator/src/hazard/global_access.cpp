// SPDX-License-Identifier: Apache-2.0
// Accesses of global memory that a launch may write, and synchronisation through flags in global and shared memory.
#include <cstring>

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

void ClusterHazards::access_global(Warp& warp, const GlobalRange& range, AccessMode mode) {
  const bool weak = mode == AccessMode::read || mode == AccessMode::write;
  if (reads_flag(mode)) acquire_global_flag(warp, range.address);
  const Actor actor = actor_of(warp, weak ? 0 : Site::kStrong);
  if (mode == AccessMode::read || mode == AccessMode::strong_read)
    read_global(actor, range);
  else
    write_global(actor, range);
  if (writes_flag(mode)) release_global_flag(warp, range.address);
}

void ClusterHazards::read_global_bulk(Warp& warp, uint32_t mbarrier_address, uint64_t address, uint64_t num_bytes) {
  const AgentId agent = agents_.find_or_add(AgentKind::bulk_load, shared_rank(mbarrier_address), 0, mbarrier_address);
  read_global({agents_.current(agent), &state(warp).knows, false, true, site(warp)}, {address, num_bytes});
}

void ClusterHazards::write_global_bulk(Warp& warp, uint32_t lane, uint64_t address, uint64_t num_bytes, uint32_t flags) {
  const AgentId agent = state(warp).bulk[lane].writer;
  write_global({agents_.current(agent), &state(warp).knows, true, true, site(warp, flags)}, {address, num_bytes});
}

bool ClusterHazards::is_after(const Actor& actor, const GlobalTouch& other) const {
  return other.cluster == cluster_idx_ ? actor.is_after(other.epoch) : earlier_clusters_.has(other.cluster);
}

Conflict::Why ClusterHazards::against_global_write(const GlobalTouch& write, const Actor& actor) const {
  if (write.epoch.empty() || (write.site.has(Site::kStrong) && actor.site.has(Site::kStrong))) return Conflict::Why::none;
  if (!is_after(actor, write)) return Conflict::Why::unordered;
  if (write.cluster != cluster_idx_) return Conflict::Why::none;
  const bool crosses = actor.async_proxy && agents_[write.epoch.agent()].is_generic();
  return crosses && !actor.knows->fenced.covers(write.epoch) ? Conflict::Why::unfenced : Conflict::Why::none;
}

void ClusterHazards::read_global(const Actor& actor, const GlobalRange& range) {
  if (range.num_bytes == 0) return;
  note(actor, mix_bits(range.address - launch_.memory.base_of(range.address)) + (range.num_bytes << 1));
  GlobalHazards& global = *launch_.grid.global_hazards;
  const GlobalTouch touch{actor.now, actor.site, cluster_idx_, 0};
  const auto replaces = [&](const GlobalTouch& earlier) {
    return earlier.cluster == cluster_idx_ && actor.is_after(earlier.epoch);
  };
  global.for_each_cell(range, [&](GlobalCell& cell, uint64_t at) {
    const Conflict::Why why = against_global_write(cell.write, actor);
    if (why != Conflict::Why::none) fail_global({why, 0, {}, true}, cell.write, at, false);
    global.reads().add(cell.read, touch, replaces);
  });
}

// Two stores by threads of one size, to one address, that no synchronisation orders: the memory model says that one of
// them comes last, so where both store the same nothing is undefined.
Conflict::Why ClusterHazards::against_global_writes(const GlobalTouch& write, uint64_t at, const GlobalRange& range,
                                                    const Actor& actor) const {
  const Conflict::Why why = against_global_write(write, actor);
  if (why != Conflict::Why::unordered || range.stored == nullptr || write.elem_bytes != range.elem_bytes) return why;
  const uint8_t* const stored = range.stored + (at - range.address);
  if (std::memcmp(reinterpret_cast<const void*>(at), stored, launch_.grid.global_hazards->granule_bytes()) != 0) return why;
  return level_ == HazardLevel::strict ? Conflict::Why::equal_values : Conflict::Why::none;
}

void ClusterHazards::write_global(const Actor& actor, const GlobalRange& range) {
  if (range.num_bytes == 0) return;
  note(actor, mix_bits(range.address - launch_.memory.base_of(range.address)) + (range.num_bytes << 1) + 1);
  GlobalHazards& global = *launch_.grid.global_hazards;
  const GlobalTouch touch{actor.now, actor.site, cluster_idx_, range.elem_bytes};
  const auto races = [&](const GlobalTouch& read) {
    return !(read.site.has(Site::kStrong) && actor.site.has(Site::kStrong)) && !is_after(actor, read);
  };
  GlobalTouch passed;  // neighbours mostly have the same reads
  global.for_each_cell(range, [&](GlobalCell& cell, uint64_t at) {
    const Conflict::Why why = against_global_writes(cell.write, at, range, actor);
    if (why != Conflict::Why::none) fail_global({why, 0, {}, true}, cell.write, at, true);
    if (!cell.read.epoch.empty()) {
      if (cell.read != passed)
        if (const GlobalTouch* read = global.reads().find(cell.read, races))
          fail_global({Conflict::Why::unordered, 0, {}, false}, *read, at, true);
      passed = cell.read.is_set() ? GlobalTouch() : cell.read;
      global.reads().drop(cell.read);
    }
    cell.write = touch;
  });
}

std::string ClusterHazards::describe(const GlobalTouch& other) const {
  if (other.cluster == cluster_idx_) return describe(other.epoch, other.site);
  const auto& first = launch_.grid.global_hazards->first_cta(other.cluster);
  const SourcePlace& place = launch_.program.places[other.site.op_idx()];
  return "`" + place.text + "` at " + place.line_text() + " of warp " + std::to_string(other.site.warp_idx()) + ", CTA " +
         std::to_string(other.site.rank()) + " of the cluster at (" + std::to_string(first[0]) + ", " +
         std::to_string(first[1]) + ", " + std::to_string(first[2]) + ")";
}

void ClusterHazards::fail_global(const Conflict& conflict, const GlobalTouch& other, uint64_t address, bool writes) const {
  const std::string text = std::string("this ") + (writes ? "write" : "read") + " of " + launch_.memory.describe(address);
  const std::string by = " by " + describe(other);
  if (conflict.why == Conflict::Why::unfenced)
    fail("missing-proxy-fence", text + " by the async proxy is ordered after the write" + by +
                                    ", but no fence.proxy.async is between");
  const std::string race = text + " is not ordered after the " + (conflict.other_writes ? "write" : "read") + by;
  if (conflict.why == Conflict::Why::equal_values)
    fail("global-race-equal-values", race + ", which wrote the same value");
  fail("global-race", race);
}

}  // namespace opdeck::emu
