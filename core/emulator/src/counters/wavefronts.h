// SPDX-License-Identifier: Apache-2.0
// Bank conflicts of shared memory: 32 banks of 4 bytes, one word a bank and wavefront.
// Source: CUDA C++ Programming Guide, "Shared Memory" (banks, broadcast of a word). An access of more than 4 bytes a
// lane goes in groups of lanes that together have 128 bytes: halves of the warp for 8 bytes, quarters for 16.
#pragma once

#include <cstdint>

namespace opdeck::emu {

struct Wavefronts {
  uint32_t num = 0;
  uint32_t num_extra = 0;  // above one for each group of lanes with an active lane
};

// offsets: one a lane of the mask, aligned to lane_bytes (a power of two up to 32).
Wavefronts shared_wavefronts(const uint32_t* offsets, uint32_t lanes, uint32_t lane_bytes);

}  // namespace opdeck::emu
