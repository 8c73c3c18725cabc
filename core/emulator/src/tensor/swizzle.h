// SPDX-License-Identifier: Apache-2.0
// The XOR swizzles of shared memory that TMA, wgmma and tcgen05 share.
// Called by tensormap.h and smem_desc.h: the one place where a swizzle is defined. (So a wrong one would cancel
// between TMA and MMA; the unit tests check it against threads that compute addresses on their own.)
// Source: PTX ISA, "Swizzling modes" of tensor copies.
#pragma once

#include <cstdint>
#include <cstring>

namespace opdeck::emu {

// bN: pattern of N bytes, 16-byte atoms. b128_atom32: 128 bytes, 32-byte atoms; b128_atom32_flip8: the same with
// the 8-byte halves of each 16 bytes exchanged in odd rows; b128_atom64: 64-byte atoms.
enum class Swizzle : uint8_t { none, b32, b64, b128, b128_atom32, b128_atom32_flip8, b128_atom64 };

const char* swizzle_name(Swizzle swizzle);

// The bytes over which the pattern spans in one row: 16 for none.
constexpr uint32_t swizzle_span_bytes(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::none: return 16;
    case Swizzle::b32: return 32;
    case Swizzle::b64: return 64;
    default: return 128;
  }
}

// Every aligned piece of this many bytes stays in one piece.
constexpr uint32_t swizzle_atom_bytes(Swizzle swizzle) { return swizzle == Swizzle::b128_atom32_flip8 ? 8 : 16; }

// The pattern repeats after this many bytes of absolute shared address; a tile must start on a multiple.
constexpr uint32_t swizzle_repeat_bytes(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::none: return 16;
    case Swizzle::b32: return 256;
    case Swizzle::b64: return 512;
    case Swizzle::b128: return 1024;
    case Swizzle::b128_atom32:
    case Swizzle::b128_atom32_flip8: return 512;
    case Swizzle::b128_atom64: return 256;
  }
  return 16;
}

// Where the byte at `address` (an absolute shared address, or a CTA offset: the window is aligned) really is.
// An involution: applied twice it gives the address back.
constexpr uint32_t swizzle_address(Swizzle swizzle, uint32_t address) {
  switch (swizzle) {
    case Swizzle::none: return address;
    case Swizzle::b32: return address ^ (((address >> 7) & 1) << 4);
    case Swizzle::b64: return address ^ (((address >> 7) & 3) << 4);
    case Swizzle::b128: return address ^ (((address >> 7) & 7) << 4);
    case Swizzle::b128_atom32: return address ^ (((address >> 7) & 3) << 5);
    case Swizzle::b128_atom32_flip8:
      return address ^ (((address >> 7) & 3) << 5) ^ (((address >> 7) & 1) << 3);
    case Swizzle::b128_atom64: return address ^ (((address >> 7) & 1) << 6);
  }
  return address;
}

// Copies what a swizzle leaves together: mostly 16 bytes, which then take one instruction each way.
inline void copy_piece(void* to, const void* from, uint32_t num_bytes) {
  if (num_bytes == 16) {
    std::memcpy(to, from, 16);
  } else {
    std::memcpy(to, from, num_bytes);
  }
}

}  // namespace opdeck::emu
