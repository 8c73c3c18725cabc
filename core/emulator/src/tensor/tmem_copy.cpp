// SPDX-License-Identifier: Apache-2.0
// tcgen05.cp: shared memory to tensor memory; see tmem_layout.h. The source is a K-major matrix of the copy's rows,
// read through a tcgen05 descriptor; each row becomes the columns of one lane, or of several under .warpx2 and .warpx4.
#include <array>
#include <cstring>

#include "message.h"
#include "smem_desc.h"
#include "tmem_layout.h"

namespace opdeck::emu {
namespace {

struct CopyTraits {
  const char* name;
  uint32_t num_rows;
  uint32_t row_bytes;   // in TMEM
  uint32_t num_copies;  // lanes that get each row
};
constexpr std::array<CopyTraits, 6> copy_traits{{
    {"128x256b", 128, 32, 1},
    {"4x256b", 4, 32, 1},
    {"128x128b", 128, 16, 1},
    {"64x128b.warpx2::02_13", 64, 16, 2},
    {"64x128b.warpx2::01_23", 64, 16, 2},
    {"32x128b.warpx4", 32, 16, 4},
}};
const CopyTraits& traits(TmemCopyShape shape) { return copy_traits[static_cast<size_t>(shape)]; }

// The lane of copy `copy` of a row.
uint32_t destination_lane(TmemCopyShape shape, uint32_t row, uint32_t copy) {
  switch (shape) {
    case TmemCopyShape::x128x256b:
    case TmemCopyShape::x128x128b: return row;
    case TmemCopyShape::x4x256b: return row * 32;  // one lane in each quarter
    case TmemCopyShape::x64x128b_warpx2_02_13: return row + 64 * copy;
    case TmemCopyShape::x64x128b_warpx2_01_23: return row / 32 * 64 + row % 32 + 32 * copy;
    case TmemCopyShape::x32x128b_warpx4: return row + 32 * copy;
  }
  return 0;
}

}  // namespace

TmemCopyExtent tmem_copy_extent(const TmemCopy& copy) {
  const CopyTraits& t = traits(copy.shape);
  return {t.num_rows, t.row_bytes, t.row_bytes / 4};
}

Error check_tmem_copy(const TmemCopy& copy, Target target, uint32_t smem_bytes) {
  const CopyTraits& t = traits(copy.shape);
  if (copy.decompression != TmemDecompression::none)
    return message("tcgen05.cp.", t.name, ": decompression to .b8x16 is not supported");
  const Expected<SmemDescriptor> descriptor = decode_tcgen05_descriptor(copy.source_descriptor, target);
  if (!descriptor.ok()) return message("tcgen05.cp.", t.name, ": ", descriptor.error);
  const OperandExtent extent{t.num_rows, t.row_bytes};
  if (Error e = check_operand(descriptor.value, Major::k, extent, smem_bytes); !e.empty())
    return message("tcgen05.cp.", t.name, ": ", e);
  const uint32_t lane = tmem_lane(copy.address), column = tmem_column(copy.address);
  const uint32_t lane_limit = copy.shape == TmemCopyShape::x4x256b ? 32 : 1;
  if (lane >= lane_limit)
    return message("tcgen05.cp.", t.name, ": TMEM lane ", lane, ", want less than ", lane_limit);
  if (column + t.row_bytes / 4 > TmemView::num_columns)
    return message("tcgen05.cp.", t.name, ": TMEM column ", column, " and the ", t.row_bytes / 4 - 1,
                   " after it pass column 511");
  return {};
}

void execute_tmem_copy(const TmemCopy& copy, const SharedView& smem, const TmemView& tmem) {
  const CopyTraits& t = traits(copy.shape);
  // The target only decides what check_tmem_copy refuses.
  const SmemDescriptor descriptor = decode_tcgen05_descriptor(copy.source_descriptor, Target::sm_103a).value;
  const uint32_t base_lane = tmem_lane(copy.address), base_column = tmem_column(copy.address);
  for (uint32_t row = 0; row < t.num_rows; ++row)
    for (uint32_t byte = 0; byte < t.row_bytes; byte += 16) {
      uint32_t words[4];
      std::memcpy(words, smem.bytes + operand_address(descriptor, Major::k, row, byte), sizeof(words));
      for (uint32_t c = 0; c < t.num_copies; ++c)
        for (uint32_t w = 0; w < 4; ++w)
          tmem.at(base_lane + destination_lane(copy.shape, row, c), base_column + byte / 4 + w) = words[w];
    }
}

}  // namespace opdeck::emu
