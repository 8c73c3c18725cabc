// SPDX-License-Identifier: Apache-2.0
// set: a comparison whose result is a value, all ones (integer results) or 1.0. Called through the instruction table.
// Source: PTX ISA, "Comparison and Selection Instructions: set" and "Half Precision Comparison Instructions: set".
// Limits: no combination with a predicate (.and, .or, .xor); no 64-bit integers.
#include <bit>
#include <cmath>

#include "../tensor/numbers.h"
#include "half_compare.h"

namespace opdeck::emu {
namespace {

struct SetDetail {
  Comparison comparison = Comparison::eq;
  Type type = Type::u32;  // of the operands
  bool ftz = false;
  uint32_t num_elems = 1;     // 2 for pairs
  uint64_t true_value = 0;    // of one element
  uint32_t result_bits = 32;  // of one element
};

bool holds(Comparison comparison, double a, double b) {
  using C = Comparison;
  const bool ordered = a == a && b == b;
  switch (comparison) {
    case C::eq: return a == b;
    case C::ne: return ordered && a != b;
    case C::lt: return a < b;
    case C::le: return a <= b;
    case C::gt: return a > b;
    case C::ge: return a >= b;
    case C::equ: return !ordered || a == b;
    case C::neu: return a != b;
    case C::ltu: return !(a >= b);
    case C::leu: return !(a > b);
    case C::gtu: return !(a <= b);
    case C::geu: return !(a < b);
    case C::num: return ordered;
    case C::nan: return !ordered;
  }
  return false;
}

double flushed(double value, double smallest_normal) {
  return std::fabs(value) < smallest_normal ? std::copysign(0.0, value) : value;
}

// Element `elem` of a row's entry as the number it is.
double read_value(Warp& warp, uint32_t row, const SetDetail& detail, uint32_t index) {
  switch (detail.type) {
    case Type::f16:
    case Type::f16x2: {
      const double value = decode_f16(warp.row<uint16_t>(row)[index]);
      return detail.ftz ? flushed(value, 0x1p-14) : value;
    }
    case Type::bf16:
    case Type::bf16x2: return decode_bf16(warp.row<uint16_t>(row)[index]);
    case Type::f32: {
      const double value = warp.row<float>(row)[index];
      return detail.ftz ? flushed(value, 0x1p-126) : value;
    }
    case Type::f64: return warp.row<double>(row)[index];
    case Type::s16: return warp.row<int16_t>(row)[index];
    case Type::s32: return warp.row<int32_t>(row)[index];
    case Type::u16:
    case Type::b16: return warp.row<uint16_t>(row)[index];
    default: return warp.row<uint32_t>(row)[index];
  }
}

Flow set(Warp& warp, const Op& op) {
  const SetDetail& detail = *static_cast<const SetDetail*>(op.detail);
  for_each_lane(warp.mask, [&](uint32_t lane) {
    for (uint32_t elem = 0; elem < detail.num_elems; ++elem) {
      const uint32_t i = lane * detail.num_elems + elem;
      const bool result =
          holds(detail.comparison, read_value(warp, op.a, detail, i), read_value(warp, op.b, detail, i));
      const uint64_t value = result ? detail.true_value : 0;
      if (detail.result_bits == 16)
        warp.row<uint16_t>(op.dst)[i] = static_cast<uint16_t>(value);
      else
        warp.row<uint32_t>(op.dst)[i] = static_cast<uint32_t>(value);
    }
  });
  return Flow::next;
}

// 1.0, or all ones, in one element of the result.
uint64_t true_value_of(Type result) {
  switch (result) {
    case Type::f32: return 0x3f800000;
    case Type::f16:
    case Type::f16x2: return 0x3c00;
    case Type::bf16:
    case Type::bf16x2: return 0x3f80;
    default: return ~uint64_t{0};
  }
}

void decode_set(Decoding& d) {
  SetDetail detail;
  const std::string_view name = d.next_modifier();
  detail.comparison = take_comparison(d);
  detail.ftz = d.take("ftz");
  const Type result = d.take_type_of(
      {Type::u16, Type::s16, Type::u32, Type::s32, Type::f32, Type::f16, Type::f16x2, Type::bf16, Type::bf16x2});
  detail.type = d.take_type_of({Type::b16, Type::u16, Type::s16, Type::b32, Type::u32, Type::s32, Type::f32, Type::f64,
                                Type::f16, Type::f16x2, Type::bf16, Type::bf16x2});
  check_comparison(d, name, detail.type);
  const bool flushes = detail.type == Type::f32 || detail.type == Type::f16 || detail.type == Type::f16x2;
  if (detail.ftz && !flushes) d.unsupported(".ftz of ." + std::string(type_name(detail.type)));
  const bool pairs = detail.type == Type::f16x2 || detail.type == Type::bf16x2;
  if (pairs && type_bits(result) != 32) d.unsupported("a 16-bit result of pairs");
  detail.num_elems = pairs ? 2 : 1;
  detail.result_bits = type_bits(result) / detail.num_elems;
  detail.true_value = true_value_of(result);
  d.require_operands(3);
  d.op.dst = d.destination(0, type_bits(result));
  d.op.a = d.source(1, type_bits(detail.type));
  d.op.b = d.source(2, type_bits(detail.type));
  d.op.detail = d.keep(detail);
  d.op.execute = &set;
}

}  // namespace

void add_set_instructions(InstructionTable& table) {
  table["set"] = {decode_set, manual::kComparison};
}

}  // namespace opdeck::emu
