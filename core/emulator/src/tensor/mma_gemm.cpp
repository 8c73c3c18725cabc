// SPDX-License-Identifier: Apache-2.0
// Small column-major GEMMs; see mma_gemm.h.
#include "mma_gemm.h"

#include <algorithm>

#include "scratch.h"
#include "vector_lanes.h"

namespace opdeck::emu {
namespace {

// One block of vectors * lanes rows and num_cols columns, in registers over all k.
template <uint32_t lanes, uint32_t vectors, uint32_t num_cols>
[[gnu::always_inline]] inline void accumulate_block(const GemmOperands& operands, uint32_t row, uint32_t col, float* d,
                                                    size_t d_stride) {
  using Floats = typename Vectors<lanes>::Floats;
  using FloatsAt = typename Vectors<lanes>::FloatsAt;
  Floats sums[num_cols][vectors];
  float* d_block = d + col * d_stride + row;
  for (uint32_t c = 0; c < num_cols; ++c)
    for (uint32_t v = 0; v < vectors; ++v)
      sums[c][v] = *reinterpret_cast<const FloatsAt*>(d_block + c * d_stride + v * lanes);
  const float* b[num_cols];
  for (uint32_t c = 0; c < num_cols; ++c) b[c] = operands.b + size_t{col + c} * operands.b_stride;
  const float* a_row = operands.a + row;
  for (size_t k = 0; k < operands.k_elems; ++k, a_row += operands.a_stride) {
    Floats a[vectors];
    for (uint32_t v = 0; v < vectors; ++v) a[v] = *reinterpret_cast<const FloatsAt*>(a_row + v * lanes);
    for (uint32_t c = 0; c < num_cols; ++c)
      for (uint32_t v = 0; v < vectors; ++v) sums[c][v] += a[v] * b[c][k];
  }
  for (uint32_t c = 0; c < num_cols; ++c)
    for (uint32_t v = 0; v < vectors; ++v)
      *reinterpret_cast<FloatsAt*>(d_block + c * d_stride + v * lanes) = sums[c][v];
}

template <uint32_t lanes, uint32_t vectors, uint32_t block_cols>
[[gnu::always_inline]] inline void accumulate(const GemmOperands& operands, uint32_t num_rows, uint32_t num_cols,
                                              float* d, uint32_t d_stride) {
  static_assert(gemm_row_block % (vectors * lanes) == 0);
  const uint32_t whole_cols = num_cols / block_cols * block_cols;
  for (uint32_t row = 0; row < num_rows; row += vectors * lanes) {
    for (uint32_t col = 0; col < whole_cols; col += block_cols)
      accumulate_block<lanes, vectors, block_cols>(operands, row, col, d, d_stride);
    for (uint32_t col = whole_cols; col < num_cols; ++col)
      accumulate_block<lanes, vectors, 1>(operands, row, col, d, d_stride);
  }
}

#ifdef OPDECK_EMU_AVX2
OPDECK_EMU_AVX2 void accumulate_avx2(const GemmOperands& operands, uint32_t num_rows, uint32_t num_cols, float* d,
                                     uint32_t d_stride) {
  accumulate<8, 2, 4>(operands, num_rows, num_cols, d, d_stride);
}
OPDECK_EMU_AVX512 void accumulate_avx512(const GemmOperands& operands, uint32_t num_rows, uint32_t num_cols, float* d,
                                         uint32_t d_stride) {
  accumulate<16, 1, 8>(operands, num_rows, num_cols, d, d_stride);
}
#endif

}  // namespace

void gemm_accumulate(const GemmOperands& operands, uint32_t num_rows, uint32_t num_cols, float* d, uint32_t d_stride) {
#ifdef OPDECK_EMU_AVX2
  if (has_avx512()) return accumulate_avx512(operands, num_rows, num_cols, d, d_stride);
  if (has_avx2()) return accumulate_avx2(operands, num_rows, num_cols, d, d_stride);
#endif
  accumulate<4, 2, 4>(operands, num_rows, num_cols, d, d_stride);
}

void gemm_integers(const GemmOperands& operands, uint32_t num_rows, uint32_t num_cols, int32_t* sums) {
  // |product| <= 255 * 255 and k <= 32, so that every partial sum is an integer below 2^24: f32 adds them exactly.
  const Scratch<float> exact = make_scratch<float>(size_t{num_rows} * num_cols);
  std::fill_n(exact.get(), size_t{num_rows} * num_cols, 0.0f);
  gemm_accumulate(operands, num_rows, num_cols, exact.get(), num_rows);
  for (size_t i = 0; i < size_t{num_rows} * num_cols; ++i) sums[i] = static_cast<int32_t>(exact[i]);
}

uint32_t add_s32(uint32_t accumulator, int32_t sum, Overflow overflow) {
  const int64_t exact = int64_t{static_cast<int32_t>(accumulator)} + sum;
  if (overflow == Overflow::wrap) return static_cast<uint32_t>(exact);
  return static_cast<uint32_t>(std::clamp<int64_t>(exact, INT32_MIN, INT32_MAX));
}

}  // namespace opdeck::emu
