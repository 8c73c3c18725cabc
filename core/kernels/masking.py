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
from opdeck.core.fusion.intmath import is_static_zero, max_
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
            first_key = coords.k + first
            begin = 0 if is_static_zero(k_begin) else max_(k_begin - first_key, 0)
            word = bit_field(begin, k_end - first_key)
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


def bit_field(begin: Int32 | int, end: Int32) -> Uint32:
    """A word whose bits [begin, end) are set, of which there may be none in it. 0 <= begin."""
    # Not shifts: by 32 or more they are undefined.
    return cute.arch.inline_ptx(
        "bmsk.clamp.b32 {$w0}, {$r0}, {$r1};", write_only_types=[Uint32], read_only_args=[begin, max_(end - begin, 0)]
    )
