// SPDX-License-Identifier: Apache-2.0
// cvt: between integers, between integers and floating point, between floating-point formats, scalar and packed.
// Source: PTX ISA, "Data Movement and Conversion Instructions: cvt". The formats: tensor/numbers.h.
// Limits: cvt.pack and stochastic rounding (.rs) are not supported; f64 to and from 16-bit formats goes through encode.
#include <bit>
#include <cmath>
#include <limits>

#include "../tensor/numbers.h"
#include "lanes.h"
#include "type_dispatch.h"

namespace opdeck::emu {
namespace {

// What a modifier names: a PTX type, or a packed narrow format.
struct Format {
  Type type = Type::none;
  NumberFormat number = NumberFormat::f32;  // of floating-point ones
  bool is_float = false;
  uint32_t elems = 1;           // 2 or 4 for packed ones
  uint32_t container_bits = 0;  // of a register that holds it
  uint32_t elem_bits = 0;
};

Format take_format(Decoding& d) {
  using N = NumberFormat;
  constexpr Format kFormats[] = {{Type::none, N::f16, true, 1, 16, 16},  {Type::none, N::bf16, true, 1, 16, 16},
                                 {Type::none, N::tf32, true, 1, 32, 32}, {Type::none, N::f32, true, 1, 32, 32},
                                 {Type::none, N::f16, true, 2, 32, 16},  {Type::none, N::bf16, true, 2, 32, 16},
                                 {Type::none, N::e4m3, true, 2, 16, 8},  {Type::none, N::e5m2, true, 2, 16, 8},
                                 {Type::none, N::e2m3, true, 2, 16, 8},  {Type::none, N::e3m2, true, 2, 16, 8},
                                 {Type::none, N::e2m1, true, 2, 8, 4},   {Type::none, N::ue8m0, true, 2, 16, 8},
                                 {Type::none, N::e4m3, true, 4, 32, 8},  {Type::none, N::e5m2, true, 4, 32, 8},
                                 {Type::none, N::e2m3, true, 4, 32, 8},  {Type::none, N::e3m2, true, 4, 32, 8},
                                 {Type::none, N::e2m1, true, 4, 16, 4},  {Type::f64, N::f32, true, 1, 64, 64},
                                 {Type::u8, N::f32, false, 1, 8, 8},     {Type::u16, N::f32, false, 1, 16, 16},
                                 {Type::u32, N::f32, false, 1, 32, 32},  {Type::u64, N::f32, false, 1, 64, 64},
                                 {Type::s8, N::f32, false, 1, 8, 8},     {Type::s16, N::f32, false, 1, 16, 16},
                                 {Type::s32, N::f32, false, 1, 32, 32},  {Type::s64, N::f32, false, 1, 64, 64}};
  return kFormats[d.take_one_of(
      {"f16",    "bf16",   "tf32",    "f32",    "f16x2",  "bf16x2", "e4m3x2", "e5m2x2", "e2m3x2",
       "e3m2x2", "e2m1x2", "ue8m0x2", "e4m3x4", "e5m2x4", "e2m3x4", "e3m2x4", "e2m1x4", "f64",
       "u8",     "u16",    "u32",     "u64",    "s8",     "s16",    "s32",    "s64"},
      "format")];
}

struct ConvertDetail {
  Format to, from;
  Conversion conversion;
  bool ftz = false;
  bool saturates = false;  // .sat to [0, 1], or of integers to the range
  Rounding integer_rounding = Rounding::rz;
  bool rounds_to_integer = false;  // .rni and the like between floating-point types
  uint32_t dst_bits = 0, src_bits = 0;
};
const ConvertDetail& detail_of(const Op& op) { return *static_cast<const ConvertDetail*>(op.detail); }

double round_integral(double value, Rounding rounding) {
  switch (rounding) {
    case Rounding::rn: return std::nearbyint(value);  // the host rounds to nearest even
    case Rounding::rz: return std::trunc(value);
    case Rounding::rm: return std::floor(value);
    default: return std::ceil(value);
  }
}

uint64_t read_bits(Warp& warp, uint32_t row, uint32_t bits, uint32_t lane) {
  switch (bits) {
    case 8: return warp.row<uint8_t>(row)[lane];
    case 16: return warp.row<uint16_t>(row)[lane];
    case 32: return warp.row<uint32_t>(row)[lane];
    default: return warp.row<uint64_t>(row)[lane];
  }
}
void write_bits(Warp& warp, uint32_t row, uint32_t bits, uint32_t lane, uint64_t value) {
  switch (bits) {
    case 8: warp.row<uint8_t>(row)[lane] = static_cast<uint8_t>(value); break;
    case 16: warp.row<uint16_t>(row)[lane] = static_cast<uint16_t>(value); break;
    case 32: warp.row<uint32_t>(row)[lane] = static_cast<uint32_t>(value); break;
    default: warp.row<uint64_t>(row)[lane] = value;
  }
}

uint64_t extend(uint64_t value, Type type) {
  const uint32_t bits = type_bits(type);
  if (bits == 64) return value;
  value &= (uint64_t{1} << bits) - 1;
  return is_signed(type) && (value >> (bits - 1) & 1) != 0 ? value | ~((uint64_t{1} << bits) - 1) : value;
}

// Limits of an integer type as doubles that compare correctly.
struct Range {
  double low, high;  // low <= value < high is in range
};
Range range_of(Type type) {
  const uint32_t bits = type_bits(type);
  if (is_signed(type))
    return {-std::ldexp(1.0, static_cast<int>(bits) - 1), std::ldexp(1.0, static_cast<int>(bits) - 1)};
  return {0.0, std::ldexp(1.0, static_cast<int>(bits))};
}
uint64_t lowest(Type type) { return is_signed(type) ? ~uint64_t{0} << (type_bits(type) - 1) : 0; }
uint64_t highest(Type type) {
  const uint32_t bits = type_bits(type) - (is_signed(type) ? 1 : 0);
  return bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
}

// Conversions to integers clamp; NaN gives 0 (and, for 64 bits, the lowest signed / highest unsigned value).
uint64_t float_to_integer(double value, const ConvertDetail& detail) {
  const Type type = detail.to.type;
  if (std::isnan(value)) return type_bits(type) == 64 ? uint64_t{1} << 63 : 0;
  const double rounded = round_integral(value, detail.integer_rounding);
  const Range range = range_of(type);
  if (rounded < range.low) return lowest(type);
  if (rounded >= range.high) return highest(type);
  return is_signed(type) ? static_cast<uint64_t>(static_cast<int64_t>(rounded)) : static_cast<uint64_t>(rounded);
}

uint64_t clamp_integer(uint64_t value, Type from, Type to) {
  if (is_signed(from)) {
    const auto v = static_cast<int64_t>(value);
    if (!is_signed(to)) return v < 0 ? 0 : std::min(value, highest(to));
    if (v < static_cast<int64_t>(lowest(to))) return lowest(to);
    if (v > static_cast<int64_t>(highest(to))) return highest(to);
    return value;
  }
  return std::min(value, highest(to));
}

double read_float(uint64_t bits, const Format& format, uint32_t elem) {
  if (format.type == Type::f64) return std::bit_cast<double>(bits);
  if (format.number == NumberFormat::f32) return std::bit_cast<float>(static_cast<uint32_t>(bits));
  return decode(static_cast<uint32_t>(bits >> (elem * format.elem_bits)), format.number);
}

double flushed(double value) { return std::fabs(value) < 0x1p-126 ? std::copysign(0.0, value) : value; }

// NaNs (measured on an H200): of bf16 a shift, of f64 the upper payload, quieted; else the canonical one. .sat gives
// +0.
uint32_t nan_to_f32(double value, const ConvertDetail& detail) {
  if (detail.saturates) return 0;
  const bool keeps_payload = detail.from.type == Type::f64 || detail.from.number == NumberFormat::bf16;
  return keeps_payload ? std::bit_cast<uint32_t>(static_cast<float>(value)) : 0x7fffffff;
}

// f64 -> f32 with a rounding.
uint32_t narrow_to_f32(double value, const ConvertDetail& detail) {
  if (std::isnan(value)) return nan_to_f32(value, detail);
  float result = static_cast<float>(value);
  const Rounding rounding = detail.conversion.rounding;
  const double back = result;
  const bool up_needed = back<value, down_needed = back> value;
  if (rounding == Rounding::rp && up_needed) result = std::nextafterf(result, INFINITY);
  if (rounding == Rounding::rm && down_needed) result = std::nextafterf(result, -INFINITY);
  if (rounding == Rounding::rz && std::fabs(back) > std::fabs(value)) result = std::nextafterf(result, 0.0f);
  if (detail.ftz) result = static_cast<float>(flushed(result));
  if (detail.saturates) result = result > 0.0f ? std::min(result, 1.0f) : 0.0f;
  if (detail.conversion.clamp == Clamp::relu && !(result > 0.0f)) result = 0.0f;
  return std::bit_cast<uint32_t>(result);
}

uint64_t write_float(double value, const ConvertDetail& detail) {
  if (detail.rounds_to_integer && !std::isnan(value)) value = round_integral(value, detail.integer_rounding);
  if (detail.to.type == Type::f64) {
    if (detail.saturates) value = value > 0.0 ? std::min(value, 1.0) : 0.0;
    return std::bit_cast<uint64_t>(value);
  }
  if (detail.to.number == NumberFormat::f32) return narrow_to_f32(value, detail);
  if (detail.saturates) value = value > 0.0 ? std::min(value, 1.0) : 0.0;
  return encode(value, detail.conversion);
}

// Integers of 64 bits do not fit a double: they round once, straight to f32.
uint64_t integer_to_float(uint64_t bits, const ConvertDetail& detail) {
  const Type type = detail.from.type;
  const bool wide = type_bits(type) == 64;
  if (!wide || (detail.to.type != Type::f64 && detail.conversion.rounding == Rounding::rn &&
                detail.to.number == NumberFormat::f32)) {
    if (wide) {
      const float value = is_signed(type) ? static_cast<float>(static_cast<int64_t>(bits)) : static_cast<float>(bits);
      return std::bit_cast<uint32_t>(value);
    }
    const double exact = is_signed(type) ? static_cast<double>(static_cast<int64_t>(bits)) : static_cast<double>(bits);
    return write_float(exact, detail);
  }
  // To odd, then to the result's rounding: exact for formats of at most 50 bits; f64 itself rounds to nearest.
  double value = is_signed(type) ? static_cast<double>(static_cast<int64_t>(bits)) : static_cast<double>(bits);
  return write_float(value, detail);
}

// cvt.f32.bf16 and cvt.rna.tf32.f32 use the bits of NaNs that a double would quieten.
Flow widen_bf16(Warp& warp, const Op& op) {
  return map_lanes<uint32_t, uint16_t>(warp, op, [](uint16_t a) { return static_cast<uint32_t>(a) << 16; });
}
template <Saturation saturation>
Flow round_to_tf32(Warp& warp, const Op& op) {
  return map_lanes<uint32_t, uint32_t>(warp, op, [](uint32_t a) { return encode_tf32_rna(a, saturation); });
}

Flow convert(Warp& warp, const Op& op) {
  const ConvertDetail& detail = detail_of(op);
  for_each_lane(warp.mask, [&](uint32_t lane) {
    const uint64_t bits = read_bits(warp, op.a, detail.src_bits, lane);
    uint64_t result;
    if (!detail.from.is_float) {
      const uint64_t value = extend(bits, detail.from.type);
      if (detail.to.is_float)
        result = integer_to_float(value, detail);
      else
        result =
            extend(detail.saturates ? clamp_integer(value, detail.from.type, detail.to.type) : value, detail.to.type);
    } else {
      double value = read_float(bits, detail.from, 0);
      if (detail.ftz && detail.from.number == NumberFormat::f32 && detail.from.type != Type::f64)
        value = flushed(value);
      result = detail.to.is_float ? write_float(value, detail) : float_to_integer(value, detail);
    }
    write_bits(warp, op.dst, detail.dst_bits, lane, result);
  });
  return Flow::next;
}

// d, a, b of f32: b goes to the low element.
Flow pack_two(Warp& warp, const Op& op) {
  const ConvertDetail& detail = detail_of(op);
  const float* const a = warp.row<float>(op.a);
  const float* const b = warp.row<float>(op.b);
  for_each_lane(warp.mask, [&](uint32_t lane) {
    const uint32_t low = encode(b[lane], detail.conversion), high = encode(a[lane], detail.conversion);
    write_bits(warp, op.dst, detail.dst_bits, lane, high << detail.to.elem_bits | low);
  });
  return Flow::next;
}
// The two hot cases.
template <uint16_t (*encode_one)(float)>
Flow pack_two_rn(Warp& warp, const Op& op) {
  return map_lanes2<uint32_t, float, float>(
      warp, op, [](float a, float b) { return static_cast<uint32_t>(encode_one(a)) << 16 | encode_one(b); });
}

// Between packed formats: two elements each.
Flow convert_two(Warp& warp, const Op& op) {
  const ConvertDetail& detail = detail_of(op);
  for_each_lane(warp.mask, [&](uint32_t lane) {
    const uint64_t bits = read_bits(warp, op.a, detail.src_bits, lane);
    const uint32_t low = encode(read_float(bits, detail.from, 0), detail.conversion);
    const uint32_t high = encode(read_float(bits, detail.from, 1), detail.conversion);
    write_bits(warp, op.dst, detail.dst_bits, lane, high << detail.to.elem_bits | low);
  });
  return Flow::next;
}

struct Modifiers {
  Rounding rounding = Rounding::rn;
  bool has_rounding = false, is_integer_rounding = false;
};

Modifiers take_rounding(Decoding& d) {
  struct Named {
    const char* name;
    Rounding rounding;
    bool integer;
  };
  constexpr Named kNamed[] = {{"rni", Rounding::rn, true}, {"rzi", Rounding::rz, true},   {"rmi", Rounding::rm, true},
                              {"rpi", Rounding::rp, true}, {"rna", Rounding::rna, false}, {"rn", Rounding::rn, false},
                              {"rz", Rounding::rz, false}, {"rm", Rounding::rm, false},   {"rp", Rounding::rp, false}};
  for (const Named& named : kNamed)
    if (d.take(named.name)) return {named.rounding, true, named.integer};
  return {};
}

void check_narrow_formats(Decoding& d, const Format& format) {
  const bool narrow = format.number == NumberFormat::e2m1 || format.number == NumberFormat::e2m3 ||
                      format.number == NumberFormat::e3m2 || format.number == NumberFormat::ue8m0;
  if (narrow) d.require_target({Target::sm_100a, Target::sm_103a});
  if (format.elems == 4) d.unsupported("conversion of four elements (stochastic rounding)");
}

bool needs_rounding(const ConvertDetail& detail) {
  if (!detail.from.is_float && detail.to.is_float) return true;
  if (detail.from.is_float && !detail.to.is_float) return true;
  if (!detail.to.is_float) return false;
  if (detail.to.type == Type::f64) return false;
  if (detail.from.type == Type::f64) return true;
  return detail.to.elem_bits < detail.from.elem_bits || detail.to.number == NumberFormat::tf32;
}

// The width of the register that `take` (Decoding::any_destination or any_source) finds.
uint32_t register_bits_at_least(Decoding& d, const ptx::Operand& operand, uint32_t wanted, uint32_t& row,
                                uint32_t (Decoding::*take)(const ptx::Operand&, uint32_t&)) {
  uint32_t bits = wanted;
  row = (d.*take)(operand, bits);
  if (bits < wanted) d.malformed("a register is narrower than its type");
  return bits;
}

uint32_t destination_bits(Decoding& d, const ConvertDetail& detail) {
  return register_bits_at_least(d, d.operand(0), detail.to.container_bits, d.op.dst, &Decoding::any_destination);
}
uint32_t source_bits(Decoding& d, const ConvertDetail& detail) {
  return register_bits_at_least(d, d.operand(1), detail.from.container_bits, d.op.a, &Decoding::any_source);
}

void set_scalar(Decoding& d, ConvertDetail detail) {
  d.require_operands(2);
  detail.dst_bits = destination_bits(d, detail);
  detail.src_bits = source_bits(d, detail);
  d.op.execute = &convert;
  d.op.detail = d.keep(std::move(detail));
}

template <class D, class S>
Flow resize(Warp& warp, const Op& op) {
  return map_lanes<D, S>(warp, op, [](S a) { return static_cast<D>(a); });
}
// Integer to integer without saturation, exact register widths: the hot cases.
Execute pick_resize(const ConvertDetail& detail) {
  if (detail.to.is_float || detail.from.is_float || detail.saturates) return nullptr;
  if (type_bits(detail.to.type) < 16 || type_bits(detail.from.type) < 16) return nullptr;
  return for_integer(detail.to.type, [&](auto to) {
    return for_integer(detail.from.type,
                       [&](auto from) { return vectorised<&resize<decltype(to), decltype(from)>>(); });
  });
}

void set_packed(Decoding& d, ConvertDetail detail) {
  d.op.dst = 0;
  if (detail.from.elems == 1) {
    if (detail.from.number != NumberFormat::f32 || detail.from.type != Type::none)
      d.unsupported("packing of this format");
    d.require_operands(3);
    d.op.a = d.source(1, 32);
    d.op.b = d.source(2, 32);
    detail.dst_bits = destination_bits(d, detail);
    const bool plain = detail.conversion.rounding == Rounding::rn && detail.conversion.clamp == Clamp::none &&
                       detail.conversion.saturation == Saturation::none;
    d.op.execute = plain && detail.to.number == NumberFormat::f16    ? vectorised<&pack_two_rn<encode_f16_rn>>()
                   : plain && detail.to.number == NumberFormat::bf16 ? vectorised<&pack_two_rn<encode_bf16_rn>>()
                                                                     : &pack_two;
  } else {
    d.require_operands(2);
    if (detail.to.elems != 2) d.unsupported("this pair of formats");
    detail.src_bits = source_bits(d, detail);
    detail.dst_bits = destination_bits(d, detail);
    d.op.execute = &convert_two;
  }
  d.op.detail = d.keep(std::move(detail));
}

// Two numbers of 8 bits, 6 of them behind the point, each times its own power of two, to bf16.
Flow scale_fixed_point(Warp& warp, const Op& op) {
  constexpr double kUnit = 1.0 / 64;
  const auto& conversion = *static_cast<const Conversion*>(op.detail);
  return map_lanes2<uint32_t, uint16_t, uint16_t>(warp, op, [&](uint16_t values, uint16_t scales) {
    const auto convert_one = [&](uint32_t i) {
      const double value = static_cast<int8_t>(values >> 8 * i) * kUnit;
      return encode(value * decode(scales >> 8 * i & 0xff, NumberFormat::ue8m0), conversion);
    };
    return convert_one(1) << 16 | convert_one(0);
  });
}

void set_scaled(Decoding& d, Conversion conversion) {
  d.take_one_of({"bf16x2"}, "format");
  d.take_one_of({"s2f6x2"}, "format");
  d.require_target({Target::sm_100a, Target::sm_103a});
  d.require_operands(3);
  conversion.to = NumberFormat::bf16;
  conversion.rounding = Rounding::rn;
  conversion.saturation = Saturation::finite;
  d.op.dst = d.destination(0, 32);
  d.op.a = d.source(1, 16);
  d.op.b = d.source(2, 16);
  d.op.detail = d.keep(conversion);
  d.op.execute = &scale_fixed_point;
}

void decode_cvt(Decoding& d) {
  ConvertDetail detail;
  const Modifiers modifiers = take_rounding(d);
  detail.ftz = d.take("ftz");
  detail.saturates = d.take("sat");
  bool satfinite = d.take("satfinite");
  if (d.take("relu")) detail.conversion.clamp = Clamp::relu;
  satfinite |= d.take("satfinite");
  if (d.take("scaled::n2::ue8m0")) {
    if (!satfinite || modifiers.rounding != Rounding::rn) d.unsupported("scaled without .rn.satfinite");
    return set_scaled(d, detail.conversion);
  }
  detail.to = take_format(d);
  detail.from = take_format(d);
  check_narrow_formats(d, detail.to);
  check_narrow_formats(d, detail.from);
  detail.conversion.to = detail.to.number;
  detail.conversion.rounding = modifiers.rounding;
  if (satfinite) detail.conversion.saturation = Saturation::finite;
  detail.integer_rounding = modifiers.rounding;
  detail.rounds_to_integer = modifiers.is_integer_rounding && detail.to.is_float && detail.from.is_float;
  if (needs_rounding(detail) && !modifiers.has_rounding) d.unsupported("without a rounding modifier");
  if (detail.from.is_float && !detail.to.is_float && !modifiers.is_integer_rounding)
    d.unsupported("this rounding to an integer");
  if (detail.to.elems != 1 || detail.from.elems != 1) return set_packed(d, std::move(detail));
  set_scalar(d, detail);
  const auto& kept = *static_cast<const ConvertDetail*>(d.op.detail);
  const bool exact_widths = kept.dst_bits == kept.to.container_bits && kept.src_bits == kept.from.container_bits;
  if (Execute execute = exact_widths ? pick_resize(kept) : nullptr) d.op.execute = execute;
  const bool plain = !kept.ftz && !kept.saturates && kept.conversion.clamp == Clamp::none;
  if (!exact_widths || !plain || kept.from.type != Type::none || kept.to.type != Type::none) return;
  if (kept.from.number == NumberFormat::bf16 && kept.to.number == NumberFormat::f32 && !satfinite)
    d.op.execute = &widen_bf16;
  if (kept.to.number == NumberFormat::tf32 && modifiers.rounding == Rounding::rna)
    d.op.execute = satfinite ? &round_to_tf32<Saturation::finite> : &round_to_tf32<Saturation::none>;
}

}  // namespace

void add_convert_instructions(InstructionTable& table) { table["cvt"] = {decode_cvt, manual::kDataMovement}; }

}  // namespace opdeck::emu
