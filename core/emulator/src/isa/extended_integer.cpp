// SPDX-License-Identifier: Apache-2.0
// Less common integer instructions: carries (add.cc, addc, sub.cc, subc), 24-bit products, sad, bmsk, szext, fns, the
// dot products dp4a and dp2a, and cvt.pack. Called through the instruction table. Source: PTX ISA, "Integer Arithmetic
// Instructions", "Extended-Precision Integer Arithmetic Instructions" and "cvt.pack".
// Limits: carries of 32 bits; no mad.cc and madc.
#include <algorithm>
#include <type_traits>

#include "arithmetic.h"
#include "decode.h"
#include "lanes.h"
#include "type_dispatch.h"

namespace opdeck::emu {
namespace {

void set_operands(Decoding& d, uint32_t bits, size_t num_sources) {
  d.require_operands(num_sources + 1);
  d.op.dst = d.destination(0, bits);
  d.op.a = d.source(1, bits);
  if (num_sources > 1) d.op.b = d.source(2, bits);
  if (num_sources > 2) d.op.c = d.source(3, bits);
}

// op.c is the carry row (0 or 1 in each lane), read where `uses` and written where `sets`.
template <bool subtracts, bool uses, bool sets>
Flow with_carry(Warp& warp, const Op& op) {
  uint32_t* const carry = warp.row<uint32_t>(op.c);
  for_each_lane(warp.mask, [&](uint32_t i) {
    const uint64_t a = warp.row<uint32_t>(op.a)[i], b = warp.row<uint32_t>(op.b)[i], in = uses ? carry[i] : 0;
    const uint64_t wide = subtracts ? a - b - in : a + b + in;
    warp.row<uint32_t>(op.dst)[i] = static_cast<uint32_t>(wide);
    if (sets) carry[i] = static_cast<uint32_t>(wide >> 32 & 1);
  });
  return Flow::next;
}
template <bool subtracts, bool uses>
void decode_carry(Decoding& d) {
  const bool sets = d.take("cc");
  if (!uses && !sets) d.unsupported("without .cc");
  d.take_type_of({Type::u32, Type::s32});
  set_operands(d, 32, 2);
  d.op.c = d.context.carry_row();
  d.op.execute = sets ? &with_carry<subtracts, uses, true> : &with_carry<subtracts, uses, false>;
}

// The product of the low 24 bits of a and b, 48 bits of it: its low or high 32.
template <bool is_signed, bool high>
int64_t product24(uint32_t a, uint32_t b) {
  const auto extend = [](uint32_t v) -> int64_t {
    return is_signed ? static_cast<int32_t>(v << 8) >> 8 : static_cast<int64_t>(v & 0xffffff);
  };
  return extend(a) * extend(b) >> (high ? 16 : 0);
}
template <bool is_signed, bool high>
Flow multiply24(Warp& warp, const Op& op) {
  return map_lanes2<uint32_t, uint32_t, uint32_t>(
      warp, op, [](uint32_t a, uint32_t b) { return static_cast<uint32_t>(product24<is_signed, high>(a, b)); });
}
template <bool is_signed, bool high>
Flow multiply_add24(Warp& warp, const Op& op) {
  return map_lanes3<uint32_t, uint32_t, uint32_t, uint32_t>(warp, op, [](uint32_t a, uint32_t b, uint32_t c) {
    return static_cast<uint32_t>(product24<is_signed, high>(a, b)) + c;
  });
}
template <size_t num_sources>
void decode_24(Decoding& d) {
  const bool high = d.take_one_of({"lo", "hi"}, "part of the product") == 1;
  const bool is_signed = d.take_type_of({Type::u32, Type::s32}) == Type::s32;
  set_operands(d, 32, num_sources);
  if (num_sources == 2)
    d.op.execute = is_signed ? (high ? &multiply24<true, true> : &multiply24<true, false>)
                             : (high ? &multiply24<false, true> : &multiply24<false, false>);
  else
    d.op.execute = is_signed ? (high ? &multiply_add24<true, true> : &multiply_add24<true, false>)
                             : (high ? &multiply_add24<false, true> : &multiply_add24<false, false>);
}

// c + |a - b|
template <class T>
Flow absolute_difference(Warp& warp, const Op& op) {
  using U = std::make_unsigned_t<T>;
  return map_lanes3<T, T, T, T>(warp, op, [](T a, T b, T c) {
    const U larger = static_cast<U>(a < b ? b : a), smaller = static_cast<U>(a < b ? a : b);
    return static_cast<T>(static_cast<U>(c) + larger - smaller);
  });
}
void decode_sad(Decoding& d) {
  const Type type = d.take_type_of({Type::u16, Type::u32, Type::u64, Type::s16, Type::s32, Type::s64});
  set_operands(d, type_bits(type), 3);
  d.op.execute = for_integer(type, [](auto zero) -> Execute { return &absolute_difference<decltype(zero)>; });
}

constexpr uint32_t kAllBits = ~0u;

// b ones from bit a on. .clamp: positions and widths of 32 and more reach past the end; .wrap: they count modulo 32.
template <bool clamps>
Flow make_mask(Warp& warp, const Op& op) {
  return map_lanes2<uint32_t, uint32_t, uint32_t>(warp, op, [](uint32_t a, uint32_t b) {
    const uint32_t position = a & 31, width = b & 31, end = position + width;
    const uint32_t from = clamps && a >= 32 ? 0 : kAllBits << position;
    const bool open = end >= 32 || (clamps && (a >= 32 || b >= 32));
    return from & ~(open ? 0 : kAllBits << end);
  });
}
void decode_bmsk(Decoding& d) {
  const bool clamps = d.take_one_of({"clamp", "wrap"}, "mode") == 0;
  d.take_type_of({Type::b32});
  set_operands(d, 32, 2);
  d.op.execute = clamps ? &make_mask<true> : &make_mask<false>;
}

// The low b bits of a, extended by zeros or by the highest of them.
template <bool clamps, bool is_signed>
Flow extend_bits(Warp& warp, const Op& op) {
  return map_lanes2<uint32_t, uint32_t, uint32_t>(warp, op, [](uint32_t a, uint32_t b) {
    const uint32_t width = b & 31;
    const bool whole = clamps && b >= 32;
    const uint32_t above = whole ? 0 : kAllBits << width;
    const bool negative = is_signed && width != 0 && !whole && (a >> (width - 1) & 1) != 0;
    return (a & ~above) | (negative ? above : 0);
  });
}
void decode_szext(Decoding& d) {
  const bool clamps = d.take_one_of({"clamp", "wrap"}, "mode") == 0;
  const bool is_signed = d.take_type_of({Type::u32, Type::s32}) == Type::s32;
  set_operands(d, 32, 2);
  d.op.execute = is_signed ? (clamps ? &extend_bits<true, true> : &extend_bits<false, true>)
                           : (clamps ? &extend_bits<true, false> : &extend_bits<false, false>);
}

// The position of the |offset|-th set bit of the mask from `base` on, upwards or downwards; all ones if there is none.
uint32_t find_nth_set(uint32_t mask, uint32_t base, int32_t offset) {
  if (base > 31) return kAllBits;
  if (offset == 0) return (mask >> base & 1) != 0 ? base : kAllBits;
  const int32_t step = offset > 0 ? 1 : -1;
  uint32_t remaining = offset > 0 ? static_cast<uint32_t>(offset) : 0u - static_cast<uint32_t>(offset);
  for (int32_t at = static_cast<int32_t>(base); at >= 0 && at < 32; at += step)
    if ((mask >> at & 1) != 0 && --remaining == 0) return static_cast<uint32_t>(at);
  return kAllBits;
}
void decode_fns(Decoding& d) {
  d.take_type_of({Type::b32});
  set_operands(d, 32, 3);
  d.op.execute = +[](Warp& warp, const Op& op) {
    return map_lanes3<uint32_t, uint32_t, uint32_t, int32_t>(
        warp, op, [](uint32_t mask, uint32_t base, int32_t offset) { return find_nth_set(mask, base, offset); });
  };
}

// c plus the products of num_products elements of a, a_bits wide, and as many bytes of b from byte first_byte on.
template <uint32_t num_products, uint32_t first_byte, bool a_signed, bool b_signed>
Flow dot_product(Warp& warp, const Op& op) {
  return map_lanes3<uint32_t, uint32_t, uint32_t, uint32_t>(warp, op, [](uint32_t a, uint32_t b, uint32_t c) {
    constexpr uint32_t a_bits = 32 / num_products;
    for (uint32_t i = 0; i < num_products; ++i) {
      const uint32_t x = a << (32 - a_bits * (i + 1)), y = b << (24 - 8 * (first_byte + i));
      constexpr uint32_t a_shift = 32 - a_bits;
      const int32_t p = a_signed ? static_cast<int32_t>(x) >> a_shift : static_cast<int32_t>(x >> a_shift);
      const int32_t q = b_signed ? static_cast<int32_t>(y) >> 24 : static_cast<int32_t>(y >> 24);
      c += static_cast<uint32_t>(p * q);
    }
    return c;
  });
}
template <uint32_t num_products, uint32_t first_byte>
Execute pick_dot_product(bool a_signed, bool b_signed) {
  if (a_signed)
    return b_signed ? &dot_product<num_products, first_byte, true, true>
                    : &dot_product<num_products, first_byte, true, false>;
  return b_signed ? &dot_product<num_products, first_byte, false, true>
                  : &dot_product<num_products, first_byte, false, false>;
}
template <uint32_t num_products>
void decode_dot_product(Decoding& d) {
  const bool high = num_products == 2 && d.take_one_of({"lo", "hi"}, "half of b") == 1;
  const bool a_signed = d.take_type_of({Type::u32, Type::s32}) == Type::s32;
  const bool b_signed = d.take_type_of({Type::u32, Type::s32}) == Type::s32;
  set_operands(d, 32, 3);
  if constexpr (num_products == 4)
    d.op.execute = pick_dot_product<4, 0>(a_signed, b_signed);
  else
    d.op.execute = high ? pick_dot_product<2, 2>(a_signed, b_signed) : pick_dot_product<2, 0>(a_signed, b_signed);
}

// b, a above it, each saturated to `bits`, and the low bits of c above both.
template <uint32_t bits, bool is_signed>
Flow pack_integers(Warp& warp, const Op& op) {
  return map_lanes3<uint32_t, int32_t, int32_t, uint32_t>(warp, op, [](int32_t a, int32_t b, uint32_t c) {
    static constexpr int32_t low = is_signed ? -(1 << (bits - 1)) : 0, high = (1 << (is_signed ? bits - 1 : bits)) - 1;
    const auto field = [](int32_t x) { return static_cast<uint64_t>(std::clamp(x, low, high)) & ((1u << bits) - 1); };
    return static_cast<uint32_t>(field(b) | field(a) << bits | uint64_t{c} << 2 * bits);
  });
}
void decode_pack(Decoding& d) {
  d.take_one_of({"sat"}, "modifier");
  constexpr Execute kExecute[] = {pack_integers<16, false>, pack_integers<16, true>, pack_integers<8, false>,
                                  pack_integers<8, true>,   pack_integers<4, false>, pack_integers<4, true>,
                                  pack_integers<2, false>,  pack_integers<2, true>};
  const size_t type = d.take_one_of({"u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2"}, "type of the fields");
  d.take_type_of({Type::s32});
  const bool has_rest = type >= 2;
  if (has_rest) d.take_type_of({Type::b32});
  set_operands(d, 32, has_rest ? 3 : 2);
  if (!has_rest) d.op.c = d.op.b;  // of which nothing is left above 32 bits
  d.op.execute = kExecute[type];
}

}  // namespace

void decode_add_carry(Decoding& d) { decode_carry<false, false>(d); }
void decode_sub_carry(Decoding& d) { decode_carry<true, false>(d); }

void add_extended_integer_instructions(InstructionTable& table) {
  table["addc"] = {decode_carry<false, true>, manual::kExtendedInteger};
  table["subc"] = {decode_carry<true, true>, manual::kExtendedInteger};
  table["mul24"] = {decode_24<2>, manual::kInteger};
  table["mad24"] = {decode_24<3>, manual::kInteger};
  table["sad"] = {decode_sad, manual::kInteger};
  table["bmsk"] = {decode_bmsk, manual::kInteger};
  table["szext"] = {decode_szext, manual::kInteger};
  table["fns"] = {decode_fns, manual::kInteger};
  table["cvt.pack"] = {decode_pack, manual::kDataMovement};
  table["dp4a"] = {decode_dot_product<4>, manual::kInteger};
  table["dp2a"] = {decode_dot_product<2>, manual::kInteger};
}

}  // namespace opdeck::emu
