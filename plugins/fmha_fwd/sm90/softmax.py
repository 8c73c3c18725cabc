# SPDX-License-Identifier: Apache-2.0
"""Online softmax over score fragments of wgmma, and the masks, all in registers.

Called by consumer.py. Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018);
Dao, "FlashAttention-2" (2023), algorithm 1. Scores are raw, S = Q K^T: the scale is folded in the exp2 FMA, so
softmax_scale must be positive (the maximum of S * softmax_scale is taken on S).
Fragment: PTX ISA, "wgmma.mma_async", register fragment of D: a thread holds two rows, eight apart, and of each group
of eight columns two; four neighbouring lanes share a row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32

LOG2_E = math.log2(math.e)
LN_2 = math.log(2.0)
ROW_LANES = 4  # lanes that share a row of the fragment
ROWS_PER_THREAD = 2


def rows_of(fragment: cute.Tensor) -> cute.Tensor:
    """View ((2, 2, N/8), 1, 1) = ((column of a pair, row, pair), ..) as (row, column): (2, N/4)."""
    pair, row, group = fragment.layout[0].shape
    pair_stride, row_stride, group_stride = fragment.layout[0].stride
    layout = cute.make_layout((row, (pair, group)), stride=(row_stride, (pair_stride, group_stride)))
    return cute.make_tensor(fragment.iterator, layout)


@dataclass(frozen=True)
class OnlineSoftmax:
    """Row statistics of one thread: row_max of raw scores (the same in the 4 lanes of a row), row_sum (this lane's)."""

    softmax_scale: Float32
    scale_log2: Float32
    row_max: cute.Tensor
    row_sum: cute.Tensor

    @staticmethod
    def start(softmax_scale: Float32) -> OnlineSoftmax:
        """The state before any key."""
        row_max, row_sum = (cute.make_rmem_tensor((ROWS_PER_THREAD,), Float32) for _ in range(2))
        row_max.fill(-Float32.inf)
        row_sum.fill(0.0)
        return OnlineSoftmax(softmax_scale, softmax_scale * LOG2_E, row_max, row_sum)

    @cute.jit
    def update(self, scores: cute.Tensor, output: cute.Tensor) -> None:
        """Turn a tile of scores (2, cols) into unnormalised probabilities, and rescale the output rows (2, cols)."""
        for row in cutlass.range_constexpr(ROWS_PER_THREAD):
            old_max = self.row_max[row]
            new_max = scores[row, None].load().reduce(cute.ReductionOp.MAX, old_max, 0)
            new_max = cute.arch.warp_reduction_max(new_max, threads_in_group=ROW_LANES)
            # A row that has seen no key yet has maximum -inf; 0 in its place gives exp2(-inf) = 0, not NaN.
            base = new_max
            if new_max == -Float32.inf:
                base = Float32(0.0)
            base_log2 = base * self.scale_log2
            # The difference first: it is exactly 0 when the maximum stays, however base_log2 is rounded.
            rescale = cute.math.exp2((old_max - base) * self.scale_log2, fastmath=True)
            for col in cutlass.range_constexpr(cute.size(scores, mode=[1])):
                exponent = cute.math.fma(scores[row, col], self.scale_log2, -base_log2)
                scores[row, col] = cute.math.exp2(exponent, fastmath=True)
            tile_sum = scores[row, None].load().reduce(cute.ReductionOp.ADD, Float32(0.0), 0)
            self.row_sum[row] = self.row_sum[row] * rescale + tile_sum
            self.row_max[row] = new_max
            output[row, None].store(output[row, None].load() * rescale)

    @cute.jit
    def finish(self, output: cute.Tensor, out_scale: Float32) -> cute.Tensor:
        """Normalise and scale the output rows (2, cols); returns their log-sum-exp (2,). No key seen: 0 and -inf."""
        lse = cute.make_rmem_tensor_like(self.row_max)
        for row in cutlass.range_constexpr(ROWS_PER_THREAD):
            total = cute.arch.warp_reduction_sum(self.row_sum[row], threads_in_group=ROW_LANES)
            inverse = Float32(0.0)
            if total != 0.0:
                inverse = out_scale / total
            output[row, None].store(output[row, None].load() * inverse)
            lse[row] = self.row_max[row] * self.softmax_scale + cute.math.log2(total, fastmath=True) * LN_2
        return lse
