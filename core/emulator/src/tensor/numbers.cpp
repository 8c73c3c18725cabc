// SPDX-License-Identifier: Apache-2.0
// Exact decoding and once-rounded encoding of PTX's number formats; see numbers.h.
#include "numbers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

namespace opdeck::emu {
namespace {

constexpr size_t num_formats = 13;
constexpr std::array<FormatTraits, num_formats> traits_table{{
    // bits, exponent, mantissa, bias, sign, inf, nan, max finite, NaN
    {16, 5, 10, 15, true, true, true, 0x7bff, 0x7fff},               // f16
    {16, 8, 7, 127, true, true, true, 0x7f7f, 0x7fff},               // bf16
    {32, 8, 10, 127, true, true, true, 0x7f7fe000, 0x7fffe000},      // tf32
    {8, 4, 3, 7, true, false, true, 0x7e, 0x7f},                     // e4m3
    {8, 5, 2, 15, true, true, true, 0x7b, 0x7f},                     // e5m2
    {6, 3, 2, 3, true, false, false, 0x1f, 0},                       // e3m2
    {6, 2, 3, 1, true, false, false, 0x1f, 0},                       // e2m3
    {4, 2, 1, 1, true, false, false, 0x7, 0},                        // e2m1
    {8, 8, 0, 127, false, false, true, 0xfe, 0xff},                  // ue8m0
    {8, 4, 3, 7, false, false, true, 0x7e, 0x7f},                    // ue4m3
    {32, 8, 23, 127, true, true, true, 0x7f7fffff, 0x7fffffff},      // f32
    {8, 0, 7, 0, true, false, false, 0x7f, 0},                       // s8
    {8, 0, 8, 0, false, false, false, 0xff, 0},                      // u8
}};
constexpr std::array<const char*, num_formats> format_names{"f16",  "bf16",  "tf32",  "e4m3", "e5m2", "e3m2", "e2m3",
                                                            "e2m1", "ue8m0", "ue4m3", "f32",  "s8",   "u8"};

// The low bits of a tf32 code that hold no mantissa.
constexpr uint32_t unused_low_bits(NumberFormat format) { return format == NumberFormat::tf32 ? 13 : 0; }

float quiet_nan() { return std::numeric_limits<float>::quiet_NaN(); }

// A code of a format with sign, exponent and mantissa of at most 16 bits, from the definition.
float decode_small(uint32_t code, NumberFormat format) {
  const FormatTraits& t = format_traits(format);
  code &= (1u << t.total_bits) - 1;
  const uint32_t sign_bit = t.has_sign ? 1u << (t.total_bits - 1) : 0;
  const bool negative = (code & sign_bit) != 0;
  uint32_t magnitude = code & ~sign_bit;
  if (format == NumberFormat::ue4m3) magnitude &= 0x7f;
  if (format == NumberFormat::ue8m0)
    return magnitude == t.nan_code ? quiet_nan() : std::ldexp(1.0f, static_cast<int>(magnitude) - t.bias);
  if (magnitude > t.max_finite_code) {
    const bool infinite = t.has_infinity && magnitude == t.max_finite_code + 1;
    if (!infinite) return quiet_nan();
    return negative ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::infinity();
  }
  const uint32_t biased = magnitude >> t.mantissa_bits;
  const uint32_t fraction = magnitude & ((1u << t.mantissa_bits) - 1);
  const uint32_t significand = biased == 0 ? fraction : fraction | 1u << t.mantissa_bits;
  const int exponent = (biased == 0 ? 1 : static_cast<int>(biased)) - t.bias - t.mantissa_bits;
  const float value = std::ldexp(static_cast<float>(significand), exponent);
  return negative ? -value : value;
}

std::array<float, 256> make_table(NumberFormat format) {
  std::array<float, 256> table;
  for (uint32_t code = 0; code < 256; ++code) table[code] = decode(code, format);
  return table;
}

// The integer to which `scaled` (>= 0, exact) rounds.
uint32_t round_magnitude(double scaled, bool negative, Rounding rounding, uint32_t random_bits) {
  const double whole = std::floor(scaled);
  const double rest = scaled - whole;
  const uint32_t down = static_cast<uint32_t>(whole);
  switch (rounding) {
    case Rounding::rz: return down;
    case Rounding::rm: return down + (negative && rest > 0);
    case Rounding::rp: return down + (!negative && rest > 0);
    case Rounding::rna: return down + (rest >= 0.5);
    case Rounding::rs: return static_cast<uint32_t>(std::floor(scaled + std::ldexp(random_bits, -32)));
    case Rounding::rn: return down + (rest > 0.5 || (rest == 0.5 && (down & 1)));
  }
  return down;
}

// Whether a finite value beyond max_finite rounds to infinity rather than to max_finite.
bool overflows_to_infinity(Rounding rounding, bool negative) {
  switch (rounding) {
    case Rounding::rz: return false;
    case Rounding::rm: return negative;
    case Rounding::rp: return !negative;
    default: return true;
  }
}

// What stands for an infinity (or an overflow that becomes one), sign not yet applied.
uint32_t infinity_code(const FormatTraits& t, NumberFormat format, Saturation saturation) {
  if (saturation == Saturation::finite || (!t.has_infinity && !t.has_nan)) return t.max_finite_code;
  return t.has_infinity ? t.max_finite_code + (1u << unused_low_bits(format)) : t.nan_code;
}

uint32_t encode_ue8m0(double value, const Conversion& conversion) {
  const FormatTraits& t = format_traits(NumberFormat::ue8m0);
  const double magnitude = std::fabs(value);
  if (std::isinf(magnitude)) return infinity_code(t, NumberFormat::ue8m0, conversion.saturation);
  if (magnitude <= 0x1p-127) return 0;
  int exponent = std::ilogb(magnitude);
  if (conversion.rounding == Rounding::rp && magnitude != std::ldexp(1.0, exponent)) ++exponent;
  const uint32_t code = static_cast<uint32_t>(exponent + t.bias);
  if (code <= t.max_finite_code) return code;
  return infinity_code(t, NumberFormat::ue8m0, conversion.saturation);
}

uint32_t encode_nan(double value, const Conversion& conversion) {
  const FormatTraits& t = format_traits(conversion.to);
  if (conversion.to == NumberFormat::tf32 && conversion.rounding == Rounding::rna)
    return encode_tf32_rna(__builtin_bit_cast(uint32_t, static_cast<float>(value)), conversion.saturation);
  return t.has_nan ? t.nan_code : t.max_finite_code;
}

}  // namespace

const FormatTraits& format_traits(NumberFormat format) { return traits_table[static_cast<size_t>(format)]; }
const char* format_name(NumberFormat format) { return format_names[static_cast<size_t>(format)]; }

float decode(uint32_t code, NumberFormat format) {
  switch (format) {
    case NumberFormat::f16: return decode_f16(static_cast<uint16_t>(code));
    case NumberFormat::bf16: return decode_bf16(static_cast<uint16_t>(code));
    case NumberFormat::tf32: return __builtin_bit_cast(float, code & 0xffffe000u);
    case NumberFormat::f32: return __builtin_bit_cast(float, code);
    case NumberFormat::s8: return static_cast<float>(static_cast<int8_t>(code));
    case NumberFormat::u8: return static_cast<float>(code & 0xff);
    default: return decode_small(code, format);
  }
}

uint32_t encode(double value, const Conversion& conversion, uint32_t random_bits) {
  const FormatTraits& t = format_traits(conversion.to);
  const uint32_t low_bits = unused_low_bits(conversion.to);
  if (std::isnan(value)) return encode_nan(value, conversion);
  if (conversion.to == NumberFormat::ue8m0) return encode_ue8m0(value, conversion);
  const bool negative = std::signbit(value);
  if (negative && (conversion.clamp == Clamp::relu || !t.has_sign)) return 0;
  const uint32_t sign = negative ? 1u << (t.total_bits - 1) : 0;
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  if (std::isinf(magnitude)) return infinity_code(t, conversion.to, conversion.saturation) | sign;

  // With the exponent clamped to the smallest normal one, subnormals and a carry into the exponent need no case of
  // their own: the code is (exponent - min) << mantissa_bits plus the rounded significand, hidden bit included.
  const int min_exponent = 1 - t.bias;
  const int exponent = std::max(std::ilogb(magnitude), min_exponent);
  if (exponent > t.bias + 1) {
    const bool infinite = overflows_to_infinity(conversion.rounding, negative);
    return (infinite ? infinity_code(t, conversion.to, conversion.saturation) : t.max_finite_code) | sign;
  }
  const double scaled = std::ldexp(magnitude, t.mantissa_bits - exponent);
  const uint32_t significand = round_magnitude(scaled, negative, conversion.rounding, random_bits);
  const uint32_t code = ((static_cast<uint32_t>(exponent - min_exponent) << t.mantissa_bits) + significand) << low_bits;
  if (code <= t.max_finite_code) return code | sign;
  const bool infinite = overflows_to_infinity(conversion.rounding, negative);
  return (infinite ? infinity_code(t, conversion.to, conversion.saturation) : t.max_finite_code) | sign;
}

uint32_t encode_tf32_rna(uint32_t bits, Saturation saturation) {
  constexpr uint32_t infinity = 0x7f800000, one_step = 1u << unused_low_bits(NumberFormat::tf32);
  const bool is_nan = (bits & 0x7fffffff) > infinity;
  const uint32_t rounded = (is_nan ? bits : bits + one_step / 2) & ~(one_step - 1);
  const bool beyond = (rounded & 0x7fffffff) >= infinity;
  return saturation == Saturation::finite && beyond ? rounded - one_step : rounded;
}

const float* decode_table(NumberFormat format) {
  static const std::array<std::array<float, 256>, 9> tables{
      make_table(NumberFormat::e4m3),  make_table(NumberFormat::e5m2),  make_table(NumberFormat::e3m2),
      make_table(NumberFormat::e2m3),  make_table(NumberFormat::e2m1),  make_table(NumberFormat::ue8m0),
      make_table(NumberFormat::ue4m3), make_table(NumberFormat::s8),    make_table(NumberFormat::u8)};
  switch (format) {
    case NumberFormat::s8: return tables[7].data();
    case NumberFormat::u8: return tables[8].data();
    default: return tables[static_cast<size_t>(format) - static_cast<size_t>(NumberFormat::e4m3)].data();
  }
}

void decode_bulk(const uint8_t* codes, size_t num_elems, NumberFormat format, float* values) {
  const auto word16 = [codes](size_t i) {
    uint16_t word;
    std::memcpy(&word, codes + 2 * i, 2);
    return word;
  };
  const auto word32 = [codes](size_t i) {
    uint32_t word;
    std::memcpy(&word, codes + 4 * i, 4);
    return word;
  };
  switch (format) {
    case NumberFormat::f16:
      for (size_t i = 0; i < num_elems; ++i) values[i] = decode_f16(word16(i));
      return;
    case NumberFormat::bf16:
      for (size_t i = 0; i < num_elems; ++i) values[i] = decode_bf16(word16(i));
      return;
    case NumberFormat::tf32:
    case NumberFormat::f32:
      for (size_t i = 0; i < num_elems; ++i) values[i] = decode(word32(i), format);
      return;
    default: {
      const float* table = decode_table(format);
      for (size_t i = 0; i < num_elems; ++i) values[i] = table[codes[i]];
    }
  }
}

void decode_packed(const uint8_t* codes, size_t num_elems, NumberFormat format, float* values) {
  const float* table = decode_table(format);
  const uint32_t code_bits = format_traits(format).total_bits;
  const uint32_t mask = (1u << code_bits) - 1;
  for (size_t i = 0; i < num_elems; ++i) {
    const size_t bit = i * code_bits;
    uint32_t window = codes[bit / 8];
    if (bit % 8 + code_bits > 8) window |= static_cast<uint32_t>(codes[bit / 8 + 1]) << 8;
    values[i] = table[window >> bit % 8 & mask];
  }
}

uint32_t container_bytes(NumberFormat format) {
  const uint32_t bits = format_traits(format).total_bits;
  return bits <= 8 ? 1 : bits / 8;
}

}  // namespace opdeck::emu
