// SPDX-License-Identifier: Apache-2.0
// Logic and shifts: and, or, xor, not, cnot, lop3, shl, shr, shf. Source: PTX ISA, "Logic and Shift Instructions".
#include <algorithm>
#include <type_traits>

#include "decode.h"
#include "lanes.h"
#include "type_dispatch.h"

namespace opdeck::emu {
namespace {

struct And {
  template <class T>
  static T apply(T a, T b) {
    return a & b;
  }
};
struct Or {
  template <class T>
  static T apply(T a, T b) {
    return a | b;
  }
};
struct Xor {
  template <class T>
  static T apply(T a, T b) {
    return a ^ b;
  }
};

template <class F, class T>
Flow binary(Warp& warp, const Op& op) {
  return map_lanes2<T, T, T>(warp, op, [](T a, T b) { return F::template apply<T>(a, b); });
}
template <class F>
Flow binary_predicate(Warp& warp, const Op& op) {
  set_predicate(warp, op.dst, F::apply(warp.predicate(op.a), warp.predicate(op.b)));
  return Flow::next;
}

void set_operands(Decoding& d, Type type, size_t num_sources) {
  d.require_operands(num_sources + 1);
  d.op.dst = d.destination(0, type_bits(type));
  d.op.a = d.source(1, type_bits(type));
  if (num_sources > 1) d.op.b = d.source(2, type_bits(type));
}

template <class F>
void decode_binary(Decoding& d) {
  const Type type = d.take_type_of({Type::pred, Type::b16, Type::b32, Type::b64});
  set_operands(d, type, 2);
  d.op.execute = type == Type::pred
                     ? &binary_predicate<F>
                     : for_bits(type_bits(type), [](auto zero) { return vectorised<&binary<F, decltype(zero)>>(); });
}

template <class T>
Flow invert(Warp& warp, const Op& op) {
  return map_lanes<T, T>(warp, op, [](T a) { return static_cast<T>(~a); });
}
void decode_not(Decoding& d) {
  const Type type = d.take_type_of({Type::pred, Type::b16, Type::b32, Type::b64});
  set_operands(d, type, 1);
  if (type == Type::pred) {
    d.op.execute = +[](Warp& warp, const Op& op) {
      set_predicate(warp, op.dst, ~warp.predicate(op.a));
      return Flow::next;
    };
  } else {
    d.op.execute = for_bits(type_bits(type), [](auto zero) { return vectorised<&invert<decltype(zero)>>(); });
  }
}

template <class T>
Flow is_zero(Warp& warp, const Op& op) {
  return map_lanes<T, T>(warp, op, [](T a) { return static_cast<T>(a == 0 ? 1 : 0); });
}
void decode_cnot(Decoding& d) {
  const Type type = d.take_type_of({Type::b16, Type::b32, Type::b64});
  set_operands(d, type, 1);
  d.op.execute = for_bits(type_bits(type), [](auto zero) -> Execute { return &is_zero<decltype(zero)>; });
}

// The truth table is an immediate: bit (4a + 2b + c) is the result.
Flow lookup3(Warp& warp, const Op& op) {
  const uint32_t table = static_cast<uint32_t>(op.immediate);
  return map_lanes3<uint32_t, uint32_t, uint32_t, uint32_t>(warp, op, [table](uint32_t a, uint32_t b, uint32_t c) {
    uint32_t result = 0;
    for (uint32_t i = 0; i < 8; ++i)
      if ((table >> i & 1) != 0) result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return result;
  });
}
void decode_lop3(Decoding& d) {
  d.take_type_of({Type::b32});
  d.require_operands(5);
  d.op.dst = d.destination(0, 32);
  d.op.a = d.source(1, 32);
  d.op.b = d.source(2, 32);
  d.op.c = d.source(3, 32);
  d.op.immediate = d.immediate(4);
  if (d.op.immediate < 0 || d.op.immediate > 255) d.malformed("the look-up table is not in 0 .. 255");
  d.op.execute = vectorised<&lookup3>();
}

// Shifts by the width or more give zero, or copies of the sign.
template <class T>
Flow shift_left(Warp& warp, const Op& op) {
  return map_lanes2<T, T, uint32_t>(warp, op,
                                    [](T a, uint32_t n) { return n < 8 * sizeof(T) ? static_cast<T>(a << n) : T{0}; });
}
template <class T>
Flow shift_right(Warp& warp, const Op& op) {
  return map_lanes2<T, T, uint32_t>(warp, op, [](T a, uint32_t n) {
    constexpr uint32_t kBits = 8 * sizeof(T);
    if (std::is_signed_v<T>) return static_cast<T>(a >> std::min(n, kBits - 1));
    return n < kBits ? static_cast<T>(a >> n) : T{0};
  });
}
void set_shift_operands(Decoding& d, Type type) {
  d.require_operands(3);
  d.op.dst = d.destination(0, type_bits(type));
  d.op.a = d.source(1, type_bits(type));
  d.op.b = d.source(2, 32);
}
void decode_shl(Decoding& d) {
  const Type type = d.take_type_of({Type::b16, Type::b32, Type::b64});
  set_shift_operands(d, type);
  d.op.execute = for_bits(type_bits(type), [](auto zero) { return vectorised<&shift_left<decltype(zero)>>(); });
}
void decode_shr(Decoding& d) {
  const Type type = d.take_type_of(
      {Type::b16, Type::b32, Type::b64, Type::u16, Type::u32, Type::u64, Type::s16, Type::s32, Type::s64});
  set_shift_operands(d, type);
  d.op.execute = is_signed(type)
                     ? for_integer(type, [](auto zero) { return vectorised<&shift_right<decltype(zero)>>(); })
                     : for_bits(type_bits(type), [](auto zero) { return vectorised<&shift_right<decltype(zero)>>(); });
}

// Funnel shift of the 64 bits {b, a}.
template <bool left, bool clamp>
Flow funnel_shift(Warp& warp, const Op& op) {
  return map_lanes3<uint32_t, uint32_t, uint32_t, uint32_t>(warp, op, [](uint32_t a, uint32_t b, uint32_t c) {
    const uint32_t n = clamp ? std::min(c, 32u) : c & 31;
    const uint64_t both = uint64_t{b} << 32 | a;
    return static_cast<uint32_t>(left ? both << n >> 32 : both >> n);
  });
}
void decode_shf(Decoding& d) {
  const bool left = d.take_one_of({"l", "r"}, "direction") == 0;
  const bool clamp = d.take_one_of({"clamp", "wrap"}, "mode") == 0;
  d.take_type_of({Type::b32});
  d.require_operands(4);
  d.op.dst = d.destination(0, 32);
  d.op.a = d.source(1, 32);
  d.op.b = d.source(2, 32);
  d.op.c = d.source(3, 32);
  d.op.execute = left ? (clamp ? vectorised<&funnel_shift<true, true>>() : vectorised<&funnel_shift<true, false>>())
                      : (clamp ? vectorised<&funnel_shift<false, true>>() : vectorised<&funnel_shift<false, false>>());
}

}  // namespace

void add_logic_instructions(InstructionTable& table) {
  table["and"] = {decode_binary<And>, manual::kLogic};
  table["or"] = {decode_binary<Or>, manual::kLogic};
  table["xor"] = {decode_binary<Xor>, manual::kLogic};
  table["not"] = {decode_not, manual::kLogic};
  table["cnot"] = {decode_cnot, manual::kLogic};
  table["lop3"] = {decode_lop3, manual::kLogic};
  table["shl"] = {decode_shl, manual::kLogic};
  table["shr"] = {decode_shr, manual::kLogic};
  table["shf"] = {decode_shf, manual::kLogic};
}

}  // namespace opdeck::emu
