// SPDX-License-Identifier: Apache-2.0
// Where the state spaces lie in generic (64-bit) addresses. Used by every memory instruction and cvta.
// Global addresses are host addresses (below 2^56). The other spaces are windows above them, so a generic address
// tells its space.
//
// A 32-bit shared address is (CTA rank in the cluster << 24) | offset: masking with 0xfeffffff names the even CTA
// of a pair, as on the chip. The first bytes of each CTA's shared memory are the system's, as on sm_90 and later,
// so address 0 is never legal.
#pragma once

#include <cstdint>

namespace opdeck::emu {

inline constexpr uint64_t kWindowBytes = uint64_t{1} << 56;
inline constexpr uint64_t kSharedWindow = 1 * kWindowBytes;
inline constexpr uint64_t kLocalWindow = 2 * kWindowBytes;
inline constexpr uint64_t kParamWindow = 3 * kWindowBytes;

enum class Space : uint8_t { global, shared, local, param, none };

constexpr Space space_of(uint64_t generic) {
  switch (generic / kWindowBytes) {
    case 0: return Space::global;
    case 1: return Space::shared;
    case 2: return Space::local;
    case 3: return Space::param;
    default: return Space::none;
  }
}

inline constexpr uint32_t kReservedSharedBytes = 1024;
inline constexpr uint32_t kMaxDynamicSharedBytes = 227 * 1024;  // sm_90a, sm_100a, sm_103a, a block, opt-in

constexpr uint32_t shared_rank(uint32_t address) { return address >> 24; }
constexpr uint32_t shared_offset(uint32_t address) { return address & 0xffffff; }
constexpr uint32_t shared_address(uint32_t rank, uint32_t offset) { return rank << 24 | offset; }

}  // namespace opdeck::emu
