// SPDX-License-Identifier: Apache-2.0
// Matrix sums in the order and with the roundings of sm_90a's tensor cores. Called by wgmma.cpp.
//
// Source: fitted to an H200 (November 2026): 4096 sums each of f16, bf16, tf32 and all pairs of e4m3 and e5m2, of
// random normal operands and accumulator 1, agree bit for bit (tests/truth). For each element of D, over all K products
// of the instruction and the accumulator at once:
//   e = the largest exponent: of a product exp(a) + exp(b), its significand not normalised; of the accumulator its own;
//   each term is truncated towards zero to a multiple of 2^(e - fraction_bits), the multiples are added exactly,
//   and the sum is truncated towards zero to min(fraction_bits, 23) bits after its leading one.
// fraction_bits is 25 for 16-bit and tf32 operands, 13 for 8-bit floats.
// Limits: not known for subnormal operands, nor for sums in f16; sums whose e is below -101 keep fewer bits; where a
// term is not finite, or e is above 125, terms are added one by one in f32.
#pragma once

#include <cstdint>

#include "mma_gemm.h"

namespace opdeck::emu {

constexpr uint32_t aligned_fraction_bits_half = 25;
constexpr uint32_t aligned_fraction_bits_fp8 = 13;

// d[col * d_stride + row] = the sum above; num_rows is a multiple of gemm_row_block, k_elems at most 32.
void gemm_accumulate_aligned(const GemmOperands& operands, uint32_t num_rows, uint32_t num_cols, float* d,
                             uint32_t d_stride, uint32_t fraction_bits);

}  // namespace opdeck::emu
