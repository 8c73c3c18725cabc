// SPDX-License-Identifier: Apache-2.0
// tcgen05.ld, st and cp: layouts from PTX's figures, as CuTe's layouts; loads and stores of whole warps; refusals.
#include "tmem_layout.h"

#include <cstring>
#include <set>
#include <vector>

#include "check.h"
#include "operand_tile.h"

using namespace opdeck::emu;

namespace {

struct ShapeCase {
  TmemShape shape;
  uint32_t lanes, bits, max_repeats;  // bits a lane and repeat
};
const ShapeCase shapes[] = {{TmemShape::x32x32b, 32, 32, 128},
                            {TmemShape::x16x64b, 16, 64, 128},
                            {TmemShape::x16x128b, 16, 128, 64},
                            {TmemShape::x16x256b, 16, 256, 32},
                            {TmemShape::x16x32bx2, 16, 32, 128}};

// Each cell of the access once, and none outside it.
void check_bijection() {
  for (const ShapeCase& s : shapes)
    for (uint32_t repeats = 1; repeats <= s.max_repeats; repeats *= 2) {
      TmemAccess access{s.shape, repeats};
      access.half_split_offset = s.shape == TmemShape::x16x32bx2 ? repeats : 0;
      std::set<std::pair<uint32_t, uint32_t>> cells;
      const uint32_t num_columns = s.bits / 32 * repeats * (s.shape == TmemShape::x16x32bx2 ? 2 : 1);
      for (uint32_t reg = 0; reg < tmem_num_registers(access); ++reg)
        for (uint32_t thread = 0; thread < 32; ++thread) {
          const TmemCell cell = tmem_cell(access, thread, reg);
          CHECK(cell.lane < s.lanes && cell.column < num_columns, cell.lane, cell.column);
          CHECK(cells.emplace(cell.lane, cell.column).second, "twice", cell.lane, cell.column);
        }
      CHECK_EQ(cells.size(), size_t{s.lanes} * num_columns);
    }
}

// CuTe's destination layouts of SM100_TMEM_LOAD (copy_traits_sm100.hpp), as functions of the bit that a thread holds.
void check_figures() {
  const auto cell = [](TmemShape shape, uint32_t thread, uint32_t reg) { return tmem_cell({shape, 32}, thread, reg); };
  for (uint32_t thread = 0; thread < 32; ++thread)
    for (uint32_t reg = 0; reg < 32; ++reg) {
      TmemCell c = cell(TmemShape::x32x32b, thread, reg);
      CHECK(c.lane == thread && c.column == reg);
      // 16x64b: threads ((2, 2, 8)) at lanes 8 * t0 + t2, words t1; repeats two words on.
      c = cell(TmemShape::x16x64b, thread, reg);
      CHECK(c.lane == thread % 2 * 8 + thread / 4 && c.column == thread / 2 % 2 + 2 * reg, "16x64b", thread, reg);
      // 16x128b: four threads share a lane's four words; the second register is eight lanes down.
      c = cell(TmemShape::x16x128b, thread, reg);
      CHECK(c.lane == thread / 4 + reg % 2 * 8 && c.column == thread % 4 + reg / 2 * 4, "16x128b", thread, reg);
      // 16x256b: as the accumulators of mma.m16n8, two neighbours a register pair.
      c = cell(TmemShape::x16x256b, thread, reg);
      CHECK(c.lane == thread / 4 + reg / 2 % 2 * 8 && c.column == thread % 4 * 2 + reg % 2 + reg / 4 * 8, "16x256b",
            thread, reg);
    }
}

struct Registers {
  explicit Registers(uint32_t count) : words(count * 32) {
    for (uint32_t r = 0; r < count; ++r) table.push_back(&words[r * 32]);
  }
  std::vector<uint32_t> words;
  std::vector<uint32_t*> table;
};

void check_round_trips() {
  for (const ShapeCase& s : shapes)
    for (TmemPacking packing : {TmemPacking::none, TmemPacking::packed16}) {
      TmemAccess access{s.shape, 4, packing};
      access.half_split_offset = s.shape == TmemShape::x16x32bx2 ? 24 : 0;
      const uint32_t address = (64 + (s.lanes == 16 ? 16 : 0)) << 16 | 40;
      CHECK_EQ(check_tmem_access(access, address, 6), "");
      std::vector<uint32_t> memory(512 * 128, 0x55555555);
      const TmemView tmem{memory.data()};
      Registers in(tmem_num_registers(access)), out(tmem_num_registers(access));
      for (size_t i = 0; i < in.words.size(); ++i) in.words[i] = static_cast<uint32_t>(i * 2654435761u);
      tmem_store(tmem, access, address, in.table.data());
      tmem_load(tmem, access, address, out.table.data());
      CHECK(in.words == out.words, "shape", static_cast<int>(s.shape), "packed", packing == TmemPacking::packed16);
      size_t num_written = 0;
      for (uint32_t word : memory) num_written += word != 0x55555555;
      CHECK_EQ(num_written, in.words.size() * (packing == TmemPacking::packed16 ? 2 : 1));
      const TmemCell first = tmem_cell(access, 1, 1);
      const uint32_t lane = (address >> 16) + first.lane, column = 40 + first.column;
      if (packing == TmemPacking::none) {
        CHECK_EQ(tmem.at(lane, column), in.table[1][1]);
      } else {
        CHECK_EQ(tmem.at(lane, column), in.table[1][1] & 0xffff);
        CHECK_EQ(tmem.at(lane, column + 1), in.table[1][1] >> 16);
      }
    }
}

void check_access_refusals() {
  const TmemAccess x8{TmemShape::x32x32b, 8};
  CHECK_EQ(check_tmem_access(x8, 32 << 16 | 504, 1), "");
  CHECK_ERROR(check_tmem_access(x8, 32 << 16 | 505, 1), "reaches column 512");
  CHECK_ERROR(check_tmem_access(x8, 0, 1), "want them inside its lanes 32 .. 63");
  CHECK_ERROR(check_tmem_access(x8, 16 << 16, 0), "inside its lanes");
  CHECK_ERROR(check_tmem_access({TmemShape::x32x32b, 3}, 0, 0), "power of two");
  CHECK_ERROR(check_tmem_access({TmemShape::x16x256b, 64}, 0, 0), "up to .x32");
  CHECK_EQ(check_tmem_access({TmemShape::x16x256b, 1}, 16 << 16, 0), "");
  CHECK_ERROR(check_tmem_access({TmemShape::x16x256b, 1}, 8 << 16, 0), "inside its lanes");
  CHECK_ERROR(check_tmem_access({TmemShape::x32x32b, 8, TmemPacking::packed16}, 500, 0), "reaches column 515");
  TmemAccess halves{TmemShape::x16x32bx2, 2};
  halves.half_split_offset = 500;
  CHECK_EQ(check_tmem_access(halves, 10, 0), "");
  CHECK_ERROR(check_tmem_access(halves, 11, 0), "reaches column 512");
  halves.half_split_offset = 0xffffffff;  // the column before the first half's
  CHECK_ERROR(check_tmem_access(halves, 0, 0), "want at most 511");
}

// The lanes that get source row `row`.
std::vector<uint32_t> lanes_of(TmemCopyShape shape, uint32_t row) {
  switch (shape) {
    case TmemCopyShape::x128x256b:
    case TmemCopyShape::x128x128b: return {row};
    case TmemCopyShape::x4x256b: return {row * 32};
    case TmemCopyShape::x64x128b_warpx2_02_13: return {row, row + 64};
    case TmemCopyShape::x64x128b_warpx2_01_23:
      return row < 32 ? std::vector<uint32_t>{row, row + 32} : std::vector<uint32_t>{row + 32, row + 64};
    case TmemCopyShape::x32x128b_warpx4: return {row, row + 32, row + 64, row + 96};
  }
  return {};
}

void check_copies() {
  const struct {
    TmemCopyShape shape;
    uint32_t num_rows, row_bytes;
  } copies[] = {{TmemCopyShape::x128x256b, 128, 32}, {TmemCopyShape::x4x256b, 4, 32},
                {TmemCopyShape::x128x128b, 128, 16}, {TmemCopyShape::x64x128b_warpx2_02_13, 64, 16},
                {TmemCopyShape::x64x128b_warpx2_01_23, 64, 16}, {TmemCopyShape::x32x128b_warpx4, 32, 16}};
  for (const auto& c : copies)
    for (TileSwizzle swizzle : {TileSwizzle::none, TileSwizzle::b128}) {
      const OperandTile tile{swizzle, false, 128, 128, 1, 1024};
      std::vector<uint8_t> smem(64 * 1024);
      for (size_t i = 0; i < smem.size(); ++i) smem[i] = static_cast<uint8_t>(i * 31 ^ i >> 8);
      std::vector<uint32_t> memory(512 * 128, 0xdeadbeef), want = memory;
      const TmemCopy copy{c.shape, TmemDecompression::none, tile.tcgen05_descriptor(1), 300};
      const TmemCopyExtent extent = tmem_copy_extent(copy);
      CHECK(extent.num_rows == c.num_rows && extent.row_bytes == c.row_bytes && extent.num_columns == c.row_bytes / 4);
      CHECK_EQ(check_tmem_copy(copy, Target::sm_100a, static_cast<uint32_t>(smem.size())), "");
      execute_tmem_copy(copy, {smem.data(), static_cast<uint32_t>(smem.size())}, {memory.data()});
      for (uint32_t row = 0; row < c.num_rows; ++row)
        for (uint32_t byte = 0; byte < c.row_bytes; ++byte)
          for (uint32_t lane : lanes_of(c.shape, row)) {
            uint8_t* cell = reinterpret_cast<uint8_t*>(&want[(300 + byte / 4) * 128 + lane]);
            cell[byte % 4] = smem[tile.address(row, 32 + byte)];
          }
      CHECK(memory == want, "copy", static_cast<int>(c.shape), "swizzle", static_cast<int>(swizzle));
    }
}

void check_copy_refusals() {
  const OperandTile tile{TileSwizzle::none, false, 128, 128, 1, 1024};
  TmemCopy copy{TmemCopyShape::x32x128b_warpx4, TmemDecompression::none, tile.tcgen05_descriptor(0), 508};
  CHECK_EQ(check_tmem_copy(copy, Target::sm_100a, 65536), "");
  copy.address = 509;
  CHECK_ERROR(check_tmem_copy(copy, Target::sm_100a, 65536), "pass column 511");
  copy.address = 1 << 16;
  CHECK_ERROR(check_tmem_copy(copy, Target::sm_100a, 65536), "TMEM lane 1");
  copy.address = 0;
  CHECK_ERROR(check_tmem_copy(copy, Target::sm_100a, 1024), "reaches shared address");
  copy.decompression = TmemDecompression::b4x16_p64;
  CHECK_ERROR(check_tmem_copy(copy, Target::sm_100a, 65536), "decompression");
}

}  // namespace

int main() {
  check_bijection();
  check_figures();
  check_round_trips();
  check_access_refusals();
  check_copies();
  check_copy_refusals();
  return check::result();
}
