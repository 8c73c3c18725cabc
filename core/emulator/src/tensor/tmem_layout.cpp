// SPDX-License-Identifier: Apache-2.0
// Register-to-cell maps of tcgen05.ld and tcgen05.st; see tmem_layout.h.
#include "tmem_layout.h"

#include <algorithm>
#include <array>

#include "message.h"

namespace opdeck::emu {
namespace {

struct ShapeTraits {
  const char* name;
  uint32_t lanes;
  uint32_t columns;      // a repeat
  uint32_t registers;    // a thread and repeat
  uint32_t max_repeats;
};
constexpr std::array<ShapeTraits, 5> shape_traits{{
    {"32x32b", 32, 1, 1, 128},
    {"16x64b", 16, 2, 1, 128},
    {"16x128b", 16, 4, 2, 64},
    {"16x256b", 16, 8, 4, 32},
    {"16x32bx2", 16, 1, 1, 128},
}};
const ShapeTraits& traits(TmemShape shape) { return shape_traits[static_cast<size_t>(shape)]; }

constexpr uint32_t num_threads = 32;

// The threads' copies of a register are consecutive lanes of a column: the hot case, a block copy.
bool is_column_a_register(const TmemAccess& access) {
  return access.shape == TmemShape::x32x32b && access.packing == TmemPacking::none;
}

// A packed register covers two columns, so the same registers reach twice the columns.
uint32_t column_factor(const TmemAccess& access) { return access.packing == TmemPacking::packed16 ? 2 : 1; }

// The cell where every register is one column.
TmemCell unpacked_cell(TmemShape shape, uint32_t thread, uint32_t reg) {
  switch (shape) {
    case TmemShape::x32x32b: return {thread, reg};
    case TmemShape::x16x64b: return {thread / 4 + 8 * (thread % 2), thread / 2 % 2 + 2 * reg};
    case TmemShape::x16x128b: return {thread / 4 + 8 * (reg % 2), thread % 4 + 4 * (reg / 2)};
    case TmemShape::x16x256b: return {thread / 4 + 8 * (reg / 2 % 2), 2 * (thread % 4) + reg % 2 + 8 * (reg / 4)};
    case TmemShape::x16x32bx2: return {thread % 16, reg};
  }
  return {};
}

// The second half of the threads of 16x32bx2 sits half_split_offset columns on.
uint32_t split_columns(const TmemAccess& access, uint32_t thread) {
  return access.shape == TmemShape::x16x32bx2 && thread >= 16 ? access.half_split_offset : 0;
}

}  // namespace

uint32_t tmem_num_registers(const TmemAccess& access) { return access.num_repeats * traits(access.shape).registers; }

uint32_t tmem_num_columns(const TmemAccess& access) {
  return access.num_repeats * traits(access.shape).columns * column_factor(access);
}

std::vector<uint32_t> tmem_first_columns(const TmemAccess& access) {
  if (access.shape != TmemShape::x16x32bx2) return {0};
  return {0, access.half_split_offset};
}

uint32_t tmem_num_lanes(TmemShape shape) { return traits(shape).lanes; }

TmemCell tmem_cell(const TmemAccess& access, uint32_t thread_idx, uint32_t register_idx) {
  TmemCell cell = unpacked_cell(access.shape, thread_idx, register_idx);
  cell.column = cell.column * column_factor(access) + split_columns(access, thread_idx);
  return cell;
}

Error check_tmem_access(const TmemAccess& access, uint32_t address, uint32_t warp_idx) {
  const ShapeTraits& t = traits(access.shape);
  const uint32_t n = access.num_repeats;
  if (n == 0 || (n & (n - 1)) != 0 || n > t.max_repeats)
    return message("tcgen05 ", t.name, ": .x", n, ", want a power of two up to .x", t.max_repeats);
  const uint32_t lane = tmem_lane(address), first_lane = warp_idx % 4 * 32;
  if (lane < first_lane || lane + t.lanes > first_lane + 32 || lane % t.lanes != 0)
    return message("tcgen05 ", t.name, ": warp ", warp_idx, " at TMEM lane ", lane, " for ", t.lanes,
                   " lanes, want them inside its lanes ", first_lane, " .. ", first_lane + 31);
  const uint64_t last = uint64_t{tmem_column(address)} + split_columns(access, 31) + tmem_num_columns(access) - 1;
  if (last >= TmemView::num_columns)
    return message("tcgen05 ", t.name, ".x", n, ": TMEM address ", Hex{address}, " reaches column ", last,
                   ", want at most 511");
  return {};
}

void tmem_load(const TmemView& tmem, const TmemAccess& access, uint32_t address, uint32_t* const* registers) {
  const uint32_t base_lane = tmem_lane(address), base_column = tmem_column(address);
  const uint32_t num_registers = tmem_num_registers(access);
  if (is_column_a_register(access)) {
    for (uint32_t reg = 0; reg < num_registers; ++reg)
      std::copy_n(tmem.column(base_column + reg) + base_lane, num_threads, registers[reg]);
    return;
  }
  for (uint32_t reg = 0; reg < num_registers; ++reg)
    for (uint32_t thread = 0; thread < num_threads; ++thread) {
      const TmemCell cell = tmem_cell(access, thread, reg);
      const uint32_t lane = base_lane + cell.lane, column = base_column + cell.column;
      uint32_t value = tmem.at(lane, column);
      if (access.packing == TmemPacking::packed16) value = (value & 0xffff) | tmem.at(lane, column + 1) << 16;
      registers[reg][thread] = value;
    }
}

void tmem_store(const TmemView& tmem, const TmemAccess& access, uint32_t address, const uint32_t* const* registers) {
  const uint32_t base_lane = tmem_lane(address), base_column = tmem_column(address);
  const uint32_t num_registers = tmem_num_registers(access);
  if (is_column_a_register(access)) {
    for (uint32_t reg = 0; reg < num_registers; ++reg)
      std::copy_n(registers[reg], num_threads, tmem.column(base_column + reg) + base_lane);
    return;
  }
  for (uint32_t reg = 0; reg < num_registers; ++reg)
    for (uint32_t thread = 0; thread < num_threads; ++thread) {
      const TmemCell cell = tmem_cell(access, thread, reg);
      const uint32_t lane = base_lane + cell.lane, column = base_column + cell.column;
      const uint32_t value = registers[reg][thread];
      if (access.packing == TmemPacking::none) {
        tmem.at(lane, column) = value;
      } else {
        tmem.at(lane, column) = value & 0xffff;
        tmem.at(lane, column + 1) = value >> 16;
      }
    }
}

}  // namespace opdeck::emu
