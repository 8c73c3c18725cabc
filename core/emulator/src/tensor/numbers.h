// SPDX-License-Identifier: Apache-2.0
// The number formats of PTX and exact conversions between them.
// Called by cvt and the mixed-precision arithmetic of src/isa, and by the MMA code of src/tensor.
// Source: PTX ISA, "Alternate Floating-Point Data Formats" and "cvt"; OCP OFP8 and Microscaling v1.0.
// Limits: every decode is exact; every encode rounds once, from an exact double (an f32 source is one).
#pragma once

#include <cstddef>
#include <cstdint>

namespace opdeck::emu {

// s8 and u8 are here as MMA operands only: decode takes them, encode does not.
enum class NumberFormat : uint8_t { f16, bf16, tf32, e4m3, e5m2, e3m2, e2m3, e2m1, ue8m0, ue4m3, f32, s8, u8 };

// rn nearest even, rz towards zero, rm down, rp up, rna nearest with ties away from zero,
// rs stochastic: adds `random_bits` below the last kept bit (see Conversion), then truncates.
enum class Rounding : uint8_t { rn, rz, rm, rp, rna, rs };

// How the modifiers of one cvt change its result.
//   finite: overflow (inf included) gives the largest finite value of the input's sign. e4m3, e5m2 and
//           the 6- and 4-bit formats always convert this way in PTX.
//   none:   overflow gives inf where the format has one and the rounding says so, else its NaN.
enum class Saturation : uint8_t { none, finite };
// relu: a negative result, -0 included, becomes +0. A NaN becomes the canonical NaN under both.
enum class Clamp : uint8_t { none, relu };

struct Conversion {
  NumberFormat to = NumberFormat::f16;
  Rounding rounding = Rounding::rn;
  Saturation saturation = Saturation::none;
  Clamp clamp = Clamp::none;
};

struct FormatTraits {
  uint8_t total_bits;     // storage of one code, in the low bits (tf32: 32, its low 13 bits zero)
  uint8_t exponent_bits;
  uint8_t mantissa_bits;  // kept after rounding, without the hidden one
  int16_t bias;
  bool has_sign;
  bool has_infinity;
  bool has_nan;
  uint32_t max_finite_code;  // of the positive side
  uint32_t nan_code;         // canonical NaN that PTX writes (0 where there is none)
};
const FormatTraits& format_traits(NumberFormat format);
const char* format_name(NumberFormat format);

// The exact value of one code; the bits above total_bits are ignored. A NaN gives a quiet NaN.
// tf32 ignores its low 13 bits, as the tensor core does.
float decode(uint32_t code, NumberFormat format);

// The code of `value` (an f32 source is passed as it is: float to double is exact). -0 keeps its sign where
// the format has one. NaN gives nan_code (but rna to tf32 does as encode_tf32_rna); where the format has no NaN (e3m2,
// e2m3, e2m1) +max_finite.
// ue8m0 takes rz and rp; it ignores the sign. random_bits is for Rounding::rs only: the bits that are
// added below the last kept bit, as a fraction random_bits / 2^32 of one unit in the last place.
uint32_t encode(double value, const Conversion& conversion, uint32_t random_bits = 0);

// The two hot cases of encode, rn without saturation, as bit tricks; inline, so that loops over lanes become vectors.
inline uint16_t encode_bf16_rn(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  if (value != value) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline uint16_t encode_f16_rn(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0x7fff;
  if (magnitude >= 0x47800000) return static_cast<uint16_t>(sign | 0x7c00);  // 2^16 and more
  if (magnitude < 0x38800000) {
    // Below 2^-14: adding 2^-1 makes the f32 adder round to a multiple of 2^-24, the step of f16's subnormals.
    const float rounded = __builtin_bit_cast(float, magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (__builtin_bit_cast(uint32_t, rounded) - 0x3f000000));
  }
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13));
}

// cvt.rna.tf32 of an f32's bits as an H200 does it: it adds half of the last kept bit, but not to a NaN, which it only
// truncates. With Saturation::finite, whatever is then at infinity or beyond becomes one step less: the largest finite
// value, but of a NaN mostly another NaN. (Confirmed by tests/truth: 32768 words.)
uint32_t encode_tf32_rna(uint32_t bits, Saturation saturation);

inline float decode_f16(uint16_t code) {
  constexpr uint32_t rebias = (127 - 15) << 23;
  const uint32_t sign = static_cast<uint32_t>(code & 0x8000) << 16;
  const uint32_t shifted = static_cast<uint32_t>(code & 0x7fff) << 13;
  const uint32_t exponent = shifted & 0x0f800000;
  uint32_t bits = shifted + rebias;
  if (exponent == 0x0f800000) {
    bits += rebias;  // inf and NaN: the exponent becomes 255
  } else if (exponent == 0) {
    constexpr uint32_t smallest_normal = 113u << 23;
    bits = __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, shifted + smallest_normal) -
                                            __builtin_bit_cast(float, smallest_normal));
  }
  return __builtin_bit_cast(float, bits | sign);
}
inline float decode_bf16(uint16_t code) { return __builtin_bit_cast(float, static_cast<uint32_t>(code) << 16); }

// 256 decoded values of a format of at most 8 bits (a 6- or 4-bit code sits in the low bits of a byte and the
// bits above are ignored, as the MMA does with its padded operands).
const float* decode_table(NumberFormat format);

// Decodes num_elems codes, each in a container of container_bytes (formats below 8 bits: one a byte).
void decode_bulk(const uint8_t* codes, size_t num_elems, NumberFormat format, float* values);

// The same for codes of fewer than 8 bits that stand bit to bit, element 0 in the lowest bits: e2m1 two a byte, e3m2
// and e2m3 four in three bytes.
void decode_packed(const uint8_t* codes, size_t num_elems, NumberFormat format, float* values);

// Bytes that one code takes where it stands alone: 1, 2 or 4.
uint32_t container_bytes(NumberFormat format);

}  // namespace opdeck::emu
