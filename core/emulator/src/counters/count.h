// SPDX-License-Identifier: Apache-2.0
// What instructions tell the counters, when they issue. tally_of() is null where no counters are kept.
#pragma once

#include <array>

#include "../isa/lanes.h"
#include "../isa/memory_access.h"
#include "tally.h"

namespace opdeck::emu {

// The tally of the instruction that the warp is at.
inline OpTally* tally_of(const Warp& warp) { return warp.tally ? &warp.tally->ops[warp.pc] : nullptr; }

using LaneAddresses = std::array<uint64_t, kWarpLanes>;

// `num_bytes` in each lane of `lanes`, at addresses of the space. An access that reads and writes counts as a write.
struct LaneAccess {
  MemorySpace space = MemorySpace::generic;
  uint32_t num_bytes = 0;
  Access access = Access::read;
  uint32_t lanes = 0;
};
void count_lanes(const Warp& warp, OpTally& tally, const LaneAccess& access, const LaneAddresses& addresses);

// A load, store or atomic as `lane_address` reads its operands.
inline void count_access(Warp& warp, const Op& op, LaneAccess access, bool address_is_32_bits) {
  OpTally* const tally = tally_of(warp);
  if (tally == nullptr) return;
  LaneAddresses addresses{};
  for_each_lane(warp.mask, [&](uint32_t lane) { addresses[lane] = lane_address(warp, op, lane, address_is_32_bits); });
  access.lanes = warp.mask;
  count_lanes(warp, *tally, access, addresses);
}

// Bytes that a copy writes into shared memory of the CTAs in the mask `ctas`.
void count_shared_copies(const Warp& warp, OpTally& tally, uint64_t num_bytes, uint32_t ctas);

}  // namespace opdeck::emu
