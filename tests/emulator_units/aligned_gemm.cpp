// SPDX-License-Identifier: Apache-2.0
// The sums of sm_90a's tensor cores: the vector code against the definition in integers. (That the definition is the
// hardware's is shown by tests/truth, with what an H200 computed.)
#include "aligned_gemm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "check.h"
#include "numbers.h"

using namespace opdeck::emu;

namespace {

constexpr uint32_t num_rows = 16, num_cols = 5;

// The definition, for finite terms that are not subnormal.
float defined_sum(const std::vector<float>& a, const std::vector<float>& b, float c, int fraction_bits) {
  int e = c == 0 ? -100000 : std::ilogb(c);
  for (size_t k = 0; k < a.size(); ++k)
    if (a[k] != 0 && b[k] != 0) e = std::max(e, std::ilogb(a[k]) + std::ilogb(b[k]));
  if (e == -100000) return 0;
  e = std::max(e, -101);
  __int128 sum = 0;
  const auto add = [&](double term) { sum += static_cast<int64_t>(std::trunc(std::ldexp(term, fraction_bits - e))); };
  add(c);
  for (size_t k = 0; k < a.size(); ++k) add(static_cast<double>(a[k]) * b[k]);
  const bool negative = sum < 0;
  uint64_t magnitude = static_cast<uint64_t>(negative ? -sum : sum);
  const int kept_bits = std::min(fraction_bits, 23) + 1;
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

void check_problem(const Problem& p, uint32_t fraction_bits, const char* name) {
  std::vector<float> d = p.c;
  gemm_accumulate_aligned({p.a.data(), num_rows, p.b.data(), p.k, p.k}, num_rows, num_cols, d.data(), num_rows,
                          fraction_bits);
  for (uint32_t row = 0; row < num_rows; ++row)
    for (uint32_t col = 0; col < num_cols; ++col) {
      std::vector<float> a, b;
      for (uint32_t k = 0; k < p.k; ++k) {
        a.push_back(p.a[k * num_rows + row]);
        b.push_back(p.b[col * p.k + k]);
      }
      const float want = defined_sum(a, b, p.c[col * num_rows + row], static_cast<int>(fraction_bits));
      CHECK_EQ(d[col * num_rows + row], want, name, "fraction bits", fraction_bits, "row", row, "column", col);
    }
}

template <class Draw>
Problem make_problem(uint32_t k, Draw draw) {
  Problem p{k, {}, {}, {}};
  for (uint32_t i = 0; i < k * num_rows; ++i) p.a.push_back(draw());
  for (uint32_t i = 0; i < k * num_cols; ++i) p.b.push_back(draw());
  for (uint32_t i = 0; i < num_rows * num_cols; ++i) p.c.push_back(draw() * draw());
  return p;
}

void check_random() {
  std::mt19937 rng(5);
  std::normal_distribution<float> normal;
  const auto rounded = [&](float v, NumberFormat f) { return decode(encode(v, {f}), f); };
  for (int i = 0; i < 2000; ++i) {
    for (NumberFormat f : {NumberFormat::f16, NumberFormat::bf16}) {
      check_problem(make_problem(16, [&] { return rounded(normal(rng), f); }), 25, "normal");
      const auto wide = [&] { return rounded(std::ldexp(normal(rng), static_cast<int>(rng() % 24) - 12), f); };
      check_problem(make_problem(16, wide), 25, "wide");
    }
    check_problem(make_problem(8, [&] { return rounded(normal(rng), NumberFormat::tf32); }), 25, "tf32");
    check_problem(make_problem(32, [&] { return rounded(normal(rng), NumberFormat::e4m3); }), 13, "fp8");
    check_problem(make_problem(16, [&] { return rng() % 3 ? 0.0f : rounded(normal(rng), NumberFormat::f16); }), 25,
                  "sparse");
  }
}

// The largest sums there are: every significand full, so 33 bits with the sign.
void check_largest() {
  for (float sign : {1.0f, -1.0f}) {
    Problem p = make_problem(16, [] { return 1.99951171875f; });
    for (float& a : p.a) a *= sign;
    for (float& c : p.c) c = sign * 3.9999997615814209f;
    check_problem(p, 25, "largest");
  }
}

// A small term beside a large one is cut, not rounded; two that cancel leave what was kept.
void check_truncation() {
  const auto sum = [](std::vector<float> a, float c) {
    std::vector<float> panel(a.size() * num_rows), ones(a.size(), 1.0f), d(num_rows, c);
    for (size_t k = 0; k < a.size(); ++k) std::fill_n(panel.begin() + static_cast<long>(k) * num_rows, num_rows, a[k]);
    const uint32_t k = static_cast<uint32_t>(a.size());
    gemm_accumulate_aligned({panel.data(), num_rows, ones.data(), k, k}, num_rows, 1, d.data(), num_rows, 25);
    return d[3];
  };
  CHECK_EQ(sum({0x1p-25f, 0}, 1.0f), 1.0f, "a kept bit below f32's last is cut at the end");
  CHECK_EQ(sum({0x1p-25f, -1.0f}, 1.0f), 0x1p-25f, "and stays if the sum cancels");
  CHECK_EQ(sum({0x1p-26f, -1.0f}, 1.0f), 0.0f, "one further is cut at once");
  CHECK_EQ(sum({-0x1p-25f, 0}, 1.0f), 1 - 0x1p-24f, "towards zero from below");
  CHECK_EQ(sum({0, 0}, 0.0f), 0.0f);
}

void check_not_finite() {
  for (float special : {INFINITY, -INFINITY, std::nanf("")}) {
    Problem p = make_problem(16, [] { return 1.0f; });
    p.a[3 * num_rows + 6] = special;
    std::vector<float> d = p.c;
    gemm_accumulate_aligned({p.a.data(), num_rows, p.b.data(), 16, 16}, num_rows, num_cols, d.data(), num_rows, 25);
    for (uint32_t row = 0; row < num_rows; ++row)
      for (uint32_t col = 0; col < num_cols; ++col) {
        const float got = d[col * num_rows + row];
        if (row != 6) CHECK_EQ(got, 17.0f, row, col);
        if (row == 6) CHECK(std::isnan(special) ? std::isnan(got) : got == special, special, got);
      }
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
