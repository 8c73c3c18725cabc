// SPDX-License-Identifier: Apache-2.0
// Tensor maps in global memory that the kernel itself has written. The unit that reads them does so by a proxy of its own:
// between the write and the copy a fence.proxy.tensormap must have released the write, and then one must have acquired
// the map, each in the order that synchronisation makes. Source: PTX ISA, "membar, fence", "tensormap.cp_fenceproxy".
// Limits: between clusters, a release counts once any warp of the writing cluster has executed it.
#include "detector.h"

namespace opdeck::emu {
namespace {

constexpr uint64_t kMapBytes = 128;

}  // namespace

void ClusterHazards::release_tensor_maps(Warp& warp) {
  WarpState& s = state(warp);
  s.knows.release_maps();
  launch_.grid.global_hazards->released_maps(cluster_idx_).join(s.knows.released_maps);
  seal(s);
}

void ClusterHazards::copy_tensor_map(Warp& warp, uint64_t address) {
  WarpState& s = state(warp);
  seal(s);  // what the warp has written before is not released, nor what it writes behind
  const Actor actor = actor_of(warp);
  write_global(actor, {address, kMapBytes});
  s.knows.released_maps.raise(s.agent, actor.now.time());
  launch_.grid.global_hazards->released_maps(cluster_idx_).raise(s.agent, actor.now.time());
  seal(s);
}

void ClusterHazards::acquire_tensor_map(Warp& warp, uint64_t address) {
  WarpState& s = state(warp);
  acquired_maps_[address][s.agent] = {moment(warp), s.knows.released_maps, earlier_clusters_};
  seal(s);
}

bool ClusterHazards::is_acquired(const Actor& actor, const GlobalTouch& write, uint64_t map_address) const {
  const auto acquires = acquired_maps_.find(map_address);
  if (acquires == acquired_maps_.end()) return false;
  for (const auto& [agent, acquire] : acquires->second) {
    if (!actor.is_after(acquire.epoch)) continue;
    const bool is_own = write.cluster == cluster_idx_;
    if (is_own ? acquire.released.covers(write.epoch) : acquire.clusters.has(write.cluster)) return true;
  }
  return false;
}

// Behind the map's read, which has found that the writes are ordered before it.
void ClusterHazards::use_tensor_map(Warp& warp, uint64_t address) {
  const Actor actor = actor_of(warp);
  GlobalHazards& global = *launch_.grid.global_hazards;
  global.for_each_cell({address, kMapBytes}, [&](GlobalCell& cell, uint64_t) {
    const GlobalTouch& write = cell.write;
    if (write.epoch.empty()) return;
    const bool is_own = write.cluster == cluster_idx_;
    const VectorClock& released = is_own ? actor.knows->released_maps : global.released_maps(write.cluster);
    const bool is_released = released.covers(write.epoch);
    if (is_released && is_acquired(actor, write, address)) return;
    fail("missing-tensormap-fence", "the tensor map at " + launch_.memory.describe(address) + " was written by " +
                                        describe(write) + ", and no fence.proxy.tensormap::generic." +
                                        (is_released ? "acquire of it" : "release") + " stands between");
  });
}

}  // namespace opdeck::emu
