// SPDX-License-Identifier: Apache-2.0
// Shared-memory matrix descriptors of wgmma and tcgen05: which address an operand's element has.
// Called by umma.cpp, wgmma.cpp and tmem_copy. Source: PTX ISA, "Matrix-descriptor-format" (wgmma),
// "Shared memory descriptor" and "Canonical layouts" (tcgen05).
// Limits: a base_offset other than zero is refused with a message.
#pragma once

#include <bit>
#include <cstdint>

#include "outcome.h"
#include "swizzle.h"

namespace opdeck::emu {

// K: the elements of one row (of M or N) along K are contiguous. MN: those of one K along M or N are.
enum class Major : uint8_t { k, mn };

struct SmemDescriptor {
  uint32_t start_bytes = 0;
  uint32_t leading_bytes = 0;  // LBO
  uint32_t stride_bytes = 0;   // SBO
  Swizzle swizzle = Swizzle::none;
  // The leading field is the absolute address of the second part of a K = 96 row, not an offset (sm_103a).
  bool leading_is_absolute = false;
};

// Bits [63:61] give the layout; bits [48:46] must be 1.
Expected<SmemDescriptor> decode_tcgen05_descriptor(uint64_t descriptor, Target target);
// Bits [63:62] give the layout (0 none, 1 128 B, 2 64 B, 3 32 B).
Expected<SmemDescriptor> decode_wgmma_descriptor(uint64_t descriptor);

// The address of the byte `byte` of line `line`, before the swizzle. Major::k: a line is a row of M or N and `byte` runs
// along K. Major::mn: a line is one k and `byte` runs along M or N.
inline uint32_t linear_operand_address(const SmemDescriptor& d, Major major, uint32_t line, uint32_t byte) {
  const uint32_t span_bytes = swizzle_span_bytes(d.swizzle);
  const int span_log2 = std::countr_zero(span_bytes);
  // In all layouts eight lines of span_bytes (four under 32-byte atoms), back to back, form a group; SBO leads to the
  // next group of lines and LBO to the next span of bytes. Unswizzled MN-major exchanges the two.
  const uint32_t group_log2 = d.swizzle == Swizzle::b128_atom32 ? 2 : 3;
  const bool exchanged = major == Major::mn && d.swizzle == Swizzle::none;
  const uint32_t group_bytes = exchanged ? d.leading_bytes : d.stride_bytes;
  const uint32_t line_in_group = line & ((1u << group_log2) - 1);
  const uint32_t line_offset = (line >> group_log2) * group_bytes + (line_in_group << span_log2);

  if (major == Major::k && d.swizzle != Swizzle::none) {
    // One instruction's K lies in one span, wherever in it the descriptor starts, so LBO is unused; except that a row
    // of K = 96 (48 bytes) may cross into the next span, whose address LBO then gives (sm_103a).
    const uint32_t in_span = (d.start_bytes & (span_bytes - 1)) + byte;
    if (d.leading_is_absolute && in_span >= span_bytes) return d.leading_bytes + line_offset + in_span - span_bytes;
    return d.start_bytes + line_offset + byte;
  }
  const uint32_t span_stride_bytes = exchanged ? d.stride_bytes : d.leading_bytes;
  return d.start_bytes + line_offset + (byte >> span_log2) * span_stride_bytes + (byte & (span_bytes - 1));
}
// Its address. Pieces of 16 aligned bytes are contiguous, except under b128_atom32_flip8 (8).
inline uint32_t operand_address(const SmemDescriptor& d, Major major, uint32_t line, uint32_t byte) {
  return swizzle_address(d.swizzle, linear_operand_address(d, major, line, byte));
}

// An operand in shared memory as lines of bytes (see operand_address).
struct OperandExtent {
  uint32_t num_lines, line_bytes;
};
// k_bytes is what one row of k_elems takes.
constexpr OperandExtent operand_extent(Major major, uint32_t num_rows, uint32_t k_bytes, uint32_t k_elems) {
  return major == Major::k ? OperandExtent{num_rows, k_bytes} : OperandExtent{k_elems, num_rows * (k_bytes / k_elems)};
}

// Whether the layout can hold the operand and all of it is inside shared memory; the message names the first address
// that is not.
Error check_operand(const SmemDescriptor& descriptor, Major major, const OperandExtent& extent, uint32_t smem_bytes);

// visit(smem_offset) for each 16 aligned bytes of an operand that check_operand passed.
template <class Visitor>
void for_each_operand_piece(const SmemDescriptor& descriptor, Major major, const OperandExtent& extent,
                            Visitor&& visit) {
  for (uint32_t line = 0; line < extent.num_lines; ++line)
    for (uint32_t byte = 0; byte < extent.line_bytes; byte += 16)
      visit(operand_address(descriptor, major, line, byte) & ~15u);
}

}  // namespace opdeck::emu
