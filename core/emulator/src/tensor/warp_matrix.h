// SPDX-License-Identifier: Apache-2.0
// Warp-level matrix instructions: ldmatrix, stmatrix, mma.sync.
// Called by src/isa. Source: PTX ISA, "ldmatrix", "stmatrix", "Matrix fragments for mma.m16n8k16" and its siblings.
// Limits: mma.sync .row.col of f16, bf16, tf32, e4m3, e5m2, s8, u8.
#pragma once

#include <cstdint>

#include "numbers.h"
#include "outcome.h"
#include "umma.h"
#include "wgmma.h"

namespace opdeck::emu {

enum class Transpose : uint8_t { no, yes };

// m8n8 of 16 bits; m8n16, m16n16 (loads) and m16n8 (stores) of 8 bits. Rows are those in memory: 16 bytes, 16-byte aligned.
enum class MatrixShape : uint8_t { m8n8, m8n16, m16n16, m16n8 };
constexpr uint32_t matrix_num_rows(MatrixShape shape) { return shape == MatrixShape::m16n16 ? 16 : 8; }
constexpr uint32_t matrix_num_registers(MatrixShape shape) { return shape == MatrixShape::m16n16 ? 2 : 1; }

// The elements of a row of an 8-bit load, from its first byte on: 16 of 8, 6 or 4 bits. The narrow ones have padding
// behind them, and zeros above them in their bytes of a register.
enum class MatrixRow : uint8_t { b8x16, b6x16_p32, b4x16_p64 };
constexpr uint32_t matrix_row_bytes(MatrixRow row) {
  return row == MatrixRow::b8x16 ? 16 : row == MatrixRow::b6x16_p32 ? 12 : 8;
}

// Matrix `matrix_idx` takes its row addresses from these lanes.
constexpr uint32_t matrix_row_lane(MatrixShape shape, uint32_t matrix_idx, uint32_t row_idx) {
  return matrix_idx * matrix_num_rows(shape) + row_idx;
}

// The 16-bit elements that lane `lane` holds in its register of a matrix: half 0 (low) and 1 (high).
constexpr MatrixCoord matrix_elem(uint32_t lane, uint32_t half, Transpose transpose) {
  return transpose == Transpose::no ? MatrixCoord{lane / 4, lane % 4 * 2 + half}
                                    : MatrixCoord{lane % 4 * 2 + half, lane / 4};
}

// rows[row] holds the 16 bytes of each row of one matrix; registers are the 32 lanes' words.
void load_matrix(const uint16_t (*rows)[8], Transpose transpose, uint32_t* registers);
void store_matrix(const uint32_t* registers, Transpose transpose, uint16_t (*rows)[8]);

// The same of 8-bit elements. Four lanes hold a row of m8n16, in their order, and four lanes two columns of m16n16: lane / 4
// in their first registers, that + 8 in the second. m16n8 in registers is the transpose of its eight rows in memory, with
// the fragments of a mma's accumulators.
void expand_matrix_row(MatrixRow format, const uint8_t* row, uint8_t* elems);
void load_matrix_m8n16(const uint8_t (*rows)[16], uint32_t* registers);
void load_matrix_m16n16(const uint8_t (*rows)[16], uint32_t* low_registers, uint32_t* high_registers);
void store_matrix_m16n8(const uint32_t* registers, uint8_t (*rows)[16]);

// mma.sync.aligned.m16n8k{K}.row.col: K is 8 or 16 for 16-bit, 4 or 8 for tf32, 16 or 32 for 8-bit elements.
struct WarpMma {
  NumberFormat a_format = NumberFormat::f16, b_format = NumberFormat::f16;
  Accumulator accumulator = Accumulator::f32;
  uint32_t k_elems = 16;
  bool saturate = false;  // .satfinite of s32
};
Error check_warp_mma(const WarpMma& mma);
uint32_t warp_mma_num_a_registers(const WarpMma& mma);
uint32_t warp_mma_num_b_registers(const WarpMma& mma);
constexpr uint32_t warp_mma_num_d_registers(const WarpMma& mma) { return mma.accumulator == Accumulator::f16 ? 2 : 4; }

// Tables of registers -> 32 consecutive words, one a lane. c and d may be the same.
void execute_warp_mma(const WarpMma& mma, const uint32_t* const* a, const uint32_t* const* b, const uint32_t* const* c,
                      uint32_t* const* d);

}  // namespace opdeck::emu
