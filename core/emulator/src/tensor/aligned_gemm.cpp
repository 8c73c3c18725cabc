// SPDX-License-Identifier: Apache-2.0
// Sums of sm_90a's tensor cores; see aligned_gemm.h. All multiples of 2^(e - fraction_bits) fit in 32-bit integers: a
// product is below 2^(2 + 25), so that half of K = 16 of them and the accumulator stay below 2^31.
#include "aligned_gemm.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "scratch.h"
#include "vector_lanes.h"

namespace opdeck::emu {
namespace {

// Outside of all others: of 0, and of inf and NaN. Sums of two stay in order.
constexpr int32_t zero_exponent = -1000, not_finite_exponent = 3000;
// Below this 2^(fraction_bits - e) is no f32; above that one a product may be infinite.
constexpr int32_t min_exponent = -101, max_exponent = 125;

// As a format stores it whose normal numbers begin at 2^min_exponent_of_normals: f32's at 2^-126.
int32_t exponent_of(float value, int32_t min_exponent_of_normals) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value) & 0x7fffffff;
  const int32_t biased = static_cast<int32_t>(bits >> 23);
  if (bits == 0) return zero_exponent;
  return biased == 255 ? not_finite_exponent : std::max(biased - 127, min_exponent_of_normals);
}

Scratch<int32_t> exponents_of(const float* values, size_t num_elems, int32_t min_exponent_of_normals) {
  Scratch<int32_t> exponents = make_scratch<int32_t>(num_elems);
  for (size_t i = 0; i < num_elems; ++i) exponents[i] = exponent_of(values[i], min_exponent_of_normals);
  return exponents;
}

struct Exponents {
  const int32_t* a;
  const int32_t* b;
};

template <uint32_t lanes>
struct Sums : Vectors<lanes> {
  using typename Vectors<lanes>::Floats;
  using typename Vectors<lanes>::Ints;
  using typename Vectors<lanes>::Words;
  using typename Vectors<lanes>::FloatsAt;
  using typename Vectors<lanes>::IntsAt;

  // exponent_of for each lane; subnormals of f32 count as the smallest normal number.
  [[gnu::always_inline]] static Ints exponents_of(Floats values) {
    const Ints bits = reinterpret_cast<Ints>(values) & 0x7fffffff;
    const Ints biased = bits >> 23;
    const Ints finite = bits == 0 ? Ints{} + zero_exponent : (biased == 0 ? Ints{} - 126 : biased - 127);
    return biased == 255 ? Ints{} + not_finite_exponent : finite;
  }

  // 2^exponent for exponents of normal numbers.
  [[gnu::always_inline]] static Floats power_of_two(Ints exponent) {
    return reinterpret_cast<Floats>((exponent + 127) << 23);
  }

  [[gnu::always_inline]] static bool any(Ints mask) {
    uint64_t pairs[lanes / 2], all = 0;
    std::memcpy(pairs, &mask, sizeof(pairs));
    for (uint64_t pair : pairs) all |= pair;
    return all != 0;
  }

  // low + high, truncated towards zero to 24 bits. The sum may need 33 bits with its sign.
  [[gnu::always_inline]] static Floats add_truncated(Ints low, Ints high) {
    const Ints negative = (low >> 1) + (high >> 1) + (low & high & 1) < 0;
    const Words sum = reinterpret_cast<Words>(low) + reinterpret_cast<Words>(high);
    const Words sign = reinterpret_cast<Words>(negative);
    const Words magnitude = (sum ^ sign) - sign;
    // Of the last 8 bits those go that the bits above, n of them, push out of 24: n - 16.
    const Floats upper = __builtin_convertvector(reinterpret_cast<Ints>(magnitude >> 8), Floats);
    const Ints excess = (reinterpret_cast<Ints>(upper) >> 23) - 127 - 15;
    const Words mask = ~Words{} << reinterpret_cast<Words>(excess > 0 ? excess : Ints{});
    const Floats lower = __builtin_convertvector(reinterpret_cast<Ints>(magnitude & 255 & mask), Floats);
    return reinterpret_cast<Floats>(reinterpret_cast<Words>(upper * 256 + lower) | (sign & 0x80000000u));
  }

  // `lanes` rows of one column. Those with e outside [min_exponent, max_exponent] get no meaningful sum; returns whether
  // there are any, but for those with no term other than 0.
  [[gnu::always_inline]] static bool accumulate(const GemmOperands& operands, const Exponents& exponents, uint32_t row,
                                                uint32_t col, float* d, const AlignedSum& sum) {
    const size_t k_elems = operands.k_elems, half = (k_elems + 1) / 2;
    const float* a = operands.a + row;
    const float* b = operands.b + size_t{col} * operands.b_stride;
    const int32_t* a_exponents = exponents.a + row;
    const int32_t* b_exponents = exponents.b + size_t{col} * operands.b_stride;

    const Floats before = *reinterpret_cast<const FloatsAt*>(d);
    Ints e = exponents_of(before);
#pragma GCC unroll 4
    for (size_t k = 0; k < k_elems; ++k) {
      const Ints product = *reinterpret_cast<const IntsAt*>(a_exponents + k * operands.a_stride) + b_exponents[k];
      e = product > e ? product : e;
    }
    const Ints beyond = (e > max_exponent) | ((e < min_exponent) & (e > 2 * zero_exponent / 3));
    e = e < min_exponent ? Ints{} + min_exponent : e;

    const Ints fraction = Ints{} + static_cast<int32_t>(sum.fraction_bits);
    const Floats scale = power_of_two(fraction - e);
    Ints low = __builtin_convertvector(before * scale, Ints), high = {};
#pragma GCC unroll 4
    for (size_t k = 0; k < half; ++k)
      low += __builtin_convertvector(*reinterpret_cast<const FloatsAt*>(a + k * operands.a_stride) * b[k] * scale,
                                     Ints);
#pragma GCC unroll 4
    for (size_t k = half; k < k_elems; ++k)
      high += __builtin_convertvector(*reinterpret_cast<const FloatsAt*>(a + k * operands.a_stride) * b[k] * scale,
                                      Ints);

    const Ints kept = reinterpret_cast<Ints>(add_truncated(low, high)) & -(1 << (23 - sum.kept_bits));
    *reinterpret_cast<FloatsAt*>(d) = reinterpret_cast<Floats>(kept) * power_of_two(e - fraction);
    return any(beyond);
  }
};

// One element: its terms, and what d held before.
struct Element {
  const GemmOperands& operands;
  uint32_t row, col;
  float before;

  float term(uint32_t k) const {
    return operands.a[size_t{k} * operands.a_stride + row] * operands.b[size_t{col} * operands.b_stride + k];
  }
  double exact_term(uint32_t k) const {
    return double{operands.a[size_t{k} * operands.a_stride + row]} * operands.b[size_t{col} * operands.b_stride + k];
  }
};

// An element of exponent e below min_exponent: the same sum, in integers of 64 bits.
float sum_of_small(const Element& element, int32_t e, const AlignedSum& sum) {
  const int32_t fraction = static_cast<int32_t>(sum.fraction_bits);
  int64_t total = static_cast<int64_t>(std::ldexp(double{element.before}, fraction - e));
  for (uint32_t k = 0; k < element.operands.k_elems; ++k)
    total += static_cast<int64_t>(std::ldexp(element.exact_term(k), fraction - e));
  uint64_t magnitude = static_cast<uint64_t>(total < 0 ? -total : total);
  // Bits below the kept ones, and those that a subnormal f32 has no place for, are cut.
  const int32_t excess = static_cast<int32_t>(std::bit_width(magnitude)) - static_cast<int32_t>(sum.kept_bits) - 1;
  const int32_t below_f32 = -149 - (e - fraction);
  const int32_t cut = std::clamp(std::max(excess, below_f32), 0, 63);
  magnitude = magnitude >> cut << cut;
  const double value = std::ldexp(static_cast<double>(magnitude), e - fraction);
  return static_cast<float>(total < 0 ? -value : value);
}

// The row of a column, if e is outside of what `accumulate` can do; `element.before` is what d held.
void repair(const Element& element, const Exponents& exponents, const AlignedSum& sum, float& d) {
  const int32_t* b_exponents = exponents.b + size_t{element.col} * element.operands.b_stride;
  int32_t e = exponent_of(element.before, -126);
  float in_order = element.before;
  for (uint32_t k = 0; k < element.operands.k_elems; ++k) {
    e = std::max(e, exponents.a[size_t{k} * element.operands.a_stride + element.row] + b_exponents[k]);
    in_order += element.term(k);
  }
  if (e > max_exponent) d = in_order;
  if (e < min_exponent && e > 2 * zero_exponent / 3) d = sum_of_small(element, e, sum);
}

// The arguments of gemm_accumulate_aligned, with the exponents.
struct Problem {
  const GemmOperands& operands;
  Exponents exponents;
  uint32_t num_rows, num_cols;
  float* d;
  uint32_t d_stride;
  const AlignedSum& sum;
};

template <uint32_t lanes>
[[gnu::always_inline]] inline void accumulate_all(const Problem& p) {
  for (uint32_t row = 0; row < p.num_rows; row += lanes)
    for (uint32_t col = 0; col < p.num_cols; ++col) {
      float* d = p.d + size_t{col} * p.d_stride + row;
      float before[lanes];
      std::copy_n(d, lanes, before);
      if (Sums<lanes>::accumulate(p.operands, p.exponents, row, col, d, p.sum))
        for (uint32_t i = 0; i < lanes; ++i) repair({p.operands, row + i, col, before[i]}, p.exponents, p.sum, d[i]);
    }
}

#ifdef OPDECK_EMU_AVX2
OPDECK_EMU_AVX2 void accumulate_all_avx2(const Problem& problem) { accumulate_all<8>(problem); }
#endif

}  // namespace

AlignedSum aligned_sum(NumberFormat a, NumberFormat b, Accumulator accumulator) {
  const uint32_t fraction_bits = container_bytes(a) == 1 ? 13 : 25;
  const uint32_t kept_bits = accumulator == Accumulator::f16 ? 23 : std::min(fraction_bits, 23u);
  return {fraction_bits, kept_bits, 1 - format_traits(a).bias, 1 - format_traits(b).bias};
}

void gemm_accumulate_aligned(const GemmOperands& operands, uint32_t num_rows, uint32_t num_cols, float* d,
                             uint32_t d_stride, const AlignedSum& sum) {
  const Scratch<int32_t> a = exponents_of(operands.a, size_t{operands.k_elems} * operands.a_stride, sum.a_min_exponent);
  const Scratch<int32_t> b = exponents_of(operands.b, size_t{num_cols} * operands.b_stride, sum.b_min_exponent);
  const Problem problem{operands, {a.get(), b.get()}, num_rows, num_cols, d, d_stride, sum};
#ifdef OPDECK_EMU_AVX2
  if (has_avx2()) return accumulate_all_avx2(problem);
#endif
  accumulate_all<4>(problem);
}

}  // namespace opdeck::emu
