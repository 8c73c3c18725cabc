# SPDX-License-Identifier: Apache-2.0
"""Blocks of fp32 numbers to block-scaled elements and their scale, in registers, as opdeck.core.mx.quantize has them.

Called by: the epilogue of mx_gemm, and the kernel of mx_quantize.
Source: OCP Microscaling specification 1.0, section 6.3; PTX ISA 9.x, "cvt" (.rn.satfinite to e4m3x2, e5m2x2, e3m2x2,
e2m3x2 and e2m1x2: of two numbers the first goes to the upper half).
The exponent of a block's largest magnitude is that of an E8M0 scale but for a constant. Everything is exact, or rounded
to fp32 as quantize rounds it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Uint32

from opdeck.core.mx.formats import MxFormat

WORD_BITS = 32
_ABS_BITS = 0x7FFFFFFF
_MANTISSA_BITS = 23
_EXPONENT_OF_INF = 255
_E8M0_NAN, _E4M3_NAN = 255, 0x7F
# A pair of numbers becomes a register: of 16 bits with an element in each byte, of 8 bits with two of FP4.
_PAIR_TYPES = {
    "fp8_e4m3": ("e4m3x2", ".b16"),
    "fp8_e5m2": ("e5m2x2", ".b16"),
    "fp6_e3m2": ("e3m2x2", ".b16"),
    "fp6_e2m3": ("e2m3x2", ".b16"),
    "fp4_e2m1": ("e2m1x2", ".b8"),
}


@dataclass(frozen=True)
class Arithmetic:
    """What an arch has. scale: multiplies registers by a number; abs_max: the bits of their largest magnitude, of a NaN
    where there is one."""

    scale: Callable[[cute.Tensor, Float32], None]
    abs_max: Callable[[cute.Tensor], Uint32]


@dataclass(frozen=True)
class Block:
    """A block of elements and its scale. words: 32-bit registers, packed as in memory; code: the byte of the scale."""

    words: list[Uint32]
    code: Uint32


class BlockEncoder:
    """Encodes blocks of one format. inverse_unit: 1 / the scale of the tensor, for formats that have one."""

    def __init__(self, row: MxFormat, inverse_unit: Float32, arithmetic: Arithmetic) -> None:
        self.row = row
        self.inverse_unit = inverse_unit
        self.arithmetic = arithmetic

    def encode(self, values: cute.Tensor) -> Block:
        """The block of `values`, row.block fp32 registers, which are overwritten."""
        amax = self.arithmetic.abs_max(values)
        is_finite = Int32(amax >> _MANTISSA_BITS) < _EXPONENT_OF_INF
        if self.row.has_global_scale:
            self.arithmetic.scale(values, self.inverse_unit)
            code, inverse = _e4m3_scale(from_bits(amax) * self.inverse_unit, self.row)
            code = cutlass.select_(is_finite, code, Uint32(_E4M3_NAN))
            is_used = is_finite & (code != 0)
        else:
            exponent = cutlass.max(Int32(amax >> _MANTISSA_BITS) - self.row.emax, Int32(0))
            code = cutlass.select_(is_finite, Uint32(exponent), Uint32(_E8M0_NAN))
            inverse = from_bits(Uint32(254 - exponent) << _MANTISSA_BITS)
            is_used = is_finite
        self.arithmetic.scale(values, inverse)
        kept = cutlass.select_(is_used, Uint32(0xFFFFFFFF), Uint32(0))
        return Block([word & kept for word in _packed(values, self.row)], Uint32(code))


def inverse_of(unit: Float32) -> Float32:
    """1 / unit, rounded to nearest."""
    return cute.arch.inline_ptx("rcp.rn.f32 {$w0}, {$r0};", write_only_types=[Float32], read_only_args=[unit])


def scale_each(values: cute.Tensor, factor: Float32) -> None:
    for i in range(cute.size(values)):
        values[i] = values[i] * factor


def scale_values(values: cute.Tensor, factor: Float32) -> None:
    """Two at a time, which Blackwell can."""
    for i in range(0, cute.size(values), 2):
        values[i], values[i + 1] = cute.arch.mul_packed_f32x2((values[i], values[i + 1]), (factor, factor))


def abs_max_bits(values: cute.Tensor) -> Uint32:
    """The bits of the largest magnitude; of a NaN where there is one. As integers: there NaN is the largest."""
    bits = cute.make_tensor(cute.recast_ptr(values.iterator, dtype=Uint32), values.layout)
    largest = [bits[i] & _ABS_BITS for i in range(cute.size(values))]
    while len(largest) > 1:
        rest = largest[len(largest) & ~1 :]
        largest = [cutlass.max(a, b) for a, b in zip(largest[::2], largest[1::2], strict=False)] + rest
    return largest[0]


def abs_max_of_three(values: cute.Tensor) -> Uint32:
    """The same by maxima of three, which Blackwell has."""
    code = "max.NaN.abs.f32 {$w0}, {$r0}, {$r1}, {$r2};"
    rest = [values[i] for i in range(cute.size(values))]
    while len(rest) > 1:
        trio = [*rest, Float32(0.0)][:3]
        rest = [*rest[3:], cute.arch.inline_ptx(code, write_only_types=[Float32], read_only_args=trio)]
    bits = cute.arch.inline_ptx("mov.b32 {$w0}, {$r0};", write_only_types=[Uint32], read_only_args=rest)
    return bits & _ABS_BITS


HOPPER = Arithmetic(scale_each, abs_max_bits)
BLACKWELL = Arithmetic(scale_values, abs_max_of_three)


def from_bits(bits: Uint32) -> Float32:
    return cute.arch.inline_ptx("mov.b32 {$w0}, {$r0};", write_only_types=[Float32], read_only_args=[bits])


def _e4m3_scale(amax: Float32, row: MxFormat) -> tuple[Uint32, Float32]:
    """The byte of the e4m3 nearest to amax / the largest element, and the reciprocal of its value.

    One step of Newton's makes the approximate reciprocal the one that is rounded to nearest: its error is squared, and
    1 / s of an e4m3 s has no run of bits that would bring it so near to the middle of two numbers.
    """
    wanted = amax * Float32(1.0 / row.max_normal)
    code, inverse = cute.arch.inline_ptx(
        """{
        .reg .b16 pair, low, high;
        .reg .b32 halves;
        .reg .f32 scale, minus, near, error;
        cvt.rn.satfinite.e4m3x2.f32 pair, {$r1}, {$r0};
        cvt.rn.f16x2.e4m3x2 halves, pair;
        mov.b32 {low, high}, halves;
        cvt.f32.f16 scale, low;
        cvt.u32.u16 {$w0}, pair;
        rcp.approx.ftz.f32 near, scale;
        neg.f32 minus, scale;
        fma.rn.f32 error, minus, near, {$r2};
        fma.rn.f32 {$w1}, error, near, near;
        }""",
        write_only_types=[Uint32, Float32],
        read_only_args=[wanted, Float32(0.0), Float32(1.0)],
    )
    return code, inverse


def _packed(values: cute.Tensor, row: MxFormat) -> list[Uint32]:
    """The elements nearest to the values as words."""
    bits = 8 if row.bits == 6 else row.bits
    elems = WORD_BITS // bits
    words = [_word([values[first + i] for i in range(elems)], row) for first in range(0, cute.size(values), elems)]
    if row.bits != 6:
        return words
    trios = [_without_gaps(word) for word in words]
    packed = []
    for first in range(0, len(trios), 4):  # 4 times 24 bits are 3 words
        a, b, c, d = trios[first : first + 4]
        packed += [a | (b << 24), (b >> 8) | (c << 16), (c >> 16) | (d << 8)]
    return packed


def _word(numbers: list[Float32], row: MxFormat) -> Uint32:
    kind, pair = _PAIR_TYPES[row.element_name]
    names = [f"pair{i}" for i in range(len(numbers) // 2)]
    lines = [f".reg {pair} {', '.join(names)};"]
    for i, name in enumerate(names):
        lines.append(f"cvt.rn.satfinite.{kind}.f32 {name}, {{$r{2 * i + 1}}}, {{$r{2 * i}}};")
    lines.append(f"mov.b32 {{$w0}}, {{{', '.join(names)}}};")
    code = "{\n" + "\n".join(lines) + "\n}"
    return cute.arch.inline_ptx(code, write_only_types=[Uint32], read_only_args=numbers)


def _without_gaps(word: Uint32) -> Uint32:
    """Four elements of 6 bits, a byte each, side by side in 24 bits."""
    return (word & 0x3F) | ((word >> 2) & 0xFC0) | ((word >> 4) & 0x3F000) | ((word >> 6) & 0xFC0000)
