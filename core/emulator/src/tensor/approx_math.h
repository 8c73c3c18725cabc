// SPDX-License-Identifier: Apache-2.0
// The approximate f32 functions of PTX (ex2, lg2, rcp, rsqrt, sqrt, sin, cos, tanh).
// Called by src/isa. Source: PTX ISA, the tables of special values and errors in each instruction's section.
// Limits: the hardware's bits are not public. These return the correctly rounded value (computed in double),
// so they are inside PTX's stated error bounds, but need not agree with a GPU in the last bits:
// ex2 2 ulp, lg2 2^-22 absolute, rcp 1 ulp, rsqrt 2^-22.9 relative, sqrt 2^-23 relative,
// sin and cos 2^-20.5 absolute in [-pi, pi], tanh 2^-11 relative.
#pragma once

#include <cstdint>

namespace opdeck::emu {

// keep: subnormal inputs and results are kept. flush: both become zero of the same sign (.ftz).
enum class Subnormals : uint8_t { keep, flush };

inline float ftz(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  return (bits & 0x7f800000) == 0 ? __builtin_bit_cast(float, bits & 0x80000000) : value;
}

// 2^x within some 2^-52, by its Taylor series around the nearest integer. Rounded to f32 that is std::exp2's result for
// every f32 with 2^-31 <= |x| < 160 (all of them were compared, November 2026); smaller ones give 1. Without branches,
// so that loops over lanes become vectors.
inline double exp2_of_f32(double x) {
  constexpr double coefficients[] = {
      0x1p+0,                0x1.62e42fefa39efp-1,  0x1.ebfbdff82c58fp-3,  0x1.c6b08d704a0cp-5,   0x1.3b2ab6fba4e77p-7,
      0x1.5d87fe78a6731p-10, 0x1.430912f86c787p-13, 0x1.ffcbfc588b0c7p-17, 0x1.62c0223a5c824p-20, 0x1.b5253d395e7c4p-24,
      0x1.e4cf5158b8ecap-28, 0x1.e8cac7351bb25p-32, 0x1.c3bd650fc2986p-36, 0x1.816193166d0f9p-40};  // ln(2)^i / i!
  constexpr double integer_shift = 0x1.8p52;  // adding it rounds to an integer, which then stands in the low bits
  constexpr double limit = 1000;              // beyond it the result is 0 or infinite in f32
  const double inside = x < -limit ? -limit : x > limit ? limit : x;
  const double shifted = inside + integer_shift;
  const double rest = inside - (shifted - integer_shift);
  double sum = coefficients[13];
#pragma GCC unroll 13
  for (int i = 12; i >= 0; --i) sum = sum * rest + coefficients[i];
  const uint64_t exponent = __builtin_bit_cast(uint64_t, shifted) - __builtin_bit_cast(uint64_t, integer_shift);
  return sum * __builtin_bit_cast(double, (exponent + 1023) << 52);
}

inline float ex2_approx(float x, Subnormals subnormals) {
  const float input = subnormals == Subnormals::flush ? ftz(x) : x;
  const float power = static_cast<float>(exp2_of_f32(input));
  const float result = subnormals == Subnormals::flush ? ftz(power) : power;
  return x != x ? __builtin_bit_cast(float, 0x7fffffffu) : result;
}
float lg2_approx(float x, Subnormals subnormals);
float rcp_approx(float x, Subnormals subnormals);
float rsqrt_approx(float x, Subnormals subnormals);
float sqrt_approx(float x, Subnormals subnormals);
float sin_approx(float x, Subnormals subnormals);
float cos_approx(float x, Subnormals subnormals);
float tanh_approx(float x);  // subnormals are kept

}  // namespace opdeck::emu
