// SPDX-License-Identifier: Apache-2.0
// Descriptor addresses against CuTe's canonical layouts, and against tiles that TMA wrote.
#include "smem_desc.h"

#include <algorithm>
#include <random>

#include "check.h"
#include "operand_tile.h"
#include "tensor_map_words.h"
#include "tensormap.h"

using namespace opdeck::emu;

namespace {

constexpr uint32_t smem_bytes = 228 * 1024;

const TileSwizzle all_swizzles[] = {TileSwizzle::none, TileSwizzle::b32, TileSwizzle::b64, TileSwizzle::b128,
                                    TileSwizzle::b128_atom32};

// Every byte of every instruction of a tile.
void check_tile(const OperandTile& tile) {
  const Major major = tile.mn_major ? Major::mn : Major::k;
  const uint32_t k_elems = 32 / tile.elem_bytes;
  for (uint32_t step = 0; step < tile.k_bytes / 32; ++step) {
    const auto tcgen05 = decode_tcgen05_descriptor(tile.tcgen05_descriptor(step), Target::sm_100a);
    CHECK(tcgen05.ok(), tcgen05.error);
    const auto wgmma = decode_wgmma_descriptor(tile.wgmma_descriptor(step));
    CHECK(wgmma.ok(), wgmma.error);
    const OperandExtent extent = operand_extent(major, tile.num_rows, 32, k_elems);
    CHECK_EQ(check_operand(tcgen05.value, major, extent, smem_bytes), "");
    for (uint32_t row = 0; row < tile.num_rows; ++row)
      for (uint32_t k = 0; k < k_elems; ++k)
        for (uint32_t byte = 0; byte < tile.elem_bytes; ++byte) {
          const uint32_t want = tile.address(row, step * k_elems + k, byte);
          const uint32_t line = tile.mn_major ? k : row;
          const uint32_t at = (tile.mn_major ? row : k) * tile.elem_bytes + byte;
          CHECK_EQ(operand_address(tcgen05.value, major, line, at), want, "tcgen05 row", row, "k", k, "step", step,
                   "swizzle", static_cast<int>(tile.swizzle), "mn", tile.mn_major);
          if (tile.swizzle != TileSwizzle::b128_atom32)
            CHECK_EQ(operand_address(wgmma.value, major, line, at), want, "wgmma row", row, "k", k, "step", step);
        }
  }
}

void check_canonical_layouts() {
  for (TileSwizzle swizzle : all_swizzles)
    for (bool mn_major : {false, true})
      for (uint32_t elem_bytes : {1u, 2u, 4u}) {
        if (swizzle == TileSwizzle::b128_atom32 && !mn_major) continue;
        check_tile({swizzle, mn_major, 128, 128, elem_bytes, 4096});
        check_tile({swizzle, mn_major, 256, 64, elem_bytes, 1024});
      }
}

// A tile of 2-byte elements that TMA writes box by box (each box one swizzle span wide): every 16-byte piece must be
// where the canonical layout has it, so what a descriptor reads is what the tensor holds.
void check_tma_tile(const OperandTile& tile, uint32_t swizzle_code, uint32_t atom_code) {
  const uint32_t span_elems = tile.span_bytes() / tile.elem_bytes;
  const uint32_t line_elems = tile.line_bytes() / tile.elem_bytes;
  TensorMapWords words;
  words.base = 0x10000;
  words.type = tile.elem_bytes == 2 ? 6 : 7;
  words.swizzle = swizzle_code;
  words.atom = atom_code;
  words.sizes = {line_elems, tile.num_lines()};
  words.strides = {tile.line_bytes()};
  words.box = {span_elems, tile.num_lines()};
  const auto map = decode_tensor_map(words.encode().data());
  CHECK(map.ok(), map.error);
  std::vector<uint64_t> global_of(smem_bytes / 4);  // of each 4-byte word of shared memory
  for (uint32_t box = 0; box < line_elems / span_elems; ++box) {
    const int32_t coords[2] = {static_cast<int32_t>(box * span_elems), 0};
    const uint32_t smem_box = tile.base + box * tile.bytes_stride();
    for_each_run(map.value, coords, [&](const TileRun& run) {
      for_each_piece(map.value.swizzle, smem_box, run, [&](uint32_t address, uint32_t run_byte, uint32_t num_bytes) {
        for (uint32_t b = 0; b < num_bytes; b += 4) global_of[(address + b) / 4] = run.global_address + run_byte + b;
      });
    });
  }
  for (uint32_t line = 0; line < tile.num_lines(); ++line)
    for (uint32_t byte = 0; byte < tile.line_bytes(); byte += 4) {
      const uint32_t elem = byte / tile.elem_bytes;
      const uint32_t address = tile.mn_major ? tile.address(elem, line, byte % tile.elem_bytes)
                                             : tile.address(line, elem, byte % tile.elem_bytes);
      CHECK_EQ(global_of[address / 4], words.base + line * tile.line_bytes() + byte, "line", line, "byte", byte,
               "swizzle", swizzle_code);
    }
}

void check_tma() {
  for (bool mn_major : {false, true}) {
    check_tma_tile({TileSwizzle::b32, mn_major, 128, 128, 2, 2048}, 1, 0);
    check_tma_tile({TileSwizzle::b64, mn_major, 128, 128, 2, 2048}, 2, 0);
    check_tma_tile({TileSwizzle::b128, mn_major, 128, 128, 2, 2048}, 3, 0);
  }
  check_tma_tile({TileSwizzle::b128_atom32, true, 128, 128, 4, 2048}, 3, 1);
}

// K = 96: rows of three 128-byte spans in buffers that do not follow each other; 48 bytes from byte 96 cross over.
void check_absolute_leading_address() {
  const uint32_t buffers[2] = {8192, 32768};
  const uint32_t start = buffers[0] + 96;
  const uint64_t word = uint64_t{start} >> 4 | uint64_t{buffers[1]} >> 4 << 16 | uint64_t{1024} >> 4 << 32 |
                        uint64_t{1} << 46 | uint64_t{1} << 52 | uint64_t{2} << 61;
  CHECK_ERROR(decode_tcgen05_descriptor(word, Target::sm_100a).error, "sm_103a");
  const auto d = decode_tcgen05_descriptor(word, Target::sm_103a);
  CHECK(d.ok(), d.error);
  CHECK_EQ(check_operand(d.value, Major::k, {128, 48}, smem_bytes), "");
  for (uint32_t row = 0; row < 128; ++row)
    for (uint32_t byte = 0; byte < 48; ++byte) {
      const uint32_t at = 96 + byte;  // of the row's 256 bytes in the two buffers
      const uint32_t want = buffers[at / 128] + cute_swizzle(3, 4, 3, row * 128 + at % 128);
      CHECK_EQ(operand_address(d.value, Major::k, row, byte), want, "row", row, "byte", byte);
    }
}

void check_refusals() {
  const OperandTile tile{TileSwizzle::b128, false, 128, 128, 2, 1024};
  const uint64_t good = tile.tcgen05_descriptor(0);
  CHECK_ERROR(decode_tcgen05_descriptor(good & ~(uint64_t{7} << 46), Target::sm_100a).error, "bits [48:46]");
  CHECK_ERROR(decode_tcgen05_descriptor(good | uint64_t{2} << 49, Target::sm_100a).error, "base offset 2");
  CHECK_ERROR(decode_tcgen05_descriptor(good | uint64_t{1} << 53, Target::sm_100a).error, "bits [60:53]");
  CHECK_ERROR(decode_tcgen05_descriptor((good & ~(uint64_t{7} << 61)) | uint64_t{3} << 61, Target::sm_100a).error,
              "swizzle mode is 3");
  CHECK_ERROR(decode_wgmma_descriptor(tile.wgmma_descriptor(0) | uint64_t{1} << 49).error, "base offset 1");
  const SmemDescriptor d = decode_tcgen05_descriptor(good, Target::sm_100a).value;
  CHECK_ERROR(check_operand(d, Major::k, {128, 32}, 16 * 1024), "reaches shared address");
  CHECK_EQ(check_operand(d, Major::k, {128, 32}, 17 * 1024), "");
  SmemDescriptor late = d;
  late.start_bytes += 112;
  CHECK_ERROR(check_operand(late, Major::k, {128, 32}, smem_bytes), "crosses its swizzle span");
  SmemDescriptor atom32 = d;
  atom32.swizzle = Swizzle::b128_atom32;
  CHECK_ERROR(check_operand(atom32, Major::k, {128, 32}, smem_bytes), "MN-major");
}

// Whether an operand is inside shared memory, against all its addresses; the ends of shared memory lie about its own.
void check_bounds() {
  std::mt19937 random(1);
  const auto draw = [&](uint32_t count) { return static_cast<uint32_t>(random() % count); };
  constexpr Swizzle swizzles[] = {Swizzle::none, Swizzle::b32, Swizzle::b64, Swizzle::b128, Swizzle::b128_atom32};
  for (int i = 0; i < 2000; ++i) {
    SmemDescriptor d;
    d.swizzle = swizzles[draw(5)];
    const Major major = d.swizzle == Swizzle::b128_atom32 || draw(2) == 0 ? Major::mn : Major::k;
    const bool in_one_span = major == Major::k && d.swizzle != Swizzle::none;
    d.start_bytes = 32 * (1 + draw(100));
    d.leading_bytes = 16 * draw(100);
    d.stride_bytes = 16 * draw(100);
    const OperandExtent extent{1 + draw(64), in_one_span ? 32 : 16 * (1 + draw(32))};
    uint32_t end = 0;
    for_each_operand_piece(d, major, extent, [&](uint32_t address) { end = std::max(end, address + 16); });
    const auto is_inside = [&](uint32_t bytes) { return check_operand(d, major, extent, bytes).empty(); };
    CHECK(is_inside(end), "swizzle", static_cast<int>(d.swizzle), "lines", extent.num_lines);
    CHECK(!is_inside(end - 1 - draw(200)), "swizzle", static_cast<int>(d.swizzle), "lines", extent.num_lines);
  }
}

}  // namespace

int main() {
  check_canonical_layouts();
  check_tma();
  check_absolute_leading_address();
  check_refusals();
  check_bounds();
  return check::result();
}
