// SPDX-License-Identifier: Apache-2.0
#include "count.h"

#include <bit>

#include "wavefronts.h"

namespace opdeck::emu {
namespace {

bool is_global(MemorySpace space, uint64_t address) {
  return space == MemorySpace::global || (space == MemorySpace::generic && space_of(address) == Space::global);
}

// A generic address in the shared window has the shared address in its low half.
bool is_shared(MemorySpace space, uint64_t address) {
  return space == MemorySpace::shared_cta || space == MemorySpace::shared_cluster ||
         (space == MemorySpace::generic && space_of(address) == Space::shared);
}

}  // namespace

void OpTally::add(const OpTally& other) {
  completed += other.completed;
  blocked += other.blocked;
  false_polls += other.false_polls;
  macs += other.macs;
  global_read_bytes += other.global_read_bytes;
  global_write_bytes += other.global_write_bytes;
  shared_read_bytes += other.shared_read_bytes;
  shared_write_bytes += other.shared_write_bytes;
  remote_shared_bytes += other.remote_shared_bytes;
  shared_wavefronts += other.shared_wavefronts;
  extra_wavefronts += other.extra_wavefronts;
  tmem_read_bytes += other.tmem_read_bytes;
  tmem_write_bytes += other.tmem_write_bytes;
}

void count_lanes(const Warp& warp, OpTally& tally, const LaneAccess& access, const LaneAddresses& addresses) {
  const bool reads = access.access == Access::read;
  std::array<uint32_t, kWarpLanes> offsets{};
  uint32_t local = 0;
  for_each_lane(access.lanes, [&](uint32_t lane) {
    const uint64_t address = addresses[lane];
    if (is_global(access.space, address))
      (reads ? tally.global_read_bytes : tally.global_write_bytes) += access.num_bytes;
    if (!is_shared(access.space, address)) return;
    (reads ? tally.shared_read_bytes : tally.shared_write_bytes) += access.num_bytes;
    if (shared_rank(static_cast<uint32_t>(address)) != warp.cta.rank) {
      tally.remote_shared_bytes += access.num_bytes;
      return;
    }
    offsets[lane] = shared_offset(static_cast<uint32_t>(address));
    local |= 1u << lane;
  });
  const Wavefronts wavefronts = shared_wavefronts(offsets.data(), local, access.num_bytes);
  tally.shared_wavefronts += wavefronts.num;
  tally.extra_wavefronts += wavefronts.num_extra;
}

void count_shared_copies(const Warp& warp, OpTally& tally, uint64_t num_bytes, uint32_t ctas) {
  tally.shared_write_bytes += num_bytes * static_cast<uint64_t>(std::popcount(ctas));
  tally.remote_shared_bytes += num_bytes * static_cast<uint64_t>(std::popcount(ctas & ~(1u << warp.cta.rank)));
}

}  // namespace opdeck::emu
