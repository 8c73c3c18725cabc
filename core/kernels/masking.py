# SPDX-License-Identifier: Apache-2.0
"""Fusions on scores of which each thread holds one row: consecutive keys in consecutive registers.

Called by: softmax roles whose tensor-memory loads give a row to a thread (tcgen05.ld.32x32b).
An IntervalMask becomes bit masks, one word for 28 keys, built once a row and tile: an element then costs one select
on a bit, and no comparison of coordinates. Any other Mask is asked element by element.
Words leave the top bit of each byte out: SASS has seven predicates, which R2P fills with the low bits of a byte, and
an eighth would take a test of its own.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Uint32

from opdeck.core.fusion.attention import AttentionFusion, Coords, IntervalMask, Mask
from opdeck.core.fusion.functions import ScoreFunction
from opdeck.core.fusion.intmath import clamp, is_static_zero, max_
from opdeck.core.fusion.scores import TensorScore

WORD_BITS = 32
CHUNK_COLS = 32


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
            for first in cutlass.range_constexpr(0, cute.size(scores), CHUNK_COLS):
                some = cute.make_tensor(scores.iterator + first, cute.make_layout(CHUNK_COLS))
                if coords.k + first < coords.sk:  # a branch, as in apply_mask
                    score.apply_score(some, coords._replace(k=coords.k + first))
        else:
            score.apply_score(scores, coords)


@cute.jit
def apply_mask(mask: Mask, scores: cute.Tensor, coords: Coords) -> None:
    """Sets to -inf the scores that `mask` hides. scores[i], at most 128 of them, is of key coords.k + i, and coords.k a
    multiple of 32."""
    if cutlass.const_expr(isinstance(mask, IntervalMask)):
        assert isinstance(mask, IntervalMask)  # const_expr hides it from type checkers
        num_keys = cute.size(scores)
        k_begin, k_end = mask.visible_interval(coords.q, coords.sq, coords.sk)
        begin = 0 if is_static_zero(k_begin) else bit_of(clamp(k_begin - coords.k, 0, num_keys))
        end = bit_of(clamp(k_end - coords.k, 0, num_keys))
        for idx in cutlass.range_constexpr(num_keys):
            bit = bit_of(idx)
            if cutlass.const_expr(bit % WORD_BITS == 0):
                word = bit_field(begin, end, bit)
            hide_unless(scores, idx, (word & Uint32(1 << bit % WORD_BITS)) != 0)
    else:
        for first in cutlass.range_constexpr(0, cute.size(scores), CHUNK_COLS):
            some = cute.make_tensor(scores.iterator + first, cute.make_layout(CHUNK_COLS))
            # The branch also keeps ptxas from deciding about all keys at once, for which it lacks registers.
            if coords.k + first < coords.sk:
                for idx in cutlass.range_constexpr(CHUNK_COLS):
                    hide_unless(some, idx, mask.visible(coords._replace(k=coords.k + first + idx)))
            else:
                some.fill(-Float32.inf)


def bit_of(key: Any) -> Any:
    """Bit of a tile's `key`-th key, counted through its words: key + key // 7. 0 <= key <= 128."""
    return key + (key * 147 >> 10)


def hide_unless(scores: cute.Tensor, idx: int, visible: Boolean) -> None:
    """scores[idx] = -inf unless visible, as a select."""
    scores[idx] = cutlass.select_(visible, scores[idx], -Float32.inf)


def bit_field(begin: Int32 | int, end: Int32, first: int) -> Uint32:
    """The word that begins with bit `first` of a string whose bits [begin, end) are set, of which it may have none."""
    begin_in_word = 0 if is_static_zero(begin) else max_(begin - first, 0)
    # Not shifts: by 32 or more they are undefined. The max in PTX, or LLVM makes two instructions of one.
    return cute.arch.inline_ptx(
        "{ .reg .s32 n; sub.s32 n, {$r1}, {$r2}; max.s32 n, n, 0; bmsk.clamp.b32 {$w0}, {$r0}, n; }",
        write_only_types=[Uint32],
        read_only_args=[begin_in_word, Int32(end), Int32(first + begin_in_word)],
    )
