// SPDX-License-Identifier: Apache-2.0
// Puts matrix operands into a byte array as a kernel's threads would, and makes their descriptors. The addresses come
// from CuTe's canonical layouts (a swizzle Swizzle<B,M,S> over a tiled atom), written here on their own: these tests
// must not take an address from the code that they test.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

// CuTe's Swizzle<B, M, S> on a byte offset.
inline uint32_t cute_swizzle(uint32_t b, uint32_t m, uint32_t s, uint32_t offset) {
  const uint32_t mask = ((1u << b) - 1) << (m + s);
  return offset ^ ((offset & mask) >> s);
}

enum class TileSwizzle { none, b32, b64, b128, b128_atom32 };

struct OperandTile {
  TileSwizzle swizzle = TileSwizzle::b128;
  bool mn_major = false;
  uint32_t num_rows = 0;      // of M or N
  uint32_t k_bytes = 0;       // of a row of the whole tile (of which one instruction takes 32 bytes)
  uint32_t elem_bytes = 2;
  uint32_t base = 0;          // shared address, a multiple of 1024

  uint32_t span_bytes() const {
    switch (swizzle) {
      case TileSwizzle::none: return 16;
      case TileSwizzle::b32: return 32;
      case TileSwizzle::b64: return 64;
      default: return 128;
    }
  }
  uint32_t atom_lines() const { return swizzle == TileSwizzle::b128_atom32 ? 4 : 8; }
  uint32_t num_lines() const { return mn_major ? k_bytes / elem_bytes : num_rows; }
  uint32_t line_bytes() const { return mn_major ? num_rows * elem_bytes : k_bytes; }
  uint32_t atom_bytes() const { return atom_lines() * span_bytes(); }
  uint32_t size_bytes() const { return num_lines() * line_bytes(); }

  // Atoms are tiled along the lines first, then along the bytes of a line.
  uint32_t lines_stride() const { return atom_bytes(); }
  uint32_t bytes_stride() const { return num_lines() / atom_lines() * atom_bytes(); }

  // Shared address of the byte `byte` of element (row, k).
  uint32_t address(uint32_t row, uint32_t k, uint32_t byte = 0) const {
    const uint32_t line = mn_major ? k : row;
    const uint32_t at = (mn_major ? row : k) * elem_bytes + byte;
    const uint32_t in_atom = line % atom_lines() * span_bytes() + at % span_bytes();
    const uint32_t offset = line / atom_lines() * lines_stride() + at / span_bytes() * bytes_stride() + in_atom;
    switch (swizzle) {
      case TileSwizzle::none: return base + offset;
      case TileSwizzle::b32: return base + cute_swizzle(1, 4, 3, offset);
      case TileSwizzle::b64: return base + cute_swizzle(2, 4, 3, offset);
      case TileSwizzle::b128: return base + cute_swizzle(3, 4, 3, offset);
      case TileSwizzle::b128_atom32: return base + cute_swizzle(2, 5, 2, offset);
    }
    return 0;
  }

  void put(std::vector<uint8_t>& smem, uint32_t row, uint32_t k, uint32_t code) const {
    std::memcpy(smem.data() + address(row, k), &code, elem_bytes);
  }

  // The same for elements of fewer than 8 bits, in a tile of elem_bytes 1: 16 of them bit to bit in each 16-byte slot
  // (slot_elems 16), or 32 (packed 4-bit).
  void put_bits(std::vector<uint8_t>& smem, uint32_t row, uint32_t k, uint32_t code, uint32_t code_bits,
                uint32_t slot_elems) const {
    uint8_t* slot = smem.data() + address(row, k / slot_elems * 16);
    for (uint32_t b = 0; b < code_bits; ++b) {
      const uint32_t bit = k % slot_elems * code_bits + b;
      const uint8_t mask = static_cast<uint8_t>(1u << bit % 8);
      slot[bit / 8] = static_cast<uint8_t>(code >> b & 1 ? slot[bit / 8] | mask : slot[bit / 8] & ~mask);
    }
  }

  // Where instruction `step` starts: 32 bytes of K further, without the swizzle.
  uint32_t start(uint32_t step) const {
    const uint32_t k = step * 32 / elem_bytes;
    if (mn_major) return base + k / atom_lines() * lines_stride();
    return base + step * 32 / span_bytes() * bytes_stride() + step * 32 % span_bytes();
  }

  // LBO and SBO as CuTe's make_umma_desc and make_gmma_desc define them.
  uint64_t addresses(uint32_t step) const {
    const bool exchanged = mn_major && swizzle == TileSwizzle::none;
    const uint64_t leading = exchanged ? lines_stride() : bytes_stride();
    const uint64_t stride = exchanged ? bytes_stride() : lines_stride();
    return uint64_t{start(step)} >> 4 | leading >> 4 << 16 | stride >> 4 << 32;
  }
  uint64_t tcgen05_descriptor(uint32_t step) const {
    const uint64_t layouts[] = {0, 6, 4, 2, 1};
    return addresses(step) | uint64_t{1} << 46 | layouts[static_cast<int>(swizzle)] << 61;
  }
  uint64_t wgmma_descriptor(uint32_t step) const {
    const uint64_t layouts[] = {0, 3, 2, 1, 0};
    return addresses(step) | layouts[static_cast<int>(swizzle)] << 62;
  }
};
