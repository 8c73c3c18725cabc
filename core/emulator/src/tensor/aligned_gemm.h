// SPDX-License-Identifier: Apache-2.0
// Matrix sums in the order and with the roundings of sm_90a's tensor cores. Called by wgmma.cpp.
//
// Source: fitted to an H200 (November 2026). For each element of D, over all K products of the instruction and the
// accumulator at once:
//   e = the largest exponent: of a product exp(a) + exp(b) as its operands store them, so that a subnormal operand
//   counts as the smallest normal one does, and the product of the significands is not normalised either; of the
//   accumulator its own; zeros have none;
//   each term is truncated towards zero to a multiple of 2^(e - fraction_bits), and the multiples are added exactly;
//   for D of f32 the sum is truncated towards zero to min(fraction_bits, 23) bits after its leading one;
//   for D of f16 it is rounded once, to nearest even: of 8-bit floats the exact sum, with no truncation before.
// fraction_bits is 25 for 16-bit and tf32 operands, 13 for 8-bit floats.
// Confirmed by tests/truth, bit for bit: f16, bf16, tf32 and all pairs of e4m3 and e5m2, over normal numbers, exponents
// from -12 to 6, and operands about the smallest normal number; accumulators 0, 1 and various, D of f32 and of f16.
// Limits: whether a sum of f16 operands of more than 24 bits is cut to 24 before it is rounded to f16, as here, makes no
// difference in what was measured; where a term is not finite, or e is above 125, terms are added one by one in f32.
#pragma once

#include <cstdint>

#include "mma_gemm.h"
#include "numbers.h"
#include "umma.h"

namespace opdeck::emu {

// The rule's parameters for one kind of wgmma.
struct AlignedSum {
  uint32_t fraction_bits;                  // of a term, after the largest exponent
  uint32_t kept_bits;                      // of the sum, after its leading one: at most 23
  int32_t a_min_exponent, b_min_exponent;  // of the operands' normal numbers
};
AlignedSum aligned_sum(NumberFormat a, NumberFormat b, Accumulator accumulator);

// d[col * d_stride + row] = the sum above, not yet rounded to f16 where D is that; num_rows is a multiple of
// gemm_row_block, k_elems at most 32.
void gemm_accumulate_aligned(const GemmOperands& operands, uint32_t num_rows, uint32_t num_cols, float* d,
                             uint32_t d_stride, const AlignedSum& sum);

}  // namespace opdeck::emu
