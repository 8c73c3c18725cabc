// SPDX-License-Identifier: Apache-2.0
// Floating-point arithmetic on f32, f32x2 and f64: add, sub, mul, fma, div, min, max, neg, abs, rcp, sqrt, rsqrt and
// the approximate functions. Source: PTX ISA, "Floating Point Instructions". Results of f32 that are NaN are the
// canonical NaN 0x7fffffff, as PTX says. Approximate functions: approx_math.h. Limits: .sat on f32 only; min and max of
// three operands on f32 only.
#include <bit>
#include <cfenv>
#include <cmath>

#include "../tensor/approx_math.h"
#include "../tensor/numbers.h"
#include "arithmetic.h"
#include "lanes.h"

namespace opdeck::emu {
namespace {

enum class FloatMode : uint8_t { plain, ftz, sat, ftz_sat };

struct Float2 {
  float x, y;
};

inline float canonical(float value) { return value != value ? std::bit_cast<float>(0x7fffffffu) : value; }
inline float flushed(float value) { return std::fabs(value) < 0x1p-126f ? std::copysign(0.0f, value) : value; }
inline float saturated(float value) { return value > 0.0f ? (value < 1.0f ? value : 1.0f) : 0.0f; }  // NaN and -0: +0

constexpr bool flushes(FloatMode mode) { return mode == FloatMode::ftz || mode == FloatMode::ftz_sat; }
constexpr bool saturates(FloatMode mode) { return mode >= FloatMode::sat; }

template <FloatMode mode>
inline float input(float value) {
  return flushes(mode) ? flushed(value) : value;
}
template <FloatMode mode>
inline float output(float value) {
  value = canonical(value);
  if (flushes(mode)) value = flushed(value);
  if (saturates(mode)) value = saturated(value);
  return value;
}

struct Add {
  static float apply(float a, float b) { return a + b; }
  static double apply(double a, double b) { return a + b; }
};
struct Sub {
  static float apply(float a, float b) { return a - b; }
  static double apply(double a, double b) { return a - b; }
};
struct Mul {
  static float apply(float a, float b) { return a * b; }
  static double apply(double a, double b) { return a * b; }
};
struct Div {
  static float apply(float a, float b) { return a / b; }
  static double apply(double a, double b) { return a / b; }
};

template <class F, FloatMode mode>
Flow binary_f32(Warp& warp, const Op& op) {
  return map_lanes2<float, float, float>(
      warp, op, [](float a, float b) { return output<mode>(F::apply(input<mode>(a), input<mode>(b))); });
}
template <class F, FloatMode mode>
Flow binary_f32x2(Warp& warp, const Op& op) {
  return map_lanes2<Float2, Float2, Float2>(warp, op, [](Float2 a, Float2 b) {
    return Float2{output<mode>(F::apply(input<mode>(a.x), input<mode>(b.x))),
                  output<mode>(F::apply(input<mode>(a.y), input<mode>(b.y)))};
  });
}
template <class F>
Flow binary_f64(Warp& warp, const Op& op) {
  return map_lanes2<double, double, double>(warp, op, [](double a, double b) { return F::apply(a, b); });
}

template <FloatMode mode>
inline float fma_f32(float a, float b, float c) {
  return output<mode>(__builtin_fmaf(input<mode>(a), input<mode>(b), input<mode>(c)));
}
template <FloatMode mode>
Flow fused_f32(Warp& warp, const Op& op) {
  return map_lanes3<float, float, float, float>(warp, op, fma_f32<mode>);
}
template <FloatMode mode>
Flow fused_f32x2(Warp& warp, const Op& op) {
  return map_lanes3<Float2, Float2, Float2, Float2>(warp, op, [](Float2 a, Float2 b, Float2 c) {
    return Float2{fma_f32<mode>(a.x, b.x, c.x), fma_f32<mode>(a.y, b.y, c.y)};
  });
}
inline Flow fused_f64(Warp& warp, const Op& op) {
  return map_lanes3<double, double, double, double>(
      warp, op, [](double a, double b, double c) { return __builtin_fma(a, b, c); });
}

// Runs an operation under another rounding mode of the host: its rows are read and written in between.
template <Execute run, int rounding>
Flow rounded(Warp& warp, const Op& op) {
  const int before = std::fegetround();
  std::fesetround(rounding);
  const Flow flow = run(warp, op);
  std::fesetround(before);
  return flow;
}

template <Execute run>
Execute with_rounding(size_t rounding) {
  switch (rounding) {
    case 1: return &rounded<run, FE_TOWARDZERO>;
    case 2: return &rounded<run, FE_DOWNWARD>;
    case 3: return &rounded<run, FE_UPWARD>;
    default: return vectorised<run>();
  }
}

// rn 0, rz 1, rm 2, rp 3; the default of add, sub and mul is rn.
size_t take_rounding(Decoding& d) {
  constexpr std::string_view kNames[] = {"rn", "rz", "rm", "rp"};
  for (size_t i = 0; i < 4; ++i)
    if (d.take(kNames[i])) return i;
  return 0;
}

FloatMode take_mode(Decoding& d) {
  const bool ftz = d.take("ftz"), sat = d.take("sat");
  return ftz ? (sat ? FloatMode::ftz_sat : FloatMode::ftz) : sat ? FloatMode::sat : FloatMode::plain;
}

void set_operands(Decoding& d, Type type, size_t num_sources) {
  d.require_operands(num_sources + 1);
  d.op.dst = d.destination(0, type_bits(type));
  d.op.a = d.source(1, type_bits(type));
  if (num_sources > 1) d.op.b = d.source(2, type_bits(type));
  if (num_sources > 2) d.op.c = d.source(3, type_bits(type));
}

void check_mode(Decoding& d, Type type, FloatMode mode) {
  if (type == Type::f64 && mode != FloatMode::plain) d.unsupported(".ftz and .sat of f64");
  if (type == Type::f32x2 && saturates(mode)) d.unsupported(".sat of f32x2");
  if (type == Type::f32x2) d.require_target({Target::sm_100a, Target::sm_103a});
}

// The function for a type and mode: Pick::f32<mode>(), f32x2<mode>(), f64().
template <class Pick>
Execute pick_float(Type type, FloatMode mode, size_t rounding) {
  using M = FloatMode;
  if (type == Type::f64) return Pick::f64(rounding);
  if (type == Type::f32x2)
    return mode == M::ftz ? Pick::template f32x2<M::ftz>(rounding) : Pick::template f32x2<M::plain>(rounding);
  switch (mode) {
    case M::plain: return Pick::template f32<M::plain>(rounding);
    case M::ftz: return Pick::template f32<M::ftz>(rounding);
    case M::sat: return Pick::template f32<M::sat>(rounding);
    case M::ftz_sat: return Pick::template f32<M::ftz_sat>(rounding);
  }
  return nullptr;
}

template <class F>
struct PickBinary {
  template <FloatMode mode>
  static Execute f32(size_t rounding) {
    return with_rounding<&binary_f32<F, mode>>(rounding);
  }
  template <FloatMode mode>
  static Execute f32x2(size_t rounding) {
    return with_rounding<&binary_f32x2<F, mode>>(rounding);
  }
  static Execute f64(size_t rounding) { return with_rounding<&binary_f64<F>>(rounding); }
};
struct PickFused {
  template <FloatMode mode>
  static Execute f32(size_t rounding) {
    return with_rounding<&fused_f32<mode>>(rounding);
  }
  template <FloatMode mode>
  static Execute f32x2(size_t rounding) {
    return with_rounding<&fused_f32x2<mode>>(rounding);
  }
  static Execute f64(size_t rounding) { return with_rounding<&fused_f64>(rounding); }
};

// Mixed precision: the f16 or bf16 operands are exact in f32, and the result rounds once.
template <Type half>
inline float widened(uint16_t code) {
  return half == Type::f16 ? decode_f16(code) : decode_bf16(code);
}
template <class F, Type half, FloatMode mode>
Flow mixed_binary(Warp& warp, const Op& op) {
  return map_lanes2<float, uint16_t, float>(
      warp, op, [](uint16_t a, float b) { return output<mode>(F::apply(widened<half>(a), b)); });
}
template <Type half, FloatMode mode>
Flow mixed_fused(Warp& warp, const Op& op) {
  return map_lanes3<float, uint16_t, uint16_t, float>(warp, op, [](uint16_t a, uint16_t b, float c) {
    return output<mode>(__builtin_fmaf(widened<half>(a), widened<half>(b), c));
  });
}
template <class F, Type half>
Execute pick_mixed_binary(FloatMode mode, size_t rounding) {
  return mode == FloatMode::sat ? with_rounding<&mixed_binary<F, half, FloatMode::sat>>(rounding)
                                : with_rounding<&mixed_binary<F, half, FloatMode::plain>>(rounding);
}
template <Type half>
Execute pick_mixed_fused(FloatMode mode, size_t rounding) {
  return mode == FloatMode::sat ? with_rounding<&mixed_fused<half, FloatMode::sat>>(rounding)
                                : with_rounding<&mixed_fused<half, FloatMode::plain>>(rounding);
}

// `.f32.f16` or `.f32.bf16`: the second type, or none. The form has no .ftz.
Type take_mixed_type(Decoding& d, Type type, FloatMode mode) {
  const Type half = type != Type::f32 ? Type::none
                    : d.take("f16")   ? Type::f16
                    : d.take("bf16")  ? Type::bf16
                                      : Type::none;
  if (half == Type::none) return half;
  d.require_target({Target::sm_100a, Target::sm_103a});
  if (flushes(mode)) d.unsupported(".ftz of mixed precision");
  d.op.dst = d.destination(0, 32);
  return half;
}

template <class F>
void decode_mixed_binary(Decoding& d, Type half, FloatMode mode, size_t rounding) {
  d.require_operands(3);
  d.op.a = d.source(1, 16);
  d.op.b = d.source(2, 32);
  d.op.execute = half == Type::f16 ? pick_mixed_binary<F, Type::f16>(mode, rounding)
                                   : pick_mixed_binary<F, Type::bf16>(mode, rounding);
}

template <class F>
void decode_binary(Decoding& d) {
  const size_t rounding = take_rounding(d);
  const FloatMode mode = take_mode(d);
  const Type type = d.take_type_of({Type::f32, Type::f32x2, Type::f64});
  const Type half = std::is_same_v<F, Mul> ? Type::none : take_mixed_type(d, type, mode);
  if (half != Type::none) return decode_mixed_binary<F>(d, half, mode, rounding);
  check_mode(d, type, mode);
  set_operands(d, type, 2);
  d.op.execute = pick_float<PickBinary<F>>(type, mode, rounding);
}

// min and max: the other operand of a NaN, or NaN with .NaN; -0 is below +0.
struct Max {
  static float apply(float a, float b) {
    if (a == b) return std::signbit(a) ? b : a;
    return a > b || b != b ? a : b;
  }
};
struct Min {
  static float apply(float a, float b) {
    if (a == b) return std::signbit(a) ? a : b;
    return a < b || b != b ? a : b;
  }
};
template <class F, bool propagates_nan>
inline float extremum(float a, float b) {
  if (propagates_nan && (a != a || b != b)) return canonical(NAN);
  return canonical(F::apply(a, b));
}
template <class F, bool propagates_nan, FloatMode mode>
Flow extremum2(Warp& warp, const Op& op) {
  return map_lanes2<float, float, float>(
      warp, op, [](float a, float b) { return extremum<F, propagates_nan>(input<mode>(a), input<mode>(b)); });
}
template <class F, bool propagates_nan, FloatMode mode, bool of_magnitudes>
Flow extremum3(Warp& warp, const Op& op) {
  return map_lanes3<float, float, float, float>(warp, op, [](float a, float b, float c) {
    const auto source = [](float x) { return of_magnitudes ? std::fabs(input<mode>(x)) : input<mode>(x); };
    return extremum<F, propagates_nan>(extremum<F, propagates_nan>(source(a), source(b)), source(c));
  });
}
// .abs compares and returns magnitudes; .xorsign gives the result the exclusive or of the signs.
template <class F, bool propagates_nan, FloatMode mode>
Flow extremum_xorsign(Warp& warp, const Op& op) {
  return map_lanes2<float, float, float>(warp, op, [](float a, float b) {
    const float magnitude = extremum<F, propagates_nan>(std::fabs(input<mode>(a)), std::fabs(input<mode>(b)));
    return magnitude != magnitude ? magnitude
                                  : std::copysign(magnitude, std::signbit(a) != std::signbit(b) ? -1.0f : 1.0f);
  });
}
template <class F>
Flow extremum_f64(Warp& warp, const Op& op) {
  return map_lanes2<double, double, double>(warp, op, [](double a, double b) {
    if (a != a) return b;
    if (b != b) return a;
    if (a == b) return std::signbit(a) == std::is_same_v<F, Max> ? b : a;
    return (a > b) == std::is_same_v<F, Max> ? a : b;
  });
}

template <class F, bool propagates_nan, FloatMode mode>
Execute pick_extremum(size_t num_sources, bool abs) {
  if (num_sources == 2)
    return abs ? vectorised<&extremum_xorsign<F, propagates_nan, mode>>()
               : vectorised<&extremum2<F, propagates_nan, mode>>();
  return abs ? vectorised<&extremum3<F, propagates_nan, mode, true>>()
             : vectorised<&extremum3<F, propagates_nan, mode, false>>();
}

template <class F>
void decode_extremum(Decoding& d) {
  const bool ftz = d.take("ftz"), propagates_nan = d.take("NaN"), xorsign = d.take("xorsign"), abs = d.take("abs");
  if (xorsign && !abs) d.unsupported(".xorsign without .abs");
  const Type type = d.take_type_of({Type::f32, Type::f64});
  const size_t num_sources = d.num_operands() == 4 ? 3 : 2;
  if (num_sources == 3) {
    d.require_target({Target::sm_100a, Target::sm_103a});
    if (xorsign || type == Type::f64) d.unsupported("with three operands");
  } else if (abs && !xorsign) {
    d.unsupported(".abs of two operands without .xorsign");
  }
  set_operands(d, type, num_sources);
  if (type == Type::f64) {
    if (ftz || propagates_nan || abs) d.unsupported("modifiers of f64");
    d.op.execute = &extremum_f64<F>;
    return;
  }
  using M = FloatMode;
  d.op.execute = propagates_nan ? (ftz ? pick_extremum<F, true, M::ftz>(num_sources, abs)
                                       : pick_extremum<F, true, M::plain>(num_sources, abs))
                                : (ftz ? pick_extremum<F, false, M::ftz>(num_sources, abs)
                                       : pick_extremum<F, false, M::plain>(num_sources, abs));
}

template <float (*f)(float)>
Flow unary_f32(Warp& warp, const Op& op) {
  return map_lanes<float, float>(warp, op, [](float a) { return f(a); });
}
template <double (*f)(double)>
Flow unary_f64(Warp& warp, const Op& op) {
  return map_lanes<double, double>(warp, op, [](double a) { return f(a); });
}

float negate(float a) { return canonical(std::bit_cast<float>(std::bit_cast<uint32_t>(a) ^ 0x80000000u)); }
float magnitude(float a) { return canonical(std::bit_cast<float>(std::bit_cast<uint32_t>(a) & 0x7fffffffu)); }
float negate_ftz(float a) { return flushed(negate(a)); }
float magnitude_ftz(float a) { return flushed(magnitude(a)); }
double negate_f64(double a) { return -a; }
double magnitude_f64(double a) { return std::fabs(a); }

template <Execute plain, Execute ftz, Execute f64>
void decode_sign(Decoding& d) {
  const bool flush = d.take("ftz");
  const Type type = d.take_type_of({Type::f32, Type::f64});
  if (type == Type::f64 && flush) d.unsupported(".ftz of f64");
  set_operands(d, type, 1);
  d.op.execute = type == Type::f64 ? f64 : flush ? ftz : plain;
}

float reciprocal(float a) { return canonical(1.0f / a); }
float reciprocal_ftz(float a) { return canonical(flushed(1.0f / flushed(a))); }
double reciprocal_f64(double a) { return 1.0 / a; }
float square_root(float a) { return canonical(std::sqrt(a)); }
float square_root_ftz(float a) { return canonical(std::sqrt(flushed(a))); }
double square_root_f64(double a) { return std::sqrt(a); }

// The approximate functions, with and without .ftz.
using Approximation = float (*)(float, Subnormals);
template <Approximation f, Subnormals subnormals>
Flow approximate(Warp& warp, const Op& op) {
  return map_lanes<float, float>(warp, op, [](float a) { return canonical(f(a, subnormals)); });
}
template <Approximation f>
void decode_approximation(Decoding& d) {
  if (!d.take("approx")) d.unsupported("without .approx");
  const bool ftz = d.take("ftz");
  set_operands(d, d.take_type_of({Type::f32}), 1);
  d.op.execute = ftz ? vectorised<&approximate<f, Subnormals::flush>>() : vectorised<&approximate<f, Subnormals::keep>>();
}

// rcp and sqrt: approximate, or rounded.
template <Approximation approximation, Execute plain, Execute ftz_form, Execute f64>
void decode_root(Decoding& d) {
  if (d.sees("approx")) return decode_approximation<approximation>(d);
  const size_t rounding = d.take_one_of({"rn", "rz", "rm", "rp"}, "rounding");
  const bool ftz = d.take("ftz");
  const Type type = d.take_type_of({Type::f32, Type::f64});
  if (type == Type::f64 && ftz) d.unsupported(".ftz of f64");
  set_operands(d, type, 1);
  d.op.execute = type == Type::f64 ? with_rounding<f64>(rounding)
                 : ftz             ? with_rounding<ftz_form>(rounding)
                                   : with_rounding<plain>(rounding);
}

// div.approx and div.full are allowed 2 ulp; this rounds correctly. Where |b| is so large that the chip's reciprocal
// is zero (2^126 < |b| < 2^128), div.approx gives zero.
template <bool ftz, bool zero_for_large>
Flow approximate_quotient(Warp& warp, const Op& op) {
  return map_lanes2<float, float, float>(warp, op, [](float a, float b) {
    if (ftz) {
      a = flushed(a);
      b = flushed(b);
    }
    if (zero_for_large && std::fabs(b) > 0x1p126f && std::isfinite(b))
      return std::isinf(a) ? canonical(NAN) : std::copysign(0.0f, std::signbit(a) != std::signbit(b) ? -1.0f : 1.0f);
    const float quotient = canonical(a / b);
    return ftz ? flushed(quotient) : quotient;
  });
}

void set_fused(Decoding& d, Type type, FloatMode mode, size_t rounding) {
  check_mode(d, type, mode);
  set_operands(d, type, 3);
  d.op.execute = pick_float<PickFused>(type, mode, rounding);
}

float tanh_of(float x, Subnormals) { return tanh_approx(x); }

void decode_copysign(Decoding& d) {
  const Type type = d.take_type_of({Type::f32, Type::f64});
  set_operands(d, type, 2);
  // copysign d, a, b: the sign of a on b.
  if (type == Type::f32) {
    d.op.execute = +[](Warp& warp, const Op& op) {
      return map_lanes2<float, float, float>(warp, op, [](float a, float b) { return std::copysign(b, a); });
    };
  } else {
    d.op.execute = +[](Warp& warp, const Op& op) {
      return map_lanes2<double, double, double>(warp, op, [](double a, double b) { return std::copysign(b, a); });
    };
  }
}

}  // namespace

void decode_float_add(Decoding& d) { decode_binary<Add>(d); }
void decode_float_sub(Decoding& d) { decode_binary<Sub>(d); }
void decode_float_mul(Decoding& d) { decode_binary<Mul>(d); }
void decode_float_min(Decoding& d) { decode_extremum<Min>(d); }
void decode_float_max(Decoding& d) { decode_extremum<Max>(d); }
void decode_float_neg(Decoding& d) {
  decode_sign<&unary_f32<negate>, &unary_f32<negate_ftz>, &unary_f64<negate_f64>>(d);
}
void decode_float_abs(Decoding& d) {
  decode_sign<&unary_f32<magnitude>, &unary_f32<magnitude_ftz>, &unary_f64<magnitude_f64>>(d);
}
void decode_float_ex2(Decoding& d) { decode_approximation<ex2_approx>(d); }
void decode_float_tanh(Decoding& d) { decode_approximation<tanh_of>(d); }

void decode_float_fma(Decoding& d) {
  const size_t rounding = d.take_one_of({"rn", "rz", "rm", "rp"}, "rounding");
  const FloatMode mode = take_mode(d);
  const Type type = d.take_type_of({Type::f32, Type::f32x2, Type::f64});
  if (const Type half = take_mixed_type(d, type, mode); half != Type::none) {
    d.require_operands(4);
    d.op.a = d.source(1, 16);
    d.op.b = d.source(2, 16);
    d.op.c = d.source(3, 32);
    d.op.execute =
        half == Type::f16 ? pick_mixed_fused<Type::f16>(mode, rounding) : pick_mixed_fused<Type::bf16>(mode, rounding);
    return;
  }
  set_fused(d, type, mode, rounding);
}

void decode_float_mad(Decoding& d) {
  const size_t rounding = d.take_one_of({"rn", "rz", "rm", "rp"}, "rounding");
  const FloatMode mode = take_mode(d);
  const Type type = d.take_type_of({Type::f32, Type::f64});
  set_fused(d, type, mode, rounding);
}

void decode_float_div(Decoding& d) {
  if (!d.sees("approx") && !d.sees("full")) {
    const size_t rounding = d.take_one_of({"rn", "rz", "rm", "rp", "approx", "full"}, "rounding");
    const FloatMode mode = take_mode(d);
    const Type type = d.take_type_of({Type::f32, Type::f64});
    check_mode(d, type, mode);
    if (saturates(mode)) d.unsupported(".sat of div");
    set_operands(d, type, 2);
    d.op.execute = pick_float<PickBinary<Div>>(type, mode, rounding);
    return;
  }
  const bool approx = d.take("approx");
  if (!approx) d.take("full");
  const bool ftz = d.take("ftz");
  set_operands(d, d.take_type_of({Type::f32}), 2);
  d.op.execute = approx ? (ftz ? &approximate_quotient<true, true> : &approximate_quotient<false, true>)
                        : (ftz ? &approximate_quotient<true, false> : &approximate_quotient<false, false>);
}

void add_float_instructions(InstructionTable& table) {
  table["rcp"] = {
      decode_root<rcp_approx, &unary_f32<reciprocal>, &unary_f32<reciprocal_ftz>, &unary_f64<reciprocal_f64>>,
      manual::kFloat};
  table["sqrt"] = {
      decode_root<sqrt_approx, &unary_f32<square_root>, &unary_f32<square_root_ftz>, &unary_f64<square_root_f64>>,
      manual::kFloat};
  table["rsqrt"] = {decode_approximation<rsqrt_approx>, manual::kFloat};
  table["lg2"] = {decode_approximation<lg2_approx>, manual::kFloat};
  table["sin"] = {decode_approximation<sin_approx>, manual::kFloat};
  table["cos"] = {decode_approximation<cos_approx>, manual::kFloat};
  table["copysign"] = {decode_copysign, manual::kFloat};
}

}  // namespace opdeck::emu
