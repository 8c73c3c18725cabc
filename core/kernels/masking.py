# SPDX-License-Identifier: Apache-2.0
"""Fusions on scores of which each thread holds one row: consecutive keys in consecutive registers.

Called by: softmax roles whose tensor-memory loads give a row to a thread (tcgen05.ld.32x32b).
An IntervalMask becomes bit masks, one word for 32 keys, built once a row and tile: an element then costs one select
on a bit, and no comparison of coordinates. Any other Mask is asked element by element.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Uint32

from opdeck.core.fusion.attention import AttentionFusion, Coords, IntervalMask, Mask
from opdeck.core.fusion.functions import ScoreFunction
from opdeck.core.fusion.intmath import clamp, is_static_zero
from opdeck.core.fusion.scores import TensorScore

WORD_BITS = 32


@cute.jit
def apply_scores(
    fusion: AttentionFusion, scores: cute.Tensor, coords: Coords, softmax_scale: Float32, with_tensor: Any
) -> None:
    """Makes logits of S and runs the fusion's score functions on them, in order. scores[i] is of key coords.k + i.

    with_tensor(score, scores, coords): runs one that has a tensor.
    """
    for idx in cutlass.range_constexpr(0, cute.size(scores), 2):
        pair = (scores[idx], scores[idx + 1])
        scores[idx], scores[idx + 1] = cute.arch.mul_packed_f32x2(pair, (softmax_scale, softmax_scale))
    for score in fusion.scores:
        if cutlass.const_expr(isinstance(score, TensorScore)):
            with_tensor(score, scores, coords)
        elif cutlass.const_expr(isinstance(score, ScoreFunction)):
            for first in cutlass.range_constexpr(0, cute.size(scores), WORD_BITS):
                some = cute.make_tensor(scores.iterator + first, cute.make_layout(WORD_BITS))
                if coords.k + first < coords.sk:  # a branch, as in apply_mask
                    score.apply_score(some, coords._replace(k=coords.k + first))
        else:
            score.apply_score(scores, coords)


@cute.jit
def apply_mask(mask: Mask, scores: cute.Tensor, coords: Coords) -> None:
    """Sets to -inf the scores that `mask` hides. scores[i] is of key coords.k + i; coords.k: a multiple of 32 keys."""
    if cutlass.const_expr(isinstance(mask, IntervalMask)):
        assert isinstance(mask, IntervalMask)  # const_expr hides it from type checkers
        k_begin, k_end = mask.visible_interval(coords.q, coords.sq, coords.sk)
        for first in cutlass.range_constexpr(0, cute.size(scores), WORD_BITS):
            word = bits_below(k_end - (coords.k + first))
            if cutlass.const_expr(not is_static_zero(k_begin)):
                word = word & ~bits_below(k_begin - (coords.k + first))
            for bit in cutlass.range_constexpr(WORD_BITS):
                hide_unless(scores, first + bit, (word & Uint32(1 << bit)) != 0)
    else:
        for first in cutlass.range_constexpr(0, cute.size(scores), WORD_BITS):
            some = cute.make_tensor(scores.iterator + first, cute.make_layout(WORD_BITS))
            # The branch also keeps ptxas from deciding about all keys at once, for which it lacks registers.
            if coords.k + first < coords.sk:
                for idx in cutlass.range_constexpr(WORD_BITS):
                    hide_unless(some, idx, mask.visible(coords._replace(k=coords.k + first + idx)))
            else:
                some.fill(-Float32.inf)


def hide_unless(scores: cute.Tensor, idx: int, visible: Boolean) -> None:
    """scores[idx] = -inf unless visible, as a select."""
    scores[idx] = cutlass.select_(visible, scores[idx], -Float32.inf)


def bits_below(num_bits: Int32) -> Uint32:
    """A word whose lowest clamp(num_bits, 0, 32) bits are set."""
    # A shift by 32 is undefined for a 32-bit word: split it in a shift by at most 31 and one by 0 or 1.
    count = clamp(Int32(num_bits), 0, WORD_BITS)
    return ~((~Uint32(0)) << Uint32(count // 2) << Uint32(count - count // 2))
