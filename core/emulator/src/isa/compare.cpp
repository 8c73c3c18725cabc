// SPDX-License-Identifier: Apache-2.0
// Comparison and selection: setp, selp, slct. Source: PTX ISA, "Comparison and Selection Instructions".
// Half-precision setp is in half.cpp, set in set.cpp.
#include <cmath>

#include "half_compare.h"
#include "lanes.h"
#include "type_dispatch.h"

namespace opdeck::emu {
namespace {

template <Comparison comparison, class T>
inline bool compare(T a, T b) {
  using C = Comparison;
  switch (comparison) {
    case C::eq: return a == b;
    case C::ne: return a < b || a > b;  // false for NaN
    case C::lt: return a < b;
    case C::le: return a <= b;
    case C::gt: return a > b;
    case C::ge: return a >= b;
    case C::equ: return !(a < b || a > b);
    case C::neu: return a != b;
    case C::ltu: return !(a >= b);
    case C::leu: return !(a > b);
    case C::gtu: return !(a <= b);
    case C::geu: return !(a < b);
    case C::num: return a == a && b == b;
    case C::nan: return a != a || b != b;
  }
  return false;
}

inline float flushed(float value) { return std::fabs(value) < 0x1p-126f ? std::copysign(0.0f, value) : value; }

template <Comparison comparison, class T>
uint32_t lanes_comparing(Warp& warp, const Op& op) {
  return lanes_where<T, T>(warp, op, [](T a, T b) { return compare<comparison, T>(a, b); });
}
template <Comparison comparison>
uint32_t lanes_comparing_ftz(Warp& warp, const Op& op) {
  return lanes_where<float, float>(warp, op,
                                   [](float a, float b) { return compare<comparison, float>(flushed(a), flushed(b)); });
}

template <Comparison comparison, class T>
Flow set_plain(Warp& warp, const Op& op) {
  finish_comparison(warp, op, lanes_comparing<comparison, T>(warp, op));
  return Flow::next;
}
template <Comparison comparison>
Flow set_ftz(Warp& warp, const Op& op) {
  finish_comparison(warp, op, lanes_comparing_ftz<comparison>(warp, op));
  return Flow::next;
}

template <Comparison comparison, class T>
Execute pick() {
  return vectorised<&set_plain<comparison, T>>();
}

template <class T>
Execute pick_comparison(Comparison comparison) {
  using C = Comparison;
  switch (comparison) {
    case C::eq: return pick<C::eq, T>();
    case C::ne: return std::is_floating_point_v<T> ? pick<C::ne, T>() : pick<C::neu, T>();
    case C::lt: return pick<C::lt, T>();
    case C::le: return pick<C::le, T>();
    case C::gt: return pick<C::gt, T>();
    case C::ge: return pick<C::ge, T>();
    default: break;
  }
  if constexpr (std::is_floating_point_v<T>) {
    switch (comparison) {
      case C::equ: return pick<C::equ, T>();
      case C::neu: return pick<C::neu, T>();
      case C::ltu: return pick<C::ltu, T>();
      case C::leu: return pick<C::leu, T>();
      case C::gtu: return pick<C::gtu, T>();
      case C::geu: return pick<C::geu, T>();
      case C::num: return pick<C::num, T>();
      case C::nan: return pick<C::nan, T>();
      default: break;
    }
  }
  return nullptr;
}

Execute pick_comparison_ftz(Comparison comparison) {
  using C = Comparison;
  switch (comparison) {
    case C::eq: return &set_ftz<C::eq>;
    case C::ne: return &set_ftz<C::ne>;
    case C::lt: return &set_ftz<C::lt>;
    case C::le: return &set_ftz<C::le>;
    case C::gt: return &set_ftz<C::gt>;
    case C::ge: return &set_ftz<C::ge>;
    case C::equ: return &set_ftz<C::equ>;
    case C::neu: return &set_ftz<C::neu>;
    case C::ltu: return &set_ftz<C::ltu>;
    case C::leu: return &set_ftz<C::leu>;
    case C::gtu: return &set_ftz<C::gtu>;
    case C::geu: return &set_ftz<C::geu>;
    case C::num: return &set_ftz<C::num>;
    case C::nan: return &set_ftz<C::nan>;
  }
  return nullptr;
}

}  // namespace

// Unsigned and untyped comparisons have names of their own: lo, ls, hi, hs.
Comparison take_comparison(Decoding& d) {
  constexpr std::string_view kNames[] = {"eq",  "ne",  "lt",  "le",  "gt",  "ge", "equ", "neu", "ltu",
                                         "leu", "gtu", "geu", "num", "nan", "lo", "ls",  "hi",  "hs"};
  constexpr Comparison kUnsigned[] = {Comparison::lt, Comparison::le, Comparison::gt, Comparison::ge};
  for (size_t i = 0; i < std::size(kNames); ++i)
    if (d.take(kNames[i])) return i < 14 ? static_cast<Comparison>(i) : kUnsigned[i - 14];
  d.unsupported("comparison ." + std::string(d.next_modifier()));
}

void check_comparison(Decoding& d, std::string_view name, Type type) {
  const bool is_equality = name == "eq" || name == "ne";
  const bool is_of_unsigned = name == "lo" || name == "ls" || name == "hi" || name == "hs";
  const bool is_of_floats = name.size() == 3;  // equ, neu, ltu, ..., num, nan
  const bool has_it = is_equality || !(is_bits(type) || (is_of_unsigned && !is_unsigned(type)) ||
                                       (is_of_floats && is_integer(type)));
  if (has_it) return;
  d.unsupported("." + std::string(name) + " of ." + std::string(type_name(type)));
}

namespace {

void decode_setp(Decoding& d) {
  const std::string_view name = d.next_modifier();
  const Comparison comparison = take_comparison(d);
  PredicateCombination combination;
  if (d.take("and"))
    combination.kind = PredicateCombination::Kind::both;
  else if (d.take("or"))
    combination.kind = PredicateCombination::Kind::either;
  else if (d.take("xor"))
    combination.kind = PredicateCombination::Kind::exclusive;
  const bool ftz = d.take("ftz");
  const Type type = d.take_type_of({Type::b16, Type::b32, Type::b64, Type::u16, Type::u32, Type::u64, Type::s16,
                                    Type::s32, Type::s64, Type::f16, Type::bf16, Type::f32, Type::f64});
  check_comparison(d, name, type);
  if (ftz && type != Type::f32) d.unsupported(".ftz of ." + std::string(type_name(type)));
  const bool combined = combination.kind != PredicateCombination::Kind::none;
  d.require_operands(combined ? 4 : 3);
  const ptx::Operand& result = d.operand(0);
  if (result.kind == ptx::Operand::Kind::pair) {
    d.op.dst = d.destination(result.items[0], 1);
    combination.complement_row = d.destination(result.items[1], 1);
    combination.has_complement = true;
  } else {
    d.op.dst = d.destination(0, 1);
  }
  d.op.a = d.source(1, type_bits(type));
  d.op.b = d.source(2, type_bits(type));
  if (combined) {
    ptx::Operand other = d.operand(3);
    combination.negated = other.negated;
    other.negated = false;
    combination.row = d.source(other, 1);
  }
  d.op.detail = d.keep(combination);
  if (ftz && type == Type::f32)
    d.op.execute = pick_comparison_ftz(comparison);
  else if (type == Type::f32)
    d.op.execute = pick_comparison<float>(comparison);
  else if (type == Type::f64)
    d.op.execute = pick_comparison<double>(comparison);
  else if (type == Type::f16 || type == Type::bf16)
    d.op.execute = pick_half_comparison(type, comparison);
  else if (is_bits(type))
    d.op.execute = for_bits(type_bits(type), [&](auto zero) { return pick_comparison<decltype(zero)>(comparison); });
  else
    d.op.execute = for_integer(type, [&](auto zero) { return pick_comparison<decltype(zero)>(comparison); });
  if (d.op.execute == nullptr) d.unsupported("this comparison of ." + std::string(type_name(type)));
}

template <class T>
Flow select(Warp& warp, const Op& op) {
  T* const dst = warp.row<T>(op.dst);
  const T* const a = warp.row<T>(op.a);
  const T* const b = warp.row<T>(op.b);
  const uint32_t chosen = warp.predicate(op.c) ^ static_cast<uint32_t>(op.immediate);
  if (warp.mask == kAllLanes) {
#pragma GCC ivdep
    for (uint32_t i = 0; i < kWarpLanes; ++i) dst[i] = (chosen >> i & 1) != 0 ? a[i] : b[i];
  } else {
    for_each_lane(warp.mask, [&](uint32_t i) { dst[i] = (chosen >> i & 1) != 0 ? a[i] : b[i]; });
  }
  return Flow::next;
}
constexpr std::initializer_list<Type> kSelectedTypes = {Type::b16, Type::b32, Type::b64, Type::u16,
                                                        Type::u32, Type::u64, Type::s16, Type::s32,
                                                        Type::s64, Type::f32, Type::f64};
void decode_selp(Decoding& d) {
  const Type type = d.take_type_of(kSelectedTypes);
  d.require_operands(4);
  d.op.dst = d.destination(0, type_bits(type));
  d.op.a = d.source(1, type_bits(type));
  d.op.b = d.source(2, type_bits(type));
  ptx::Operand chooser = d.operand(3);
  d.op.immediate = chooser.negated ? 0xffffffff : 0;
  chooser.negated = false;
  d.op.c = d.source(chooser, 1);
  d.op.execute = for_bits(type_bits(type), [](auto zero) { return vectorised<&select<decltype(zero)>>(); });
}

// slct: a where c >= 0, else b.
template <class T, class C>
Flow select_by_sign(Warp& warp, const Op& op) {
  return map_lanes3<T, T, T, C>(warp, op, [](T a, T b, C c) { return c >= 0 ? a : b; });
}
void decode_slct(Decoding& d) {
  const Type type = d.take_type_of(kSelectedTypes);
  const Type sign = d.take_type_of({Type::s32, Type::f32});
  d.require_operands(4);
  d.op.dst = d.destination(0, type_bits(type));
  d.op.a = d.source(1, type_bits(type));
  d.op.b = d.source(2, type_bits(type));
  d.op.c = d.source(3, 32);
  d.op.execute = for_bits(type_bits(type), [&](auto zero) -> Execute {
    using T = decltype(zero);
    return sign == Type::s32 ? &select_by_sign<T, int32_t> : &select_by_sign<T, float>;
  });
}

}  // namespace

void add_compare_instructions(InstructionTable& table) {
  table["setp"] = {decode_setp, manual::kComparison};
  table["selp"] = {decode_selp, manual::kComparison};
  table["slct"] = {decode_slct, manual::kComparison};
}

}  // namespace opdeck::emu
