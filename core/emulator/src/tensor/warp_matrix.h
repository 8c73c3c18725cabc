// SPDX-License-Identifier: Apache-2.0
// Warp-level matrix instructions: ldmatrix, stmatrix, mma.sync.
// Called by src/isa. Source: PTX ISA, "ldmatrix", "stmatrix", "Matrix fragments for mma.m16n8k16" and its siblings.
// Limits: ldmatrix/stmatrix .m8n8 .b16; mma.sync .row.col of f16, bf16, tf32, e4m3, e5m2, s8, u8.
#pragma once

#include <cstdint>

#include "numbers.h"
#include "outcome.h"
#include "umma.h"
#include "wgmma.h"

namespace opdeck::emu {

enum class Transpose : uint8_t { no, yes };

// Matrix `matrix_idx` of an m8n8 .x1/.x2/.x4 load or store takes its eight row addresses (16 bytes each, 16-byte
// aligned) from these lanes.
constexpr uint32_t matrix_row_lane(uint32_t matrix_idx, uint32_t row_idx) { return matrix_idx * 8 + row_idx; }

// The 16-bit elements that lane `lane` holds in its register of a matrix: half 0 (low) and 1 (high).
constexpr MatrixCoord matrix_elem(uint32_t lane, uint32_t half, Transpose transpose) {
  return transpose == Transpose::no ? MatrixCoord{lane / 4, lane % 4 * 2 + half}
                                    : MatrixCoord{lane % 4 * 2 + half, lane / 4};
}

// rows[row] holds the 16 bytes of each row of one matrix; registers are the 32 lanes' words.
void load_matrix(const uint16_t (*rows)[8], Transpose transpose, uint32_t* registers);
void store_matrix(const uint32_t* registers, Transpose transpose, uint16_t (*rows)[8]);

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
