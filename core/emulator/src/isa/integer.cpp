// SPDX-License-Identifier: Apache-2.0
// Integer arithmetic: add, sub, mul, mad, div, rem, min, max, neg, abs, bit counts and bit fields.
// Source: PTX ISA, "Integer Arithmetic Instructions".
// Limits: .sat and packed video forms are not supported. Carries and rarer instructions: extended_integer.cpp.
#include <algorithm>
#include <bit>
#include <type_traits>

#include "arithmetic.h"
#include "decode.h"
#include "lanes.h"
#include "type_dispatch.h"

namespace opdeck::emu {
namespace {

template <class T>
using Wrap = std::make_unsigned_t<T>;  // arithmetic that wraps around, without C++'s undefined overflow

struct Add {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(static_cast<Wrap<T>>(a) + static_cast<Wrap<T>>(b));
  }
};
struct Sub {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(static_cast<Wrap<T>>(a) - static_cast<Wrap<T>>(b));
  }
};
struct MulLow {
  template <class T>
  static T apply(T a, T b) {
    using U = std::conditional_t<sizeof(T) < 4, uint32_t, Wrap<T>>;
    return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
  }
};
struct MulHigh {
  template <class T>
  static T apply(T a, T b) {
    using Wide = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
    return static_cast<T>((static_cast<Wide>(a) * static_cast<Wide>(b)) >> (8 * sizeof(T)));
  }
};
struct Min {
  template <class T>
  static T apply(T a, T b) {
    return a < b ? a : b;
  }
};
struct Max {
  template <class T>
  static T apply(T a, T b) {
    return a < b ? b : a;
  }
};
template <class Base>
struct Relu {
  template <class T>
  static T apply(T a, T b) {
    return Max::apply<T>(Base::template apply<T>(a, b), 0);
  }
};
// PTX leaves division by zero undefined. These give what the chip's code does: all ones, and the dividend.
struct Div {
  template <class T>
  static T apply(T a, T b) {
    if (b == 0) return static_cast<T>(~T{0});
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return Sub::apply<T>(0, a);
    return static_cast<T>(a / b);
  }
};
struct Rem {
  template <class T>
  static T apply(T a, T b) {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
    return static_cast<T>(a % b);
  }
};
struct Negate {
  template <class T>
  static T apply(T a) {
    return Sub::apply<T>(0, a);
  }
};
struct Absolute {
  template <class T>
  static T apply(T a) {
    return a < 0 ? Sub::apply<T>(0, a) : a;
  }
};

template <class F, class T>
Flow unary(Warp& warp, const Op& op) {
  return map_lanes<T, T>(warp, op, [](T a) { return F::template apply<T>(a); });
}
template <class F, class T>
Flow binary(Warp& warp, const Op& op) {
  return map_lanes2<T, T, T>(warp, op, [](T a, T b) { return F::template apply<T>(a, b); });
}
template <class Product, class T>
Flow multiply_add(Warp& warp, const Op& op) {
  return map_lanes3<T, T, T, T>(warp, op,
                                [](T a, T b, T c) { return Add::apply<T>(Product::template apply<T>(a, b), c); });
}

template <class T>
struct Widened;
template <>
struct Widened<uint16_t> {
  using type = uint32_t;
};
template <>
struct Widened<int16_t> {
  using type = int32_t;
};
template <>
struct Widened<uint32_t> {
  using type = uint64_t;
};
template <>
struct Widened<int32_t> {
  using type = int64_t;
};
template <class T>
using Wide = typename Widened<T>::type;

template <class T>
Flow multiply_wide(Warp& warp, const Op& op) {
  return map_lanes2<Wide<T>, T, T>(warp, op, [](T a, T b) { return MulLow::apply<Wide<T>>(a, b); });
}
template <class T>
Flow multiply_add_wide(Warp& warp, const Op& op) {
  return map_lanes3<Wide<T>, T, T, Wide<T>>(
      warp, op, [](T a, T b, Wide<T> c) { return Add::apply<Wide<T>>(MulLow::apply<Wide<T>>(a, b), c); });
}

template <class F>
Execute pick_binary(Type type) {
  return for_integer(type, [](auto zero) { return vectorised<&binary<F, decltype(zero)>>(); });
}

constexpr std::initializer_list<Type> kIntegerTypes = {Type::u16, Type::u32, Type::u64,
                                                       Type::s16, Type::s32, Type::s64};

void set_operands(Decoding& d, uint32_t result_bits, uint32_t bits, size_t num_sources) {
  d.require_operands(num_sources + 1);
  d.op.dst = d.destination(0, result_bits);
  d.op.a = d.source(1, bits);
  if (num_sources > 1) d.op.b = d.source(2, bits);
  if (num_sources > 2) d.op.c = d.source(3, result_bits);
}

template <class F>
void decode_binary(Decoding& d) {
  const Type type = d.take_type_of(kIntegerTypes);
  set_operands(d, type_bits(type), type_bits(type), 2);
  d.op.execute = pick_binary<F>(type);
}

template <class F>
void decode_min_max(Decoding& d) {
  const bool relu = d.take("relu");
  const Type type = d.take_type_of(kIntegerTypes);
  set_operands(d, type_bits(type), type_bits(type), 2);
  if (relu && type != Type::s32) d.unsupported(".relu with another type than .s32");
  d.op.execute = relu ? vectorised<&binary<Relu<F>, int32_t>>() : pick_binary<F>(type);
}

void decode_mul(Decoding& d) {
  const size_t part = d.take_one_of({"lo", "hi", "wide"}, "part of the product");
  const Type type = d.take_type_of(kIntegerTypes);
  const uint32_t bits = type_bits(type);
  if (part == 2 && bits == 64) d.unsupported(".wide of 64-bit operands");
  set_operands(d, part == 2 ? 2 * bits : bits, bits, 2);
  if (part == 0) d.op.execute = pick_binary<MulLow>(type);
  if (part == 1)
    d.op.execute = for_integer(type, [](auto zero) -> Execute { return &binary<MulHigh, decltype(zero)>; });
  if (part == 2)
    d.op.execute = for_narrow_integer(type, [](auto zero) { return vectorised<&multiply_wide<decltype(zero)>>(); });
}

void decode_mad(Decoding& d) {
  const size_t part = d.take_one_of({"lo", "hi", "wide"}, "part of the product");
  const Type type = d.take_type_of(kIntegerTypes);
  const uint32_t bits = type_bits(type);
  if (part == 2 && bits == 64) d.unsupported(".wide of 64-bit operands");
  set_operands(d, part == 2 ? 2 * bits : bits, bits, 3);
  if (part == 0)
    d.op.execute = for_integer(type, [](auto zero) { return vectorised<&multiply_add<MulLow, decltype(zero)>>(); });
  if (part == 1)
    d.op.execute = for_integer(type, [](auto zero) -> Execute { return &multiply_add<MulHigh, decltype(zero)>; });
  if (part == 2)
    d.op.execute = for_narrow_integer(type, [](auto zero) { return vectorised<&multiply_add_wide<decltype(zero)>>(); });
}

template <class F>
void decode_unary(Decoding& d) {
  const Type type = d.take_type_of({Type::s16, Type::s32, Type::s64});
  set_operands(d, type_bits(type), type_bits(type), 1);
  d.op.execute = for_integer(type, [](auto zero) { return vectorised<&unary<F, decltype(zero)>>(); });
}

// Bit counts have a 32-bit result whatever the operand is.
struct PopCount {
  template <class T>
  static uint32_t apply(T a) {
    return static_cast<uint32_t>(std::popcount(a));
  }
};
struct LeadingZeros {
  template <class T>
  static uint32_t apply(T a) {
    return static_cast<uint32_t>(std::countl_zero(a));
  }
};
template <class F, class T>
Flow count_bits(Warp& warp, const Op& op) {
  return map_lanes<uint32_t, T>(warp, op, [](T a) { return F::template apply<T>(a); });
}
template <class F>
void decode_count(Decoding& d) {
  const Type type = d.take_type_of({Type::b32, Type::b64});
  set_operands(d, 32, type_bits(type), 1);
  d.op.execute = type == Type::b32 ? &count_bits<F, uint32_t> : &count_bits<F, uint64_t>;
}

template <class T>
Flow reverse_bits(Warp& warp, const Op& op) {
  return map_lanes<T, T>(warp, op, [](T a) {
    T result = 0;
    for (size_t i = 0; i < 8 * sizeof(T); ++i) result = static_cast<T>(result << 1 | (a >> i & 1));
    return result;
  });
}
void decode_brev(Decoding& d) {
  const Type type = d.take_type_of({Type::b32, Type::b64});
  set_operands(d, type_bits(type), type_bits(type), 1);
  d.op.execute = type == Type::b32 ? &reverse_bits<uint32_t> : &reverse_bits<uint64_t>;
}

// Position of the highest bit that differs from the sign; all ones when there is none. .shiftamt counts from the top.
template <class T, bool kShiftAmount>
Flow find_bit(Warp& warp, const Op& op) {
  return map_lanes<uint32_t, T>(warp, op, [](T a) {
    const Wrap<T> bits = static_cast<Wrap<T>>(a < 0 ? ~a : a);
    if (bits == 0) return ~uint32_t{0};
    const uint32_t from_top = static_cast<uint32_t>(std::countl_zero(bits));
    return kShiftAmount ? from_top : static_cast<uint32_t>(8 * sizeof(T) - 1) - from_top;
  });
}
void decode_bfind(Decoding& d) {
  const bool shift_amount = d.take("shiftamt");
  const Type type = d.take_type_of({Type::u32, Type::u64, Type::s32, Type::s64});
  set_operands(d, 32, type_bits(type), 1);
  d.op.execute = for_integer(type, [&](auto zero) -> Execute {
    using T = decltype(zero);
    return shift_amount ? &find_bit<T, true> : &find_bit<T, false>;
  });
}

template <class T>
Flow extract_field(Warp& warp, const Op& op) {
  constexpr uint32_t kBits = 8 * sizeof(T);
  const uint32_t* const length = warp.row<uint32_t>(op.c);
  const uint32_t* const position = warp.row<uint32_t>(op.b);
  const T* const a = warp.row<T>(op.a);
  T* const dst = warp.row<T>(op.dst);
  for_each_lane(warp.mask, [&](uint32_t i) {
    const uint32_t pos = position[i] & 0xff, len = length[i] & 0xff;
    const auto bit = [&](uint32_t b) { return static_cast<Wrap<T>>(static_cast<Wrap<T>>(a[i]) >> b & 1); };
    const Wrap<T> sign = !std::is_signed_v<T> || len == 0 ? Wrap<T>{0} : bit(std::min(pos + len - 1, kBits - 1));
    Wrap<T> result = 0;
    for (uint32_t b = 0; b < kBits; ++b)
      result |= static_cast<Wrap<T>>((b < len && pos + b < kBits ? bit(pos + b) : sign) << b);
    dst[i] = static_cast<T>(result);
  });
  return Flow::next;
}
void decode_bfe(Decoding& d) {
  const Type type = d.take_type_of({Type::u32, Type::u64, Type::s32, Type::s64});
  d.require_operands(4);
  d.op.dst = d.destination(0, type_bits(type));
  d.op.a = d.source(1, type_bits(type));
  d.op.b = d.source(2, 32);
  d.op.c = d.source(3, 32);
  d.op.execute = for_integer(type, [](auto zero) -> Execute { return &extract_field<decltype(zero)>; });
}

template <class T>
Flow insert_field(Warp& warp, const Op& op) {
  constexpr uint32_t kBits = 8 * sizeof(T);
  const T* const a = warp.row<T>(op.a);
  const T* const b = warp.row<T>(op.b);
  const uint32_t* const position = warp.row<uint32_t>(op.c);
  const uint32_t* const length = warp.row<uint32_t>(op.d);
  T* const dst = warp.row<T>(op.dst);
  for_each_lane(warp.mask, [&](uint32_t i) {
    const uint32_t pos = position[i] & 0xff, len = length[i] & 0xff;
    T result = b[i];
    for (uint32_t k = 0; k < len && pos + k < kBits; ++k) {
      const T bit = static_cast<T>(T{1} << (pos + k));
      result = (a[i] >> k & 1) != 0 ? result | bit : result & static_cast<T>(~bit);
    }
    dst[i] = result;
  });
  return Flow::next;
}
void decode_bfi(Decoding& d) {
  const Type type = d.take_type_of({Type::b32, Type::b64});
  d.require_operands(5);
  d.op.dst = d.destination(0, type_bits(type));
  d.op.a = d.source(1, type_bits(type));
  d.op.b = d.source(2, type_bits(type));
  d.op.c = d.source(3, 32);
  d.op.d = d.source(4, 32);
  d.op.execute = type == Type::b32 ? &insert_field<uint32_t> : &insert_field<uint64_t>;
}

}  // namespace

// add, sub, mul, min, max, neg, abs, div and fma share their names with floating-point forms: see arithmetic.cpp.
void decode_integer_add(Decoding& d) { d.sees("cc") ? decode_add_carry(d) : decode_binary<Add>(d); }
void decode_integer_sub(Decoding& d) { d.sees("cc") ? decode_sub_carry(d) : decode_binary<Sub>(d); }
void decode_integer_mul(Decoding& d) { decode_mul(d); }
void decode_integer_mad(Decoding& d) { decode_mad(d); }
void decode_integer_div(Decoding& d) { decode_binary<Div>(d); }
void decode_integer_min(Decoding& d) { decode_min_max<Min>(d); }
void decode_integer_max(Decoding& d) { decode_min_max<Max>(d); }
void decode_integer_neg(Decoding& d) { decode_unary<Negate>(d); }
void decode_integer_abs(Decoding& d) { decode_unary<Absolute>(d); }

void add_integer_instructions(InstructionTable& table) {
  table["rem"] = {decode_binary<Rem>, manual::kInteger};
  table["popc"] = {decode_count<PopCount>, manual::kInteger};
  table["clz"] = {decode_count<LeadingZeros>, manual::kInteger};
  table["brev"] = {decode_brev, manual::kInteger};
  table["bfind"] = {decode_bfind, manual::kInteger};
  table["bfe"] = {decode_bfe, manual::kInteger};
  table["bfi"] = {decode_bfi, manual::kInteger};
}

}  // namespace opdeck::emu
