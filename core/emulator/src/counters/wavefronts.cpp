// SPDX-License-Identifier: Apache-2.0
#include "wavefronts.h"

#include <algorithm>
#include <array>

namespace opdeck::emu {
namespace {

constexpr uint32_t kNumBanks = 32;
constexpr uint32_t kWordBytes = 4;
constexpr uint32_t kLanes = 32;

// The most words that one bank has to give to lanes [begin, end) of the mask; 0 when none of them is active.
uint32_t deepest_bank(const uint32_t* offsets, uint32_t lanes, uint32_t lane_bytes, uint32_t begin, uint32_t end) {
  std::array<uint32_t, kLanes> words;  // a group has 128 bytes
  size_t num_words = 0;
  const uint32_t words_per_lane = std::max(lane_bytes / kWordBytes, 1u);
  for (uint32_t lane = begin; lane < end; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    for (uint32_t i = 0; i < words_per_lane; ++i) words[num_words++] = offsets[lane] / kWordBytes + i;
  }
  std::sort(words.begin(), words.begin() + num_words);
  num_words = static_cast<size_t>(std::unique(words.begin(), words.begin() + num_words) - words.begin());
  std::array<uint32_t, kNumBanks> depth{};
  for (size_t i = 0; i < num_words; ++i) ++depth[words[i] % kNumBanks];
  return *std::max_element(depth.begin(), depth.end());
}

}  // namespace

Wavefronts shared_wavefronts(const uint32_t* offsets, uint32_t lanes, uint32_t lane_bytes) {
  const uint32_t group_lanes = std::min(kNumBanks * kWordBytes / std::max(lane_bytes, kWordBytes), kLanes);
  Wavefronts result;
  for (uint32_t begin = 0; begin < kLanes; begin += group_lanes) {
    const uint32_t depth = deepest_bank(offsets, lanes, lane_bytes, begin, begin + group_lanes);
    if (depth == 0) continue;
    result.num += depth;
    result.num_extra += depth - 1;
  }
  return result;
}

}  // namespace opdeck::emu
