// SPDX-License-Identifier: Apache-2.0
// The inner loops of all emulated matrix instructions: small column-major GEMMs on decoded operands.
// Called by umma.cpp, wgmma.cpp and warp_matrix.cpp.
//
// The order of accumulation: for each element of D, d = c, then for k = 0, 1, ... d = fl32(d + a[k] * b[k]). Products
// of two 16-bit, tf32 or narrower floats are exact in f32 (barring its range), so each step rounds once, to nearest
// even, and fused and unfused multiply-add agree: the result is the same on every machine. Hardware's own order is not
// documented (it aligns and truncates the products of a K block), so results agree to rounding, not bit for bit.
#pragma once

#include <cstdint>

namespace opdeck::emu {

// Rows are handled this many at a time: a panel of A is padded to a multiple.
constexpr uint32_t gemm_row_block = 16;

// A decoded operand pair: a[k * a_stride + row], b[col * b_stride + k].
struct GemmOperands {
  const float* a = nullptr;
  uint32_t a_stride = 0;
  const float* b = nullptr;
  uint32_t b_stride = 0;
  uint32_t k_elems = 0;
};

// d[col * d_stride + row] += sum over k, in the order above; num_rows is a multiple of gemm_row_block.
void gemm_accumulate(const GemmOperands& operands, uint32_t num_rows, uint32_t num_cols, float* d,
                     uint32_t d_stride);
// For integer operands (8 bits, decoded to float): sums[col * num_rows + row], which cannot overflow.
void gemm_integers(const GemmOperands& operands, uint32_t num_rows, uint32_t num_cols, int32_t* sums);

// What happens when an s32 accumulator overflows: it wraps, or (.satfinite, saturate bit) stops at its limit.
enum class Overflow : uint8_t { wrap, saturate };
uint32_t add_s32(uint32_t accumulator, int32_t sum, Overflow overflow);

}  // namespace opdeck::emu
