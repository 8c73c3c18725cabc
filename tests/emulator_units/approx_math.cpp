// SPDX-License-Identifier: Apache-2.0
// The approximate functions: PTX's tables of special values, and the error bounds against long double.
#include "approx_math.h"

#include <cmath>
#include <limits>

#include "check.h"

using namespace opdeck::emu;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr Subnormals keep = Subnormals::keep, flush = Subnormals::flush;

bool same(float a, float b) {
  if (std::isnan(b)) return __builtin_bit_cast(uint32_t, a) == 0x7fffffff;
  return __builtin_bit_cast(uint32_t, a) == __builtin_bit_cast(uint32_t, b);
}

void check_specials() {
  const struct {
    float (*function)(float, Subnormals);
    const char* name;
    float at_minus_inf, at_minus_zero, at_zero, at_inf;
  } rows[] = {
      {ex2_approx, "ex2", 0.0f, 1.0f, 1.0f, inf},        {lg2_approx, "lg2", nan, -inf, -inf, inf},
      {rcp_approx, "rcp", -0.0f, -inf, inf, 0.0f},       {rsqrt_approx, "rsqrt", nan, -inf, inf, 0.0f},
      {sqrt_approx, "sqrt", nan, -0.0f, 0.0f, inf},      {sin_approx, "sin", nan, -0.0f, 0.0f, nan},
      {cos_approx, "cos", nan, 1.0f, 1.0f, nan},
  };
  for (const auto& row : rows)
    for (Subnormals s : {keep, flush}) {
      CHECK(same(row.function(-inf, s), row.at_minus_inf), row.name, "of -inf", row.function(-inf, s));
      CHECK(same(row.function(-0.0f, s), row.at_minus_zero), row.name, "of -0", row.function(-0.0f, s));
      CHECK(same(row.function(0.0f, s), row.at_zero), row.name, "of 0", row.function(0.0f, s));
      CHECK(same(row.function(inf, s), row.at_inf), row.name, "of inf", row.function(inf, s));
      CHECK(same(row.function(nan, s), nan), row.name, "of NaN");
    }
  CHECK(same(tanh_approx(-inf), -1.0f));
  CHECK(same(tanh_approx(inf), 1.0f));
  CHECK(same(tanh_approx(-0.0f), -0.0f));
}

void check_subnormals() {
  const float tiny = 0x1p-130f;
  CHECK_EQ(ex2_approx(-130.0f, keep), tiny);
  CHECK(same(ex2_approx(-130.0f, flush), 0.0f));
  CHECK_EQ(lg2_approx(tiny, keep), -130.0f);
  CHECK_EQ(lg2_approx(tiny, flush), -inf);
  CHECK_EQ(rcp_approx(tiny, flush), inf);
  CHECK_EQ(rcp_approx(0x1p127f, keep), 0x1p-127f);
  CHECK(same(rcp_approx(-0x1p127f, flush), -0.0f));
  CHECK_EQ(rsqrt_approx(tiny, keep), 0x1p65f);
  CHECK(same(sqrt_approx(-tiny, flush), -0.0f));
  CHECK(same(sqrt_approx(-tiny, keep), nan));
  CHECK(same(sin_approx(-tiny, flush), -0.0f));
}

void check_bounds() {
  std::mt19937 rng(3);
  std::uniform_real_distribution<float> exponent(-126.0f, 127.0f), positive(0x1p-60f, 0x1p60f);
  std::uniform_real_distribution<float> angle(-3.14159f, 3.14159f);
  for (int i = 0; i < 100000; ++i) {
    const float e = exponent(rng), p = positive(rng), a = angle(rng);
    CHECK(std::fabs(ex2_approx(e, keep) / std::exp2l(e) - 1) <= 2 * 0x1p-23L, "ex2", e);
    CHECK(std::fabs(lg2_approx(p, keep) - std::log2l(p)) <= std::fabs(std::log2l(p)) * 0x1p-22L + 0x1p-22L, "lg2", p);
    CHECK(std::fabs(rcp_approx(p, keep) * static_cast<long double>(p) - 1) <= 0x1p-23L, "rcp", p);
    CHECK(std::fabs(rsqrt_approx(p, keep) * std::sqrt(static_cast<long double>(p)) - 1) <= 0x1p-22L, "rsqrt", p);
    CHECK(std::fabs(sqrt_approx(p, keep) / std::sqrt(static_cast<long double>(p)) - 1) <= 0x1p-23L, "sqrt", p);
    CHECK(std::fabs(sin_approx(a, keep) - std::sin(static_cast<long double>(a))) <= 0x1p-20L, "sin", a);
    CHECK(std::fabs(cos_approx(a, keep) - std::cos(static_cast<long double>(a))) <= 0x1p-20L, "cos", a);
    CHECK(std::fabs(tanh_approx(a) / std::tanh(static_cast<long double>(a)) - 1) <= 0x1p-11L, "tanh", a);
  }
}

}  // namespace

int main() {
  check_specials();
  check_subnormals();
  check_bounds();
  return check::result();
}
