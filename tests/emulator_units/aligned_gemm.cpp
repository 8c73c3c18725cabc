// SPDX-License-Identifier: Apache-2.0
// The sums of sm_90a's tensor cores: the vector code against the definition in integers. (That the definition is the
// hardware's is shown by tests/truth, with what an H200 computed.)
#include "aligned_gemm.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "check.h"
#include "numbers.h"

using namespace opdeck::emu;

namespace {

constexpr uint32_t num_rows = 16, num_cols = 5;

struct Kind {
  NumberFormat a, b;
  Accumulator accumulator;
};

int smallest_normal_exponent(NumberFormat f) {
  return f == NumberFormat::f16 || f == NumberFormat::e5m2 ? -14 : f == NumberFormat::e4m3 ? -6 : -126;
}

// The definition, for finite terms whose products f32 holds.
float defined_sum(const std::vector<float>& a, const std::vector<float>& b, float c, const Kind& kind) {
  const bool fp8 = kind.a == NumberFormat::e4m3 || kind.a == NumberFormat::e5m2;
  const int fraction_bits = fp8 ? 13 : 25;
  const auto stored = [](float v, NumberFormat f) { return std::max(std::ilogb(v), smallest_normal_exponent(f)); };
  int e = c == 0 ? -100000 : std::ilogb(c);
  for (size_t k = 0; k < a.size(); ++k)
    if (a[k] != 0 && b[k] != 0) e = std::max(e, stored(a[k], kind.a) + stored(b[k], kind.b));
  if (e == -100000) return 0;
  e = std::max(e, -101);
  __int128 sum = 0;
  const auto add = [&](double term) { sum += static_cast<int64_t>(std::trunc(std::ldexp(term, fraction_bits - e))); };
  add(c);
  for (size_t k = 0; k < a.size(); ++k) add(static_cast<double>(a[k]) * b[k]);
  const bool negative = sum < 0;
  uint64_t magnitude = static_cast<uint64_t>(negative ? -sum : sum);
  const int kept_bits = kind.accumulator == Accumulator::f32 && fp8 ? 14 : 24;
  int dropped = 0;
  while (magnitude >> dropped >> kept_bits) ++dropped;
  magnitude = magnitude >> dropped << dropped;
  const double value = std::ldexp(static_cast<double>(magnitude), e - fraction_bits);
  return static_cast<float>(negative ? -value : value);
}

struct Problem {
  uint32_t k;
  std::vector<float> a, b, c;  // [k][row], [col][k], [col][row]
};

void check_problem(const Problem& p, const Kind& kind, const char* name) {
  std::vector<float> d = p.c;
  gemm_accumulate_aligned({p.a.data(), num_rows, p.b.data(), p.k, p.k}, num_rows, num_cols, d.data(), num_rows,
                          aligned_sum(kind.a, kind.b, kind.accumulator));
  for (uint32_t row = 0; row < num_rows; ++row)
    for (uint32_t col = 0; col < num_cols; ++col) {
      std::vector<float> a, b;
      for (uint32_t k = 0; k < p.k; ++k) {
        a.push_back(p.a[k * num_rows + row]);
        b.push_back(p.b[col * p.k + k]);
      }
      const float want = defined_sum(a, b, p.c[col * num_rows + row], kind);
      CHECK_EQ(d[col * num_rows + row], want, name, format_name(kind.a), format_name(kind.b), "row", row,
               "column", col);
    }
}

template <class Draw>
Problem make_problem(const Kind& kind, Draw draw) {
  const uint32_t k = 32 / container_bytes(kind.a);
  const auto rounded = [&](NumberFormat f) { return decode(encode(draw(), {f, Rounding::rn, Saturation::finite}), f); };
  Problem p{k, {}, {}, {}};
  for (uint32_t i = 0; i < k * num_rows; ++i) p.a.push_back(rounded(kind.a));
  for (uint32_t i = 0; i < k * num_cols; ++i) p.b.push_back(rounded(kind.b));
  for (uint32_t i = 0; i < num_rows * num_cols; ++i) p.c.push_back(draw() * draw());
  return p;
}

constexpr Kind half_kind{NumberFormat::f16, NumberFormat::f16, Accumulator::f32};

void check_random() {
  std::mt19937 rng(5);
  std::normal_distribution<float> normal;
  using F = NumberFormat;
  const auto scaled = [&](int low, int high) {
    return std::ldexp(normal(rng), low + static_cast<int>(rng() % static_cast<uint32_t>(high - low)));
  };
  for (const auto& [a, b] : {std::pair{F::f16, F::f16}, {F::bf16, F::bf16}, {F::tf32, F::tf32}, {F::e4m3, F::e4m3},
                             {F::e4m3, F::e5m2}, {F::e5m2, F::e4m3}, {F::e5m2, F::e5m2}})
    for (Accumulator accumulator : {Accumulator::f32, Accumulator::f16})
      for (int i = 0; i < 400; ++i) {
        const Kind kind{a, b, accumulator};
        check_problem(make_problem(kind, [&] { return normal(rng); }), kind, "normal");
        check_problem(make_problem(kind, [&] { return scaled(-12, 12); }), kind, "wide");
        check_problem(make_problem(kind, [&] { return scaled(-20, -4); }), kind, "subnormal");
        check_problem(make_problem(kind, [&] { return rng() % 3 ? 0.0f : normal(rng); }), kind, "sparse");
      }
}

// The largest sums there are: every significand full, so 33 bits with the sign.
void check_largest() {
  for (float sign : {1.0f, -1.0f}) {
    Problem p = make_problem(half_kind, [] { return 1.9990234375f; });
    for (float& a : p.a) a *= sign;
    for (float& c : p.c) c = sign * 3.9999997615814209f;
    check_problem(p, half_kind, "largest");
  }
}

// A small term beside a large one is cut, not rounded; two that cancel leave what was kept.
void check_truncation() {
  const auto sum_of = [](const Kind& kind, std::vector<float> a, float b, float c) {
    std::vector<float> panel(a.size() * num_rows), b_panel(a.size(), b), d(num_rows, c);
    for (size_t k = 0; k < a.size(); ++k) std::fill_n(panel.begin() + static_cast<long>(k) * num_rows, num_rows, a[k]);
    const uint32_t k = static_cast<uint32_t>(a.size());
    gemm_accumulate_aligned({panel.data(), num_rows, b_panel.data(), k, k}, num_rows, 1, d.data(), num_rows,
                            aligned_sum(kind.a, kind.b, kind.accumulator));
    return d[3];
  };
  const auto sum = [&](std::vector<float> a, float c) { return sum_of(half_kind, std::move(a), 1.0f, c); };
  CHECK_EQ(sum({0x1p-25f, 0}, 1.0f), 1.0f, "a kept bit below f32's last is cut at the end");
  CHECK_EQ(sum({0x1p-25f, -1.0f}, 1.0f), 0x1p-25f, "and stays if the sum cancels");
  CHECK_EQ(sum({0x1p-26f, -1.0f}, 1.0f), 0.0f, "one further is cut at once");
  CHECK_EQ(sum({-0x1p-25f, 0}, 1.0f), 1 - 0x1p-24f, "towards zero from below");
  CHECK_EQ(sum({0, 0}, 0.0f), 0.0f);

  // e4m3's subnormal 2^-9 counts as 2^-6: beside its product with 2^8, of 2^-1, a term keeps multiples of 2^(2 - 13).
  const Kind fp8{NumberFormat::e4m3, NumberFormat::e4m3, Accumulator::f32};
  CHECK_EQ(sum_of(fp8, {0x1p-9f}, 0x1p8f, 0x1p-11f), 0x1p-1f + 0x1p-11f, "the last kept bit");
  CHECK_EQ(sum_of(fp8, {0x1p-9f}, 0x1p8f, 0x1p-12f), 0x1p-1f, "one further is cut");
  CHECK_EQ(sum_of(fp8, {0.0f}, 0x1p8f, 0x1p-12f), 0x1p-12f, "a zero has no exponent");
  // Three products of 1 and an accumulator of 2^-13: 15 bits, of which D of f32 keeps 14 and D of f16 all.
  CHECK_EQ(sum_of(fp8, {1, 1, 1}, 1.0f, 0x1p-13f), 3.0f, "D of f32");
  CHECK_EQ(sum_of({fp8.a, fp8.b, Accumulator::f16}, {1, 1, 1}, 1.0f, 0x1p-13f), 3.0f + 0x1p-13f, "D of f16");
}

void check_not_finite() {
  for (float special : {INFINITY, -INFINITY, std::nanf("")}) {
    Problem p = make_problem(half_kind, [] { return 1.0f; });
    p.a[3 * num_rows + 6] = special;
    std::vector<float> d = p.c;
    gemm_accumulate_aligned({p.a.data(), num_rows, p.b.data(), 16, 16}, num_rows, num_cols, d.data(), num_rows,
                            aligned_sum(half_kind.a, half_kind.b, half_kind.accumulator));
    for (uint32_t row = 0; row < num_rows; ++row)
      for (uint32_t col = 0; col < num_cols; ++col) {
        const float got = d[col * num_rows + row];
        if (row != 6) CHECK_EQ(got, 17.0f, row, col);
        if (row == 6) CHECK(std::isnan(special) ? std::isnan(got) : got == special, special, got);
      }
    p.b[3] = 0;
    gemm_accumulate_aligned({p.a.data(), num_rows, p.b.data(), 16, 16}, num_rows, 1, d.data(), num_rows,
                            aligned_sum(half_kind.a, half_kind.b, half_kind.accumulator));
    CHECK(std::isnan(d[6]), special, "times 0");
  }
}

}  // namespace

int main() {
  check_random();
  check_largest();
  check_truncation();
  check_not_finite();
  return check::result();
}
