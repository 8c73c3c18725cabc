// SPDX-License-Identifier: Apache-2.0
// Arithmetic and comparison of f16, bf16 and their pairs: add, sub, mul, fma, min, max, neg, abs, ex2, tanh, setp.
// Source: PTX ISA, "Half Precision Floating-Point Instructions". Results are computed exactly (rounded to odd in double
// where they do not fit) and then rounded once.
#include <bit>
#include <cmath>

#include "../tensor/approx_math.h"
#include "../tensor/numbers.h"
#include "arithmetic.h"
#include "half_compare.h"

namespace opdeck::emu {
namespace {

struct HalfDetail {
  NumberFormat format = NumberFormat::f16;
  Conversion conversion;
  bool ftz = false, saturates = false, propagates_nan = false, xorsign = false;
};
const HalfDetail& detail_of(const Op& op) { return *static_cast<const HalfDetail*>(op.detail); }

constexpr uint16_t kCanonicalNan = 0x7fff;
constexpr double kSmallestNormalF16 = 0x1p-14, kSmallestNormalBf16 = 0x1p-126;

double value_of(uint16_t code, const HalfDetail& detail) {
  const double value = detail.format == NumberFormat::f16 ? decode_f16(code) : decode_bf16(code);
  const double smallest = detail.format == NumberFormat::f16 ? kSmallestNormalF16 : kSmallestNormalBf16;
  return detail.ftz && std::fabs(value) < smallest ? std::copysign(0.0, value) : value;
}

uint16_t code_of(double value, const HalfDetail& detail) {
  if (std::isnan(value)) return detail.conversion.clamp == Clamp::relu || !detail.saturates ? kCanonicalNan : 0;
  if (detail.saturates) value = value > 0.0 ? std::min(value, 1.0) : 0.0;
  const auto code = static_cast<uint16_t>(encode(value, detail.conversion));
  return detail.ftz ? static_cast<uint16_t>(encode(value_of(code, detail), detail.conversion)) : code;
}

// a + b where the last bit of an inexact sum is made odd, so that a later rounding to fewer bits is correct.
double add_to_odd(double a, double b) {
  const double sum = a + b;
  if (!std::isfinite(sum)) return sum;
  const double part = sum - a;
  const double error = (a - (sum - part)) + (b - part);
  if (error == 0.0 || (std::bit_cast<uint64_t>(sum) & 1) != 0) return sum;
  return std::nextafter(sum, error > 0.0 ? INFINITY : -INFINITY);
}

struct Add {
  static double apply(double a, double b, double) { return add_to_odd(a, b); }
};
struct Sub {
  static double apply(double a, double b, double) { return add_to_odd(a, -b); }
};
struct Mul {
  static double apply(double a, double b, double) { return a * b; }  // exact
};
struct Fma {
  static double apply(double a, double b, double c) { return add_to_odd(a * b, c); }
};
struct Ex2 {
  static double apply(double a, double, double) { return ex2_approx(static_cast<float>(a), Subnormals::keep); }
};
struct Tanh {
  static double apply(double a, double, double) { return tanh_approx(static_cast<float>(a)); }
};

template <class F, uint32_t num_elems>
Flow arithmetic(Warp& warp, const Op& op) {
  const HalfDetail& detail = detail_of(op);
  const auto* const a = warp.row<uint16_t>(op.a);
  const auto* const b = warp.row<uint16_t>(op.b);
  const auto* const c = warp.row<uint16_t>(op.c);
  auto* const dst = warp.row<uint16_t>(op.dst);
  for_each_lane(warp.mask, [&](uint32_t lane) {
    for (uint32_t e = 0; e < num_elems; ++e) {
      const uint32_t i = lane * num_elems + e;
      dst[i] = code_of(F::apply(value_of(a[i], detail), value_of(b[i], detail), value_of(c[i], detail)), detail);
    }
  });
  return Flow::next;
}

// min and max return one of the operands' codes.
template <bool max>
uint16_t extremum(uint16_t a, uint16_t b, const HalfDetail& detail) {
  double x = value_of(a, detail), y = value_of(b, detail);
  if (std::isnan(x) || std::isnan(y)) {
    if (detail.propagates_nan || (std::isnan(x) && std::isnan(y))) return kCanonicalNan;
    return code_of(std::isnan(x) ? y : x, detail);
  }
  if (!detail.xorsign) {
    const bool first = x == y ? std::signbit(x) != max : max ? x > y : x < y;
    return code_of(first ? x : y, detail);
  }
  const double magnitude = max ? std::max(std::fabs(x), std::fabs(y)) : std::min(std::fabs(x), std::fabs(y));
  return code_of(std::copysign(magnitude, std::signbit(x) != std::signbit(y) ? -1.0 : 1.0), detail);
}
template <bool max, uint32_t num_elems>
Flow extremes(Warp& warp, const Op& op) {
  const HalfDetail& detail = detail_of(op);
  for_each_lane(warp.mask, [&](uint32_t lane) {
    for (uint32_t e = 0; e < num_elems; ++e) {
      const uint32_t i = lane * num_elems + e;
      warp.row<uint16_t>(op.dst)[i] = extremum<max>(warp.row<uint16_t>(op.a)[i], warp.row<uint16_t>(op.b)[i], detail);
    }
  });
  return Flow::next;
}

template <uint16_t flip, uint16_t keep, uint32_t num_elems>
Flow change_sign(Warp& warp, const Op& op) {
  const HalfDetail& detail = detail_of(op);
  for_each_lane(warp.mask, [&](uint32_t lane) {
    for (uint32_t e = 0; e < num_elems; ++e) {
      const uint32_t i = lane * num_elems + e;
      const auto code = static_cast<uint16_t>((warp.row<uint16_t>(op.a)[i] ^ flip) & keep);
      const double value = value_of(code, detail);
      warp.row<uint16_t>(op.dst)[i] = std::isnan(value) ? kCanonicalNan : detail.ftz ? code_of(value, detail) : code;
    }
  });
  return Flow::next;
}

bool is_bf16(Type type) { return type == Type::bf16 || type == Type::bf16x2; }

// Of arithmetic but ex2: bf16 keeps subnormals.
void check_modes(Decoding& d, const HalfDetail& detail, Type type) {
  if (is_bf16(type) && detail.ftz) d.unsupported(".ftz of ." + std::string(type_name(type)));
  if (is_bf16(type) && detail.saturates) d.unsupported(".sat of ." + std::string(type_name(type)));
  if (detail.saturates && detail.conversion.clamp == Clamp::relu) d.unsupported(".relu with .sat");
}

bool is_pair(Type type) { return type == Type::f16x2 || type == Type::bf16x2; }

// Sets the operands of `type` and keeps the detail.
void finish(Decoding& d, HalfDetail detail, Type type, size_t num_sources) {
  detail.format = is_bf16(type) ? NumberFormat::bf16 : NumberFormat::f16;
  detail.conversion.to = detail.format;
  d.require_operands(num_sources + 1);
  const uint32_t bits = type_bits(type);
  d.op.dst = d.destination(0, bits);
  d.op.a = d.op.b = d.op.c = d.source(1, bits);
  if (num_sources > 1) d.op.b = d.source(2, bits);
  if (num_sources > 2) d.op.c = d.source(3, bits);
  d.op.detail = d.keep(detail);
}
constexpr std::initializer_list<Type> kHalfTypes = {Type::f16, Type::f16x2, Type::bf16, Type::bf16x2};

template <class F, size_t num_sources>
void decode_arithmetic(Decoding& d) {
  HalfDetail detail;
  const bool rounds = d.take("rn");
  if (num_sources == 3 && !rounds) d.unsupported("without .rn");
  detail.ftz = d.take("ftz");
  detail.saturates = d.take("sat");
  if (num_sources == 3 && d.take("relu")) detail.conversion.clamp = Clamp::relu;
  const Type type = d.take_type_of(kHalfTypes);
  check_modes(d, detail, type);
  finish(d, detail, type, num_sources);
  d.op.execute = is_pair(type) ? &arithmetic<F, 2> : &arithmetic<F, 1>;
}

template <bool max>
void decode_extremum(Decoding& d) {
  HalfDetail detail;
  detail.ftz = d.take("ftz");
  detail.propagates_nan = d.take("NaN");
  detail.xorsign = d.take("xorsign");
  if (detail.xorsign && !d.take("abs")) d.unsupported(".xorsign without .abs");
  const Type type = d.take_type_of(kHalfTypes);
  check_modes(d, detail, type);
  finish(d, detail, type, 2);
  d.op.execute = is_pair(type) ? &extremes<max, 2> : &extremes<max, 1>;
}

template <uint16_t flip, uint16_t keep>
void decode_sign(Decoding& d) {
  HalfDetail detail;
  detail.ftz = d.take("ftz");
  const Type type = d.take_type_of(kHalfTypes);
  check_modes(d, detail, type);
  finish(d, detail, type, 1);
  d.op.execute = is_pair(type) ? &change_sign<flip, keep, 2> : &change_sign<flip, keep, 1>;
}

template <class F>
void decode_approximation(Decoding& d) {
  HalfDetail detail;
  if (!d.take("approx")) d.unsupported("without .approx");
  detail.ftz = d.take("ftz");
  const Type type = d.take_type_of(kHalfTypes);
  const bool flushes = std::is_same_v<F, Ex2> && is_bf16(type);
  if (detail.ftz != flushes)
    d.unsupported((flushes ? "without .ftz of ." : ".ftz of .") + std::string(type_name(type)));
  finish(d, detail, type, 1);
  d.op.execute = is_pair(type) ? &arithmetic<F, 2> : &arithmetic<F, 1>;
}

template <bool is_f16, Comparison comparison>
Flow compare(Warp& warp, const Op& op) {
  const uint32_t result = lanes_where<uint16_t, uint16_t>(warp, op, [](uint16_t a, uint16_t b) {
    const float x = is_f16 ? decode_f16(a) : decode_bf16(a), y = is_f16 ? decode_f16(b) : decode_bf16(b);
    using C = Comparison;
    switch (comparison) {
      case C::eq: return x == y;
      case C::ne: return x < y || x > y;
      case C::lt: return x < y;
      case C::le: return x <= y;
      case C::gt: return x > y;
      case C::ge: return x >= y;
      case C::equ: return !(x < y || x > y);
      case C::neu: return x != y;
      case C::ltu: return !(x >= y);
      case C::leu: return !(x > y);
      case C::gtu: return !(x <= y);
      case C::geu: return !(x < y);
      case C::num: return x == x && y == y;
      case C::nan: return x != x || y != y;
    }
    return false;
  });
  finish_comparison(warp, op, result);
  return Flow::next;
}

template <bool is_f16, size_t... i>
Execute pick_comparison(Comparison comparison, std::index_sequence<i...>) {
  constexpr Execute kForms[] = {&compare<is_f16, static_cast<Comparison>(i)>...};
  return kForms[static_cast<size_t>(comparison)];
}

}  // namespace

Execute pick_half_comparison(Type type, Comparison comparison) {
  using All = std::make_index_sequence<static_cast<size_t>(Comparison::nan) + 1>;
  return type == Type::f16 ? pick_comparison<true>(comparison, All{}) : pick_comparison<false>(comparison, All{});
}

void decode_half_add(Decoding& d) { decode_arithmetic<Add, 2>(d); }
void decode_half_sub(Decoding& d) { decode_arithmetic<Sub, 2>(d); }
void decode_half_mul(Decoding& d) { decode_arithmetic<Mul, 2>(d); }
void decode_half_fma(Decoding& d) { decode_arithmetic<Fma, 3>(d); }
void decode_half_min(Decoding& d) { decode_extremum<false>(d); }
void decode_half_max(Decoding& d) { decode_extremum<true>(d); }
void decode_half_neg(Decoding& d) { decode_sign<0x8000, 0xffff>(d); }
void decode_half_abs(Decoding& d) { decode_sign<0, 0x7fff>(d); }
void decode_half_ex2(Decoding& d) { decode_approximation<Ex2>(d); }
void decode_half_tanh(Decoding& d) { decode_approximation<Tanh>(d); }

}  // namespace opdeck::emu
