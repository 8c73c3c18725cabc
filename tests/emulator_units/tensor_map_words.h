// SPDX-License-Identifier: Apache-2.0
// Builds the 128 bytes of a tensor map field by field, as the CuTe DSL's host code does: for tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

struct TensorMapWords {
  uint64_t base = 0;
  uint32_t type = 6;     // f16
  uint32_t swizzle = 0;  // 0 none, 1 .. 3: 32, 64, 128 bytes
  uint32_t atom = 0;     // of the 128-byte swizzle
  uint32_t low_flags = 0;
  std::vector<uint64_t> sizes;    // dimension 0 first
  std::vector<uint64_t> strides;  // bytes, of dimensions 1 ..
  std::vector<uint32_t> box;
  std::vector<uint32_t> elem_strides;  // empty: all 1

  std::vector<uint8_t> encode() const {
    uint32_t words[32] = {};
    const uint32_t rank = static_cast<uint32_t>(sizes.size());
    std::memcpy(words, &base, 8);
    words[2] = 2 | (rank - 1) << 4 | type << 7 | swizzle << 13 | atom << 19 | low_flags;
    for (uint32_t d = 1; d < rank; ++d) words[2 + d] = static_cast<uint32_t>(strides[d - 1] >> 4);
    for (uint32_t d = 0; d < rank; ++d) words[8 + d] = static_cast<uint32_t>(sizes[d] - 1);
    for (uint32_t d = 0; d < rank; ++d) {
      const uint32_t byte = 55 + d;  // boxes start at the last byte of quadword 6
      words[byte / 4] |= (box[d] - 1) << byte % 4 * 8;
    }
    for (uint32_t d = 1; d < elem_strides.size(); ++d) words[13] |= (elem_strides[d] - 1) << 3 * d;
    std::vector<uint8_t> bytes(128);
    std::memcpy(bytes.data(), words, 128);
    return bytes;
  }
};
