// SPDX-License-Identifier: Apache-2.0
// Small column-major GEMMs; see mma_gemm.h. Vector types of 8 lanes: the compiler splits them where the target's
// registers are narrower; GEMM_CLONES lets an AVX2 machine use whole ones.
#include "mma_gemm.h"

#include <algorithm>

#include "scratch.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define GEMM_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define GEMM_CLONES
#endif

namespace opdeck::emu {
namespace {

constexpr uint32_t vector_lanes = 8;
constexpr uint32_t vectors_per_block = gemm_row_block / vector_lanes;

typedef float Vector __attribute__((vector_size(vector_lanes * sizeof(float))));
// The same at any address of a float, or of the 32-bit words of TMEM.
typedef Vector VectorAt __attribute__((aligned(4), may_alias));

// One block of gemm_row_block rows and num_cols (at most 4) columns, in registers over all k.
template <uint32_t num_cols>
[[gnu::always_inline]] inline void accumulate_block(const GemmOperands& operands, uint32_t row, uint32_t col, float* d,
                                                    size_t d_stride) {
  Vector sums[num_cols][vectors_per_block];
  float* d_block = d + col * d_stride + row;
  for (uint32_t c = 0; c < num_cols; ++c)
    for (uint32_t v = 0; v < vectors_per_block; ++v)
      sums[c][v] = *reinterpret_cast<const VectorAt*>(d_block + c * d_stride + v * vector_lanes);
  const float* b[num_cols];
  for (uint32_t c = 0; c < num_cols; ++c) b[c] = operands.b + size_t{col + c} * operands.b_stride;
  const float* a_row = operands.a + row;
  for (size_t k = 0; k < operands.k_elems; ++k, a_row += operands.a_stride) {
    Vector a[vectors_per_block];
    for (uint32_t v = 0; v < vectors_per_block; ++v)
      a[v] = *reinterpret_cast<const VectorAt*>(a_row + v * vector_lanes);
    for (uint32_t c = 0; c < num_cols; ++c)
      for (uint32_t v = 0; v < vectors_per_block; ++v) sums[c][v] += a[v] * b[c][k];
  }
  for (uint32_t c = 0; c < num_cols; ++c)
    for (uint32_t v = 0; v < vectors_per_block; ++v)
      *reinterpret_cast<VectorAt*>(d_block + c * d_stride + v * vector_lanes) = sums[c][v];
}

}  // namespace

GEMM_CLONES void gemm_accumulate(const GemmOperands& operands, uint32_t num_rows, uint32_t num_cols, float* d,
                                 uint32_t d_stride) {
  const uint32_t whole_cols = num_cols / 4 * 4;
  for (uint32_t row = 0; row < num_rows; row += gemm_row_block) {
    for (uint32_t col = 0; col < whole_cols; col += 4) accumulate_block<4>(operands, row, col, d, d_stride);
    for (uint32_t col = whole_cols; col < num_cols; ++col) accumulate_block<1>(operands, row, col, d, d_stride);
  }
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
