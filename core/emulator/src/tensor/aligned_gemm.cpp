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
[[gnu::always_inline]] inline int32_t exponent_of(float value, int32_t min_exponent_of_normals) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value) & 0x7fffffff;
  const int32_t biased = static_cast<int32_t>(bits >> 23);
  if (bits == 0) return zero_exponent;
  return biased == 255 ? not_finite_exponent : std::max(biased - 127, min_exponent_of_normals);
}

[[gnu::always_inline]] inline void exponents_of(const float* values, size_t num_elems, int32_t min_exponent_of_normals,
                                                int32_t* exponents) {
  for (size_t i = 0; i < num_elems; ++i) exponents[i] = exponent_of(values[i], min_exponent_of_normals);
}

struct Exponents {
  int32_t* a;
  int32_t* b;
};

// The arguments of gemm_accumulate_aligned, with room for the exponents.
struct Problem {
  const GemmOperands& operands;
  Exponents exponents;
  uint32_t num_rows, num_cols;
  float* d;
  uint32_t d_stride;
  const AlignedSum& sum;
};

template <uint32_t lanes>
struct Sums : Vectors<lanes> {
  using typename Vectors<lanes>::Floats;
  using typename Vectors<lanes>::Ints;
  using typename Vectors<lanes>::Unsigneds;
  using typename Vectors<lanes>::Doubles;
  using typename Vectors<lanes>::Longs;
  using typename Vectors<lanes>::FloatsAt;
  using typename Vectors<lanes>::IntsAt;

  // exponent_of for each lane of an accumulator; of inf and NaN 128, which is above max_exponent too.
  [[gnu::always_inline]] static Ints exponents_of(Floats values) {
    const Ints bits = reinterpret_cast<Ints>(values) & 0x7fffffff;
    const Ints biased = bits >> 23, normal = biased > 1 ? biased : Ints{} + 1;
    return bits == 0 ? Ints{} + zero_exponent : normal - 127;
  }

  // 2^exponent for exponents of normal numbers.
  [[gnu::always_inline]] static Floats power_of_two(Ints exponent) {
    return reinterpret_cast<Floats>((exponent + 127) << 23);
  }

  // Where an exponent is out of range, and the sum means nothing, terms may be of any size.
  [[gnu::always_inline]] static Ints wrapped_sum(Ints x, Ints y) {
    return reinterpret_cast<Ints>(reinterpret_cast<Unsigneds>(x) + reinterpret_cast<Unsigneds>(y));
  }

  [[gnu::always_inline]] static bool any(Ints mask) {
    uint64_t pairs[lanes / 2], all = 0;
    std::memcpy(pairs, &mask, sizeof(pairs));
    for (uint64_t pair : pairs) all |= pair;
    return all != 0;
  }

  // low + high, truncated towards zero to 24 bits. The sum, of up to 33 bits with its sign, is exact in f64.
  [[gnu::always_inline]] static Floats add_truncated(Ints low, Ints high) {
    constexpr int64_t bits_beyond_f32 = (int64_t{1} << (52 - 23)) - 1;
    const Doubles sum = __builtin_convertvector(low, Doubles) + __builtin_convertvector(high, Doubles);
    return __builtin_convertvector(reinterpret_cast<Doubles>(reinterpret_cast<Longs>(sum) & ~bits_beyond_f32), Floats);
  }

  // `lanes` rows of `cols` columns, from p.d on. Those with e outside [min_exponent, max_exponent] get no meaningful sum;
  // returns whether there are any, but for those with no term other than 0.
  template <uint32_t cols>
  [[gnu::always_inline]] static bool accumulate(const Problem& p, uint32_t row, uint32_t col, float* d) {
    const size_t k_elems = p.operands.k_elems, half = (k_elems + 1) / 2;
    const size_t a_stride = p.operands.a_stride, b_stride = p.operands.b_stride, d_stride = p.d_stride;
    const float* const a = p.operands.a + row;
    const float* const b = p.operands.b + col * b_stride;
    const int32_t* const a_exponents = p.exponents.a + row;
    const int32_t* const b_exponents = p.exponents.b + col * b_stride;

    Floats before[cols], scale[cols];
    Ints e[cols], low[cols], high[cols], beyond = {};
    for (uint32_t c = 0; c < cols; ++c) {
      before[c] = *reinterpret_cast<const FloatsAt*>(d + c * d_stride);
      e[c] = exponents_of(before[c]);
    }
    for (size_t k = 0; k < k_elems; ++k) {
      const Ints of_a = *reinterpret_cast<const IntsAt*>(a_exponents + k * a_stride);
      for (uint32_t c = 0; c < cols; ++c) {
        const Ints product = of_a + b_exponents[c * b_stride + k];
        e[c] = product > e[c] ? product : e[c];
      }
    }
    const Ints fraction = Ints{} + static_cast<int32_t>(p.sum.fraction_bits);
    for (uint32_t c = 0; c < cols; ++c) {
      // By the signs of differences: there are vectors of 64 bytes that GCC 12 compares element by element.
      beyond |= (max_exponent - e[c]) | ((e[c] - min_exponent) & (2 * zero_exponent / 3 - e[c]));
      e[c] = e[c] < min_exponent ? Ints{} + min_exponent : e[c];
      scale[c] = power_of_two(fraction - e[c]);
      low[c] = __builtin_convertvector(before[c] * scale[c], Ints);
      high[c] = Ints{};
    }
    const auto add_terms = [&](size_t k, Ints* sums) __attribute__((always_inline)) {
      const Floats of_a = *reinterpret_cast<const FloatsAt*>(a + k * a_stride);
      for (uint32_t c = 0; c < cols; ++c)
        sums[c] = wrapped_sum(sums[c], __builtin_convertvector(of_a * b[c * b_stride + k] * scale[c], Ints));
    };
    for (size_t k = 0; k < half; ++k) add_terms(k, low);
    for (size_t k = half; k < k_elems; ++k) add_terms(k, high);

    for (uint32_t c = 0; c < cols; ++c) {
      const Ints kept = reinterpret_cast<Ints>(add_truncated(low[c], high[c])) & -(1 << (23 - p.sum.kept_bits));
      *reinterpret_cast<FloatsAt*>(d + c * d_stride) = reinterpret_cast<Floats>(kept) * power_of_two(e[c] - fraction);
    }
    return any(beyond >> 31);
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

template <uint32_t lanes, uint32_t cols>
[[gnu::always_inline]] inline void accumulate_block(const Problem& p, uint32_t row, uint32_t col) {
  float* const d = p.d + size_t{col} * p.d_stride + row;
  float before[cols][lanes];
  for (uint32_t c = 0; c < cols; ++c) std::copy_n(d + size_t{c} * p.d_stride, lanes, before[c]);
  if (!Sums<lanes>::template accumulate<cols>(p, row, col, d)) return;
  for (uint32_t c = 0; c < cols; ++c)
    for (uint32_t i = 0; i < lanes; ++i)
      repair({p.operands, row + i, col + c, before[c][i]}, p.exponents, p.sum, d[size_t{c} * p.d_stride + i]);
}

template <uint32_t lanes>
[[gnu::always_inline]] inline void accumulate_all(const Problem& p) {
  const GemmOperands& in = p.operands;
  exponents_of(in.a, size_t{in.k_elems} * in.a_stride, p.sum.a_min_exponent, p.exponents.a);
  exponents_of(in.b, size_t{p.num_cols} * in.b_stride, p.sum.b_min_exponent, p.exponents.b);
  constexpr uint32_t block_cols = 4;
  const uint32_t whole_cols = p.num_cols / block_cols * block_cols;
  for (uint32_t row = 0; row < p.num_rows; row += lanes) {
    for (uint32_t col = 0; col < whole_cols; col += block_cols) accumulate_block<lanes, block_cols>(p, row, col);
    for (uint32_t col = whole_cols; col < p.num_cols; ++col) accumulate_block<lanes, 1>(p, row, col);
  }
}

#ifdef OPDECK_EMU_AVX2
OPDECK_EMU_AVX2 void accumulate_all_avx2(const Problem& problem) { accumulate_all<8>(problem); }
OPDECK_EMU_AVX512 void accumulate_all_avx512(const Problem& problem) { accumulate_all<16>(problem); }
#endif

}  // namespace

AlignedSum aligned_sum(NumberFormat a, NumberFormat b, Accumulator accumulator) {
  const uint32_t fraction_bits = container_bytes(a) == 1 ? 13 : 25;
  const uint32_t kept_bits = accumulator == Accumulator::f16 ? 23 : std::min(fraction_bits, 23u);
  return {fraction_bits, kept_bits, 1 - format_traits(a).bias, 1 - format_traits(b).bias};
}

void gemm_accumulate_aligned(const GemmOperands& operands, uint32_t num_rows, uint32_t num_cols, float* d,
                             uint32_t d_stride, const AlignedSum& sum) {
  const Scratch<int32_t> a = make_scratch<int32_t>(size_t{operands.k_elems} * operands.a_stride);
  const Scratch<int32_t> b = make_scratch<int32_t>(size_t{num_cols} * operands.b_stride);
  const Problem problem{operands, {a.get(), b.get()}, num_rows, num_cols, d, d_stride, sum};
#ifdef OPDECK_EMU_AVX2
  if (has_avx512()) return accumulate_all_avx512(problem);
  if (has_avx2()) return accumulate_all_avx2(problem);
#endif
  accumulate_all<4>(problem);
}

}  // namespace opdeck::emu
