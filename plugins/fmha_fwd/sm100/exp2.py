# SPDX-License-Identifier: Apache-2.0
"""exp2 of a row of scores: on MUFU, and in part by a polynomial on the FMA pipe.

Called by: softmax.py.
Source: Cody-Waite range reduction, as FlashAttention-4 uses it: 2^x = 2^floor(x) * 2^(x - floor(x)), the second factor
by a polynomial of degree 3 on [0, 1) that is exact at 0 and continuous at 1.
Limits: the polynomial's relative error is 1.1e-4, below the rounding of fp16 (4.9e-4) and bf16 (3.9e-3) P. What is
smaller than 2^-127 becomes about 2^-127, -inf too: hidden scores must take MUFU, so masked tiles use no polynomial.
A NaN comes out as a number so large that P is inf: not NaN, but not finite either.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

# Minimax in relative error for 2^f on [0, 1) with p(0) = 1 and p(1) = 2.
POLY = (1.0, 0.69550338, 0.22600286, 0.07849376)
# Adding 1.5 * 2^23 leaves the integer part of a small float in its low mantissa bits.
ROUND_TO_INT = 12582912.0
MIN_EXPONENT = -127.0
MANTISSA_BITS = 23


@cute.jit
def exp2_chunk(x: cute.Tensor, scale: Float32, offset: Float32, num_poly: int) -> None:
    """x[i] = 2^(x[i] * scale + offset), in place; the last `num_poly` (even) elements by polynomial."""
    num_mufu = cute.size(x) - num_poly
    for i in cutlass.range_constexpr(0, cute.size(x), 2):
        x[i], x[i + 1] = cute.arch.fma_packed_f32x2((x[i], x[i + 1]), (scale, scale), (offset, offset))
        if cutlass.const_expr(i < num_mufu):
            x[i] = cute.math.exp2(x[i], fastmath=True)
            x[i + 1] = cute.math.exp2(x[i + 1], fastmath=True)
        else:
            x[i], x[i + 1] = exp2_pair_poly(x[i], x[i + 1])


@cute.jit
def exp2_pair_poly(x0: Float32, x1: Float32) -> tuple[Float32, Float32]:
    """2^x of two values by polynomial. Domain: x < 128."""
    low = (cute.arch.fmax(x0, MIN_EXPONENT, nan=True), cute.arch.fmax(x1, MIN_EXPONENT, nan=True))
    magic = (ROUND_TO_INT, ROUND_TO_INT)
    # Rounding down makes the integer part floor(x), so that the fraction lies in [0, 1).
    shifted = cute.arch.add_packed_f32x2(low, magic, rnd="rm")
    whole = cute.arch.sub_packed_f32x2(shifted, magic)
    fraction = cute.arch.sub_packed_f32x2(low, whole)
    poly = (Float32(POLY[3]), Float32(POLY[3]))
    for coefficient in (POLY[2], POLY[1], POLY[0]):
        poly = cute.arch.fma_packed_f32x2(poly, fraction, (coefficient, coefficient))
    return scale_by_power(poly[0], shifted[0]), scale_by_power(poly[1], shifted[1])


@cute.jit
def scale_by_power(mantissa: Float32, shifted: Float32) -> Float32:
    """mantissa * 2^n, n being the integer in the low bits of `shifted`: added to the exponent field."""
    bits = mantissa.bitcast(Int32) + (shifted.bitcast(Int32) << MANTISSA_BITS)
    return bits.bitcast(Float32)
