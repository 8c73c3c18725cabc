// SPDX-License-Identifier: Apache-2.0
// Shared-memory matrix descriptors; see smem_desc.h.
#include "smem_desc.h"

#include "message.h"

namespace opdeck::emu {
namespace {

constexpr uint32_t bits(uint64_t word, uint32_t low, uint32_t num_bits) {
  return static_cast<uint32_t>(word >> low & ((uint64_t{1} << num_bits) - 1));
}

SmemDescriptor decode_addresses(uint64_t word) {
  SmemDescriptor d;
  d.start_bytes = bits(word, 0, 14) << 4;
  d.leading_bytes = bits(word, 16, 14) << 4;
  d.stride_bytes = bits(word, 32, 14) << 4;
  return d;
}

Error base_offset_error(uint64_t word) {
  if (const uint32_t base_offset = bits(word, 49, 3))
    return message("shared-memory descriptor ", Hex{word}, ": base offset ", base_offset,
                   " is not supported; want 0, a swizzle pattern that starts on its natural boundary");
  return {};
}

// No byte of the operand lies behind this: addresses grow from group to group of lines, within one, and along a line,
// and a swizzle moves bytes about within 128. Not where the leading field is an address.
uint32_t bound_of_operand(const SmemDescriptor& d, Major major, const OperandExtent& extent) {
  const uint32_t end_of_group = (extent.num_lines - 1) | 7;
  const uint32_t end_of_span = (extent.line_bytes - 1) | (swizzle_span_bytes(d.swizzle) - 1);
  return linear_operand_address(d, major, end_of_group, end_of_span) | 127;
}

Error tcgen05_error(uint64_t word, const char* field, uint32_t got, const char* want) {
  return message("tcgen05 shared-memory descriptor ", Hex{word}, ": ", field, " is ", got, ", want ", want);
}

}  // namespace

Expected<SmemDescriptor> decode_tcgen05_descriptor(uint64_t word, Target target) {
  using Result = Expected<SmemDescriptor>;
  SmemDescriptor d = decode_addresses(word);
  if (bits(word, 46, 3) != 1) return Result::failure(tcgen05_error(word, "bits [48:46]", bits(word, 46, 3), "1"));
  if (bits(word, 53, 8) != 0) return Result::failure(tcgen05_error(word, "bits [60:53]", bits(word, 53, 8), "0"));
  if (Error e = base_offset_error(word); !e.empty()) return Result::failure(e);
  d.leading_is_absolute = bits(word, 52, 1) != 0;
  if (d.leading_is_absolute && target != Target::sm_103a)
    return Result::failure(tcgen05_error(word, "bit 52 (absolute leading address)", 1, "0 except on sm_103a"));
  switch (bits(word, 61, 3)) {
    case 0: d.swizzle = Swizzle::none; break;
    case 1: d.swizzle = Swizzle::b128_atom32; break;
    case 2: d.swizzle = Swizzle::b128; break;
    case 4: d.swizzle = Swizzle::b64; break;
    case 6: d.swizzle = Swizzle::b32; break;
    default: return Result::failure(tcgen05_error(word, "the swizzle mode", bits(word, 61, 3), "0, 1, 2, 4 or 6"));
  }
  return d;
}

Expected<SmemDescriptor> decode_wgmma_descriptor(uint64_t word) {
  SmemDescriptor d = decode_addresses(word);
  if (Error e = base_offset_error(word); !e.empty()) return Expected<SmemDescriptor>::failure(e);
  constexpr Swizzle modes[4] = {Swizzle::none, Swizzle::b128, Swizzle::b64, Swizzle::b32};
  d.swizzle = modes[bits(word, 62, 2)];
  return d;
}

Error check_operand(const SmemDescriptor& d, Major major, const OperandExtent& extent, uint32_t smem_bytes) {
  const uint32_t span_bytes = swizzle_span_bytes(d.swizzle);
  if (major == Major::k && d.swizzle != Swizzle::none) {
    if (d.swizzle == Swizzle::b128_atom32)
      return "matrix descriptor: 128-byte swizzle with 32-byte atoms is for MN-major operands only";
    if (!d.leading_is_absolute && d.start_bytes % span_bytes + extent.line_bytes > span_bytes)
      return message("matrix descriptor: a K-major row of ", extent.line_bytes, " bytes that starts at ",
                     Hex{d.start_bytes}, " crosses its swizzle span of ", span_bytes, " bytes");
  }
  if (!d.leading_is_absolute && bound_of_operand(d, major, extent) < smem_bytes) return {};
  for (uint32_t line = 0; line < extent.num_lines; ++line)
    for (uint32_t byte = 0; byte < extent.line_bytes; byte += 16) {
      const uint32_t address = operand_address(d, major, line, byte);
      if (address + 16 <= smem_bytes) continue;
      return message("matrix descriptor (start ", Hex{d.start_bytes}, ", leading ", Hex{d.leading_bytes}, ", stride ",
                     Hex{d.stride_bytes}, ", swizzle ", swizzle_name(d.swizzle), ") reaches shared address ",
                     Hex{address}, " at line ", line, ", byte ", byte, "; the CTA has ", smem_bytes, " bytes");
    }
  return {};
}

const char* swizzle_name(Swizzle swizzle) {
  constexpr const char* names[] = {"none",          "32B", "64B", "128B", "128B_atom_32B", "128B_atom_32B_flip_8B",
                                   "128B_atom_64B"};
  return names[static_cast<uint32_t>(swizzle)];
}

}  // namespace opdeck::emu
