// SPDX-License-Identifier: Apache-2.0
// Chooses the decode function of add, sub, mul, ... by the instruction's type.
#include "arithmetic.h"

namespace opdeck::emu {
namespace {

constexpr bool is_half(Type type) { return type >= Type::f16 && type <= Type::bf16x2; }
constexpr bool is_float(Type type) { return type >= Type::f32 && type <= Type::f64; }

template <DecodeFunction integer, DecodeFunction floating, DecodeFunction half>
void choose(Decoding& d) {
  const Type type = d.element_type();
  const DecodeFunction decode = is_integer(type) ? integer : is_float(type) ? floating : is_half(type) ? half : nullptr;
  if (decode == nullptr) d.unsupported("type ." + std::string(type_name(type)));
  decode(d);
}

}  // namespace

void add_arithmetic_instructions(InstructionTable& table) {
  table["add"] = {choose<decode_integer_add, decode_float_add, decode_half_add>, manual::kAllArithmetic};
  table["sub"] = {choose<decode_integer_sub, decode_float_sub, decode_half_sub>, manual::kAllArithmetic};
  table["mul"] = {choose<decode_integer_mul, decode_float_mul, decode_half_mul>, manual::kCommonArithmetic};
  table["mad"] = {choose<decode_integer_mad, decode_float_mad, nullptr>, manual::kIntegerAndFloat};
  table["fma"] = {choose<nullptr, decode_float_fma, decode_half_fma>, manual::kFloatArithmetic};
  table["div"] = {choose<decode_integer_div, decode_float_div, nullptr>, manual::kIntegerAndFloat};
  table["min"] = {choose<decode_integer_min, decode_float_min, decode_half_min>, manual::kCommonArithmetic};
  table["max"] = {choose<decode_integer_max, decode_float_max, decode_half_max>, manual::kCommonArithmetic};
  table["neg"] = {choose<decode_integer_neg, decode_float_neg, decode_half_neg>, manual::kCommonArithmetic};
  table["abs"] = {choose<decode_integer_abs, decode_float_abs, decode_half_abs>, manual::kCommonArithmetic};
  table["ex2"] = {choose<nullptr, decode_float_ex2, decode_half_ex2>, manual::kFloatAndHalf};
  table["tanh"] = {choose<nullptr, decode_float_tanh, decode_half_tanh>, manual::kFloatAndHalf};
}

}  // namespace opdeck::emu
