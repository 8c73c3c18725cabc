// SPDX-License-Identifier: Apache-2.0
// ldmatrix, stmatrix and mma.sync; see warp_matrix.h.
#include "warp_matrix.h"

#include <cstring>

#include "message.h"
#include "mma_gemm.h"

namespace opdeck::emu {
namespace {

constexpr uint32_t m_rows = 16, n_cols = 8, max_k_elems = 32, warp_lanes = 32;

bool is_integer(NumberFormat format) { return format == NumberFormat::s8 || format == NumberFormat::u8; }
bool is_fp8(NumberFormat format) { return format == NumberFormat::e4m3 || format == NumberFormat::e5m2; }

// B: the first of a register's 4 / elem_bytes neighbours along K; col is the column of N.
MatrixCoord b_coord(uint32_t lane, uint32_t register_idx, uint32_t elem_bytes) {
  return {(lane % 4 + register_idx * 4) * (4 / elem_bytes), lane / 4};
}

float read_accumulator(const WarpMma& mma, const uint32_t* const* c, uint32_t lane, uint32_t index) {
  if (mma.accumulator == Accumulator::f32) return __builtin_bit_cast(float, c[index][lane]);
  return decode_f16(static_cast<uint16_t>(c[index / 2][lane] >> index % 2 * 16));
}

// Element index (0 .. 3) of a lane: two neighbours in row lane / 4, two in the row 8 below.
constexpr uint32_t d_index(uint32_t lane, uint32_t elem) {
  const MatrixCoord at = wgmma_d_coord(lane, elem);
  return at.col * m_rows + at.row;
}

void run_float(const WarpMma& mma, const GemmOperands& panels, const uint32_t* const* c, uint32_t* const* d) {
  float sums[m_rows * n_cols];
  for (uint32_t lane = 0; lane < warp_lanes; ++lane)
    for (uint32_t e = 0; e < 4; ++e) sums[d_index(lane, e)] = read_accumulator(mma, c, lane, e);
  gemm_accumulate(panels, m_rows, n_cols, sums, m_rows);
  for (uint32_t lane = 0; lane < warp_lanes; ++lane) {
    if (mma.accumulator == Accumulator::f32) {
      for (uint32_t e = 0; e < 4; ++e) d[e][lane] = __builtin_bit_cast(uint32_t, sums[d_index(lane, e)]);
      continue;
    }
    for (uint32_t r = 0; r < 2; ++r)
      d[r][lane] = encode_f16_rn(sums[d_index(lane, 2 * r)]) |
                   static_cast<uint32_t>(encode_f16_rn(sums[d_index(lane, 2 * r + 1)])) << 16;
  }
}

void run_integer(const WarpMma& mma, const GemmOperands& panels, const uint32_t* const* c, uint32_t* const* d) {
  int32_t sums[m_rows * n_cols];
  gemm_integers(panels, m_rows, n_cols, sums);
  const Overflow overflow = mma.saturate ? Overflow::saturate : Overflow::wrap;
  for (uint32_t lane = 0; lane < warp_lanes; ++lane)
    for (uint32_t e = 0; e < 4; ++e) d[e][lane] = add_s32(c[e][lane], sums[d_index(lane, e)], overflow);
}

}  // namespace

void load_matrix(const uint16_t (*rows)[8], Transpose transpose, uint32_t* registers) {
  for (uint32_t lane = 0; lane < warp_lanes; ++lane) {
    const MatrixCoord low = matrix_elem(lane, 0, transpose), high = matrix_elem(lane, 1, transpose);
    registers[lane] = rows[low.row][low.col] | static_cast<uint32_t>(rows[high.row][high.col]) << 16;
  }
}

void store_matrix(const uint32_t* registers, Transpose transpose, uint16_t (*rows)[8]) {
  for (uint32_t lane = 0; lane < warp_lanes; ++lane) {
    const MatrixCoord low = matrix_elem(lane, 0, transpose), high = matrix_elem(lane, 1, transpose);
    rows[low.row][low.col] = static_cast<uint16_t>(registers[lane]);
    rows[high.row][high.col] = static_cast<uint16_t>(registers[lane] >> 16);
  }
}

void expand_matrix_row(MatrixRow format, const uint8_t* row, uint8_t* elems) {
  const uint32_t bits = matrix_row_bytes(format) / 2;
  for (uint32_t e = 0; e < 16; ++e) {
    const uint32_t first = e * bits, byte = first / 8;
    const uint32_t last = (first + bits - 1) / 8;
    const uint32_t word = row[byte] | static_cast<uint32_t>(row[last]) << 8;
    elems[e] = static_cast<uint8_t>(word >> first % 8 & ((1u << bits) - 1));
  }
}

void load_matrix_m8n16(const uint8_t (*rows)[16], uint32_t* registers) {
  for (uint32_t lane = 0; lane < warp_lanes; ++lane) std::memcpy(&registers[lane], &rows[lane / 4][lane % 4 * 4], 4);
}

void load_matrix_m16n16(const uint8_t (*rows)[16], uint32_t* low_registers, uint32_t* high_registers) {
  for (uint32_t lane = 0; lane < warp_lanes; ++lane) {
    low_registers[lane] = high_registers[lane] = 0;
    for (uint32_t e = 0; e < 4; ++e) {
      const uint8_t* const row = rows[lane % 4 * 4 + e];
      low_registers[lane] |= static_cast<uint32_t>(row[lane / 4]) << 8 * e;
      high_registers[lane] |= static_cast<uint32_t>(row[lane / 4 + 8]) << 8 * e;
    }
  }
}

void store_matrix_m16n8(const uint32_t* registers, uint8_t (*rows)[16]) {
  for (uint32_t lane = 0; lane < warp_lanes; ++lane)
    for (uint32_t e = 0; e < 4; ++e) {
      const MatrixCoord at = wgmma_d_coord(lane, e);
      rows[at.col][at.row] = static_cast<uint8_t>(registers[lane] >> 8 * e);
    }
}

Error check_warp_mma(const WarpMma& mma) {
  const NumberFormat a = mma.a_format, b = mma.b_format;
  const bool same = a == b && (a == NumberFormat::f16 || a == NumberFormat::bf16 || a == NumberFormat::tf32);
  if (!same && !(is_fp8(a) && is_fp8(b)) && !(is_integer(a) && is_integer(b)))
    return message("mma.sync: operand types ", format_name(a), " and ", format_name(b), " are not supported together");
  const uint32_t full_k = 32 / container_bytes(a);
  if (mma.k_elems != full_k && mma.k_elems != full_k / 2)
    return message("mma.sync: K is ", mma.k_elems, " for ", format_name(a), ", want ", full_k / 2, " or ", full_k);
  if (is_integer(a) != (mma.accumulator == Accumulator::s32))
    return message("mma.sync: D of s32 goes with s8 and u8 operands, got ", format_name(a));
  if (mma.accumulator == Accumulator::f16 && (a == NumberFormat::bf16 || a == NumberFormat::tf32))
    return message("mma.sync: D of f16 goes with f16, e4m3 and e5m2 operands, got ", format_name(a));
  if (mma.saturate && mma.accumulator != Accumulator::s32) return "mma.sync: .satfinite without s32";
  return {};
}

uint32_t warp_mma_num_a_registers(const WarpMma& mma) { return mma.k_elems * container_bytes(mma.a_format) / 8; }
uint32_t warp_mma_num_b_registers(const WarpMma& mma) { return mma.k_elems * container_bytes(mma.b_format) / 16; }

void execute_warp_mma(const WarpMma& mma, const uint32_t* const* a, const uint32_t* const* b, const uint32_t* const* c,
                      uint32_t* const* d) {
  float a_panel[max_k_elems * m_rows], b_panel[n_cols * max_k_elems];
  const uint32_t elem_bytes = container_bytes(mma.a_format), per_register = 4 / elem_bytes;
  for (uint32_t lane = 0; lane < warp_lanes; ++lane)
    for (uint32_t e = 0; e < per_register; ++e) {
      const uint32_t shift = e * elem_bytes * 8;
      for (uint32_t r = 0; r < warp_mma_num_a_registers(mma); ++r) {
        const MatrixCoord at = wgmma_a_coord(lane, r, elem_bytes);
        a_panel[(at.col + e) * m_rows + at.row] = decode(a[r][lane] >> shift, mma.a_format);
      }
      for (uint32_t r = 0; r < warp_mma_num_b_registers(mma); ++r) {
        const MatrixCoord at = b_coord(lane, r, elem_bytes);
        b_panel[at.col * mma.k_elems + at.row + e] = decode(b[r][lane] >> shift, mma.b_format);
      }
    }
  const GemmOperands panels{a_panel, m_rows, b_panel, mma.k_elems, mma.k_elems};
  mma.accumulator == Accumulator::s32 ? run_integer(mma, panels, c, d) : run_float(mma, panels, c, d);
}

}  // namespace opdeck::emu
