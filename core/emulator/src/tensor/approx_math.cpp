// SPDX-License-Identifier: Apache-2.0
// The approximate f32 functions of PTX; see approx_math.h.
#include "approx_math.h"

#include <cmath>
#include <limits>

namespace opdeck::emu {
namespace {

// PTX writes this NaN from f32 arithmetic.
float canonical_nan() { return __builtin_bit_cast(float, 0x7fffffffu); }

// Applies `function` (double to double, with C's special values, which are PTX's here) with the flushes around it.
template <class Function>
float apply(float x, Subnormals subnormals, Function function) {
  if (subnormals == Subnormals::flush) x = ftz(x);
  const double exact = function(static_cast<double>(x));
  if (std::isnan(exact)) return canonical_nan();
  const float result = static_cast<float>(exact);
  return subnormals == Subnormals::flush ? ftz(result) : result;
}

}  // namespace

float lg2_approx(float x, Subnormals s) {
  return apply(x, s, [](double v) { return std::log2(v); });
}
float rcp_approx(float x, Subnormals s) {
  return apply(x, s, [](double v) { return 1.0 / v; });
}
float rsqrt_approx(float x, Subnormals s) {
  return apply(x, s, [](double v) { return 1.0 / std::sqrt(v); });
}
float sqrt_approx(float x, Subnormals s) {
  return apply(x, s, [](double v) { return std::sqrt(v); });
}
float sin_approx(float x, Subnormals s) {
  return apply(x, s, [](double v) { return std::sin(v); });
}
float cos_approx(float x, Subnormals s) {
  return apply(x, s, [](double v) { return std::cos(v); });
}
float tanh_approx(float x) {
  return apply(x, Subnormals::keep, [](double v) { return std::tanh(v); });
}

}  // namespace opdeck::emu
