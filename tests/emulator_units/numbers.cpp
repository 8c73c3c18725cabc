// SPDX-License-Identifier: Apache-2.0
// Conversions against the definition: every code's value from its fields, and every rounding from the two neighbouring
// values in a sorted table of the format's values.
#include "numbers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "check.h"

using namespace opdeck::emu;

namespace {

struct Definition {
  NumberFormat format;
  int exponent_bits, mantissa_bits, bias;
  uint32_t num_positive;  // finite codes from +0 on
  uint32_t step;          // between the codes of neighbours
  uint32_t infinity, nan; // 0: none
  uint32_t sign;          // 0: none
};
const Definition definitions[] = {
    {NumberFormat::f16, 5, 10, 15, 0x7c00, 1, 0x7c00, 0x7fff, 0x8000},
    {NumberFormat::bf16, 8, 7, 127, 0x7f80, 1, 0x7f80, 0x7fff, 0x8000},
    {NumberFormat::tf32, 8, 10, 127, 0x3fc00, 0x2000, 0x7f800000, 0x7fffe000, 0x80000000},
    {NumberFormat::e4m3, 4, 3, 7, 127, 1, 0, 0x7f, 0x80},
    {NumberFormat::e5m2, 5, 2, 15, 124, 1, 0x7c, 0x7f, 0x80},
    {NumberFormat::e3m2, 3, 2, 3, 32, 1, 0, 0, 0x20},
    {NumberFormat::e2m3, 2, 3, 1, 32, 1, 0, 0, 0x20},
    {NumberFormat::e2m1, 2, 1, 1, 8, 1, 0, 0, 0x8},
};

// Values of the positive codes, ascending.
std::vector<double> positive_values(const Definition& d) {
  std::vector<double> values;
  const uint32_t fraction_codes = 1u << d.mantissa_bits;
  for (uint32_t i = 0; i < d.num_positive; ++i) {
    const int exponent = static_cast<int>(i / fraction_codes);
    const double fraction = static_cast<double>(i % fraction_codes) / fraction_codes;
    values.push_back(exponent == 0 ? std::ldexp(fraction, 1 - d.bias) : std::ldexp(1 + fraction, exponent - d.bias));
  }
  return values;
}

// The expected code, by looking at the neighbours of |value|.
uint32_t expected_code(const Definition& d, const std::vector<double>& values, double value, const Conversion& c) {
  if (std::isnan(value) && d.format == NumberFormat::tf32 && c.rounding == Rounding::rna)
    return (__builtin_bit_cast(uint32_t, static_cast<float>(value)) >> 13 << 13) -
           (c.saturation == Saturation::finite ? d.step : 0);
  if (std::isnan(value)) return d.nan ? d.nan : (d.num_positive - 1) * d.step;
  const bool negative = std::signbit(value);
  if (negative && c.clamp == Clamp::relu) return 0;
  const uint32_t sign = negative ? d.sign : 0;
  const double magnitude = std::fabs(value);
  const uint32_t largest = (d.num_positive - 1) * d.step;
  uint32_t overflow = c.saturation == Saturation::finite || !(d.infinity || d.nan) ? largest
                      : d.infinity                                                ? d.infinity
                                                                                  : d.nan;
  if (std::isinf(value)) return overflow | sign;
  const size_t above = std::upper_bound(values.begin(), values.end(), magnitude) - values.begin();
  const size_t low = above - 1;
  if (values[low] == magnitude) return static_cast<uint32_t>(low) * d.step | sign;
  // One more value beyond the largest, where the next exponent or fraction would be.
  const double ulp = values.back() - values[values.size() - 2];
  const double high_value = above < values.size() ? values[above] : values.back() + ulp;
  const bool away = c.rounding == Rounding::rp ? !negative : negative;
  bool up = false;
  switch (c.rounding) {
    case Rounding::rz: up = false; break;
    case Rounding::rm:
    case Rounding::rp: up = away; break;
    default: {
      const double middle = (values[low] + high_value) / 2;
      if (magnitude != middle)
        up = magnitude > middle;
      else
        up = c.rounding == Rounding::rna || low % 2 == 1;
    }
  }
  // Far beyond the largest value, neighbours are not these two, but the decision is the same for all modes.
  if (magnitude > high_value && (c.rounding == Rounding::rn || c.rounding == Rounding::rna)) up = true;
  if (!up) return static_cast<uint32_t>(low) * d.step | sign;
  return (above < values.size() ? static_cast<uint32_t>(above) * d.step : overflow) | sign;
}

void check_decode(const Definition& d, const std::vector<double>& values) {
  for (uint32_t i = 0; i < d.num_positive; ++i) {
    CHECK_EQ(static_cast<double>(decode(i * d.step, d.format)), values[i], format_name(d.format), i);
    const float negative = decode(i * d.step | d.sign, d.format);
    CHECK(negative == -values[i] && std::signbit(negative), format_name(d.format), i);
  }
  if (d.infinity) CHECK(std::isinf(decode(d.infinity, d.format)), format_name(d.format));
  if (d.nan) CHECK(std::isnan(decode(d.nan, d.format)), format_name(d.format));
  if (d.infinity) CHECK(std::isnan(decode(d.infinity + d.step, d.format)), format_name(d.format));
}

std::vector<double> interesting_values(const std::vector<double>& values) {
  std::vector<double> inputs{0.0,    std::nan(""),          INFINITY,          1e300,
                             1e-300, values.back() * 1.5, values.back() * 2, 0x1p-149};
  const size_t step = std::max<size_t>(1, values.size() / 4000);
  for (size_t i = 0; i + 1 < values.size(); i += step) {
    const double middle = (values[i] + values[i + 1]) / 2;
    for (double v : {values[i], middle, std::nextafter(middle, 0.0), std::nextafter(middle, 1e308)})
      inputs.push_back(v);
  }
  const double ulp = values.back() - values[values.size() - 2];
  for (double v : {values.back(), values.back() + ulp / 2, values.back() + ulp / 2 * 1.01, values.back() + ulp})
    inputs.push_back(v);
  std::mt19937 rng(1);
  for (int i = 0; i < 20000; ++i) {
    const uint32_t bits = rng();
    float f;
    std::memcpy(&f, &bits, 4);
    inputs.push_back(f);
    inputs.push_back(std::ldexp(1.0 + (bits >> 9) * 0x1p-23, static_cast<int>(bits % 40) - 20));
  }
  return inputs;
}

void check_encode(const Definition& d, const std::vector<double>& values) {
  for (double magnitude : interesting_values(values))
    for (double value : {magnitude, -magnitude})
      for (Rounding r : {Rounding::rn, Rounding::rz, Rounding::rm, Rounding::rp, Rounding::rna})
        for (Saturation s : {Saturation::none, Saturation::finite})
          for (Clamp clamp : {Clamp::none, Clamp::relu}) {
            const Conversion c{d.format, r, s, clamp};
            CHECK_EQ(encode(value, c), expected_code(d, values, value, c), format_name(d.format), "of", value,
                     "rounding", static_cast<int>(r), "saturation", static_cast<int>(s));
          }
}

// The bit tricks against encode, and every f16 code against itself.
void check_fast_paths() {
  std::mt19937 rng(2);
  for (int i = 0; i < 3000000; ++i) {
    const uint32_t bits = i < 65536 * 8 ? static_cast<uint32_t>(i) << 13 : rng();
    const float value = __builtin_bit_cast(float, bits);
    CHECK_EQ(encode_f16_rn(value), encode(value, {NumberFormat::f16}), "f16 of", value);
    CHECK_EQ(encode_bf16_rn(value), encode(value, {NumberFormat::bf16}), "bf16 of", value);
    const uint32_t quieted = std::isnan(value) ? bits | 0x400000 : bits;
    for (Saturation s : {Saturation::none, Saturation::finite})
      CHECK_EQ(encode_tf32_rna(quieted, s), encode(value, {NumberFormat::tf32, Rounding::rna, s}), "tf32 of", value);
  }
  for (uint32_t code = 0; code < 65536; ++code) {
    const float value = decode_f16(static_cast<uint16_t>(code));
    if (!std::isnan(value)) CHECK_EQ(encode_f16_rn(value), code);
  }
}

void check_ue8m0() {
  for (uint32_t code = 0; code < 255; ++code) {
    const double value = std::ldexp(1.0, static_cast<int>(code) - 127);
    CHECK_EQ(static_cast<double>(decode(code, NumberFormat::ue8m0)), value);
    for (Rounding r : {Rounding::rz, Rounding::rp}) {
      const Conversion c{NumberFormat::ue8m0, r, Saturation::finite};
      CHECK_EQ(encode(value, c), code);
      CHECK_EQ(encode(value * 1.25, c), std::min(254u, r == Rounding::rp ? code + 1 : code), "code", code);
    }
  }
  CHECK(std::isnan(decode(255, NumberFormat::ue8m0)));
  CHECK_EQ(encode(0.0, {NumberFormat::ue8m0, Rounding::rp}), 0u);
  CHECK_EQ(encode(std::nan(""), {NumberFormat::ue8m0, Rounding::rz}), 255u);
  CHECK_EQ(encode(INFINITY, {NumberFormat::ue8m0, Rounding::rz, Saturation::finite}), 254u);
}

void check_stochastic() {
  // 1 + 3/8 of an e4m3 step: the fraction of random words that round up is 3/8.
  const double value = 1.0 + 0.125 * 3 / 8;
  const Conversion c{NumberFormat::e4m3, Rounding::rs, Saturation::finite};
  int num_up = 0;
  for (uint32_t i = 0; i < 4096; ++i) num_up += encode(value, c, i << 20) == 0x39;
  CHECK_EQ(num_up, 4096 * 3 / 8);
  CHECK_EQ(encode(1.125, c, 0xffffffff), 0x39u, "an exact value does not move");
}

void check_packed() {
  // Four 6-bit codes in three bytes, element 0 lowest.
  const uint8_t six[3] = {0x01 | 0x02 << 6, 0x02 >> 2 | 0x03 << 4, 0x03 >> 4 | 0x1f << 2};
  float values[4];
  decode_packed(six, 4, NumberFormat::e2m3, values);
  CHECK_EQ(values[0], 0.125f);
  CHECK_EQ(values[1], 0.25f);
  CHECK_EQ(values[2], 0.375f);
  CHECK_EQ(values[3], 7.5f);
  const uint8_t four[2] = {0x7 | 0x9 << 4, 0x2 | 0xf << 4};
  decode_packed(four, 4, NumberFormat::e2m1, values);
  CHECK_EQ(values[0], 6.0f);
  CHECK_EQ(values[1], -0.5f);
  CHECK_EQ(values[2], 1.0f);
  CHECK_EQ(values[3], -6.0f);
}

}  // namespace

int main() {
  for (const Definition& d : definitions) {
    const std::vector<double> values = positive_values(d);
    check_decode(d, values);
    check_encode(d, values);
  }
  check_fast_paths();
  check_ue8m0();
  check_stochastic();
  check_packed();
  // What PTX and OCP state in so many words.
  CHECK_EQ(decode(0x7e, NumberFormat::e4m3), 448.0f);
  CHECK_EQ(decode(0x7b, NumberFormat::e5m2), 57344.0f);
  CHECK_EQ(decode(0x1f, NumberFormat::e3m2), 28.0f);
  CHECK_EQ(decode(0x1f, NumberFormat::e2m3), 7.5f);
  CHECK_EQ(decode(0x7, NumberFormat::e2m1), 6.0f);
  CHECK_EQ(decode(0x80, NumberFormat::s8), -128.0f);
  CHECK_EQ(decode(0xff, NumberFormat::u8), 255.0f);
  CHECK_EQ(decode(0x3f801fff, NumberFormat::tf32), 1.0f, "tf32 ignores its low bits");
  // What an H200 answers.
  CHECK_EQ(encode_tf32_rna(0x7f7fffff, Saturation::none), 0x7f800000u);
  CHECK_EQ(encode_tf32_rna(0x7f7fffff, Saturation::finite), 0x7f7fe000u);
  CHECK_EQ(encode_tf32_rna(0xff800000, Saturation::finite), 0xff7fe000u);
  CHECK_EQ(encode_tf32_rna(0x7f800001, Saturation::finite), 0x7f7fe000u, "a NaN that becomes finite");
  CHECK_EQ(encode_tf32_rna(0x7fbf5ca9, Saturation::finite), 0x7fbf2000u, "a NaN is truncated, not rounded");
  CHECK_EQ(encode_tf32_rna(0x7fc00000, Saturation::finite), 0x7fbfe000u);
  return check::result();
}
