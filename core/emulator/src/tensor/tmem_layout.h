// SPDX-License-Identifier: Apache-2.0
// Which TMEM cell each register of tcgen05.ld and tcgen05.st is, and the copies tcgen05.cp makes.
// Called by the tcgen05 instructions of src/isa. Source: PTX ISA, "tcgen05.ld", "tcgen05.st" (matrix fragments),
// "tcgen05.cp" and "Optional decompression".
#pragma once

#include <cstdint>
#include <vector>

#include "outcome.h"

namespace opdeck::emu {

enum class TmemShape : uint8_t { x32x32b, x16x64b, x16x128b, x16x256b, x16x32bx2 };

// packed16: .pack::16b of ld (two neighbouring columns' low halves become one register) and .unpack::16b of st.
enum class TmemPacking : uint8_t { none, packed16 };

struct TmemAccess {
  TmemShape shape = TmemShape::x32x32b;
  uint32_t num_repeats = 1;  // .x1 .. .x128
  TmemPacking packing = TmemPacking::none;
  uint32_t half_split_offset = 0;  // the immediate of 16x32bx2: columns between its two halves
};

struct TmemCell {
  uint32_t lane;    // relative to the access's base lane
  uint32_t column;  // relative to its base column, in 32-bit columns
};

// Registers a thread passes: num_repeats times 1, 1, 2, 4, 1 in the order of TmemShape; packed or not.
uint32_t tmem_num_registers(const TmemAccess& access);
// Columns that the access, or each half of 16x32bx2, touches.
uint32_t tmem_num_columns(const TmemAccess& access);
// The first of them, from the base column on; the halves of 16x32bx2 have the same lanes and one each.
std::vector<uint32_t> tmem_first_columns(const TmemAccess& access);
// Lanes that it touches, from its base lane on: 32 or 16.
uint32_t tmem_num_lanes(TmemShape shape);

// The cell of (thread, register). Under packed16 that of the low half; the high half is the next column.
TmemCell tmem_cell(const TmemAccess& access, uint32_t thread_idx, uint32_t register_idx);

// Checks num_repeats for the shape, and that warp `warp_idx` (in its CTA) may make the access at `address`: it reaches
// lanes 32 * (warp_idx % 4) and the 31 after, 16-lane shapes also from their middle, and no column past 511.
Error check_tmem_access(const TmemAccess& access, uint32_t address, uint32_t warp_idx);

// Moves all registers of a warp. registers[register_idx] points to 32 consecutive words, one a thread.
void tmem_load(const TmemView& tmem, const TmemAccess& access, uint32_t address, uint32_t* const* registers);
void tmem_store(const TmemView& tmem, const TmemAccess& access, uint32_t address, const uint32_t* const* registers);

enum class TmemCopyShape : uint8_t {
  x128x256b, x4x256b, x128x128b, x64x128b_warpx2_02_13, x64x128b_warpx2_01_23, x32x128b_warpx4
};
// .b8x16.b6x16_p32 and .b8x16.b4x16_p64: 16 6- or 4-bit elements and padding become 16 bytes. Refused by
// check_tmem_copy: where in its byte an element goes is not publicly documented in text.
enum class TmemDecompression : uint8_t { none, b6x16_p32, b4x16_p64 };

struct TmemCopy {
  TmemCopyShape shape = TmemCopyShape::x32x128b_warpx4;
  TmemDecompression decompression = TmemDecompression::none;
  uint64_t source_descriptor = 0;  // a tcgen05 shared-memory descriptor
  uint32_t address = 0;            // TMEM destination
};

struct TmemCopyExtent {
  uint32_t num_rows;         // rows of the source matrix
  uint32_t row_bytes;        // of the source
  uint32_t num_columns;      // TMEM columns written
};
TmemCopyExtent tmem_copy_extent(const TmemCopy& copy);

// Everything that can be wrong with a copy, for a CTA with smem_bytes of shared memory. To be called at issue.
Error check_tmem_copy(const TmemCopy& copy, Target target, uint32_t smem_bytes);

// Does a copy that check_tmem_copy passed. With cta_group::2 the caller calls it once a CTA.
void execute_tmem_copy(const TmemCopy& copy, const SharedView& smem, const TmemView& tmem);

}  // namespace opdeck::emu
