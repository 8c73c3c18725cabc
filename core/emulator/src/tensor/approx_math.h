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

float ftz(float value);

float ex2_approx(float x, Subnormals subnormals);
float lg2_approx(float x, Subnormals subnormals);
float rcp_approx(float x, Subnormals subnormals);
float rsqrt_approx(float x, Subnormals subnormals);
float sqrt_approx(float x, Subnormals subnormals);
float sin_approx(float x, Subnormals subnormals);
float cos_approx(float x, Subnormals subnormals);
float tanh_approx(float x);  // subnormals are kept

}  // namespace opdeck::emu
