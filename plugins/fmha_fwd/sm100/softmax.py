# SPDX-License-Identifier: Apache-2.0
"""The softmax warpgroups: S to P in place, one query tile a warpgroup, one row a thread; at the end LSE to global
memory.

Called by: kernel.py. Drains "scores", fills "p_tail", "factor" and "row_sum".
Source: online softmax (Milakov and Gimelshein 2018); lazy rescaling as in FlashAttention-4: the reference point of the
exponent moves only when the row maximum grew by more than rescale_threshold_log2 t, so that most tiles need no rescale
of O. P and the row sum are then up to 2^t larger than with the true maximum, which does not overflow. It does cost
precision on peaked rows: the P of a dominant key is exactly 1 with the true maximum, else rounded like any other.
Emulator, sm_103a, 2026-11-30, bf16, q x 3, d 64 and 128, 4 seeds: max |dO| 8.5e-3..1.40e-2 with t = 8, 7.6e-3..8.8e-3
with t = 0; ||dO||/||O|| 1.90e-3..2.04e-3 against 1.76e-3..1.79e-3. In e4m3 the cost is larger: sm_100a, q x 3, d 128,
max |dO| 7.1e-2 with t = 4 and P x 2^4, 3.2e-2 with t = 0 and P x 2^8, so 8-bit kernels rescale at every growth.
Domain: softmax_scale > 0; logits above -2^119, or -inf. A row that sees no key ends with sum 0 and LSE -inf, or with
those of its sink; LSE is the natural logarithm.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from opdeck.core.fusion.attention import Coords
from opdeck.core.kernels.masking import apply_mask, apply_scores
from opdeck.core.kernels.pipelines import lane_slot, tmem_after_wait, tmem_before_signal
from opdeck.core.kernels.tmem_tile import RowChunks, RowChunksWithMax
from opdeck.plugins.fmha_fwd.sm100.config import Config
from opdeck.plugins.fmha_fwd.sm100.exp2 import exp2_chunk
from opdeck.plugins.fmha_fwd.sm100.scales import LOG2_E, ScoreScales
from opdeck.plugins.fmha_fwd.sm100.score_tensor import ScoreTensorRows
from opdeck.plugins.fmha_fwd.sm100.work import LaneUses, Work

CHUNK_COLS = 32
POLY_SPAN_COLS = 128
MAX_CHAINS = 4
LN2 = 0.6931471805599453
NO_KEY_OFFSET = 2.0**120
"""Of a row that saw no key. Finite, so that a tile without one leaves it so: its exponents are -inf."""


@dataclass(frozen=True)
class SoftmaxPort:
    """A thread's row `row` of query tile `tile_idx`; those of its warp begin with `warp_row`. S (128, tile_n) f32 and
    P (128, tile_n), in words of two or four, lie over each other in tensor memory; factors and row_sums (128,) f32 in
    shared memory; lse (B, Hq, Sq) f32, absent when its pointer is null."""

    tile_idx: Int32
    row: Int32
    warp_row: Int32
    s: cute.Tensor
    p: cute.Tensor
    factors: cute.Tensor
    row_sums: cute.Tensor
    lse: cute.Tensor
    scores_edge: Any
    p_tail_edge: Any
    factor_edge: Any
    row_sum_edge: Any
    tensor_rows: tuple[ScoreTensorRows, ...]


@dataclass(frozen=True)
class RowState:
    """What a row of P is of: 2^(scores * scale_log2 + offset), so -offset is the reference point, in log2; and the sum
    of the row so far."""

    offset: Float32
    sum: Float32


@dataclass(frozen=True)
class Exp2:
    """How a tile's exponentials are taken: of scores * scale_log2, num_poly_elems of each 128 by polynomial."""

    scale_log2: Float32
    num_poly_elems: int

    def num_poly_of(self, col: int) -> int:
        """An even count for the chunk from column `col`: chunks share the pairs as evenly as may be."""
        begin, end = (first * self.num_poly_elems // (2 * POLY_SPAN_COLS) for first in (col, col + CHUNK_COLS))
        return 2 * (end - begin)


class SoftmaxRole:
    """Runs in both softmax warpgroups, on the same code; which query tile a thread works on is in its port."""

    def __init__(self, config: Config, port: SoftmaxPort, fusion: Any, p_dtype: Any) -> None:
        self.config = config
        self.port = port
        self.fusion = fusion
        self.p_dtype = p_dtype
        self.elems_per_word = 32 // p_dtype.width

    @cute.jit
    def run(self, work: Work, scales: ScoreScales, uses: LaneUses) -> LaneUses:
        tiles = work.tile_range(self.fusion, self.config, self.port.tile_idx)
        q = work.q_tile(self.port.tile_idx) * self.config.tile_m + self.port.row
        state = self.start()
        # Two passes over (masked tiles, full tiles): first the masked ones before the full ones and the full ones, then
        # the masked ones after. So each loop body exists once, whichever sides a mask has.
        for side in cutlass.range(2, unroll=1):
            masked_begin = cutlass.select_(side == 0, Int32(tiles.begin), Int32(tiles.full_end))
            masked_end = cutlass.select_(side == 0, Int32(tiles.full_begin), Int32(tiles.end))
            full_end = cutlass.select_(side == 0, Int32(tiles.full_end), Int32(tiles.full_begin))
            for tile in cutlass.range(masked_begin, masked_end, unroll=1):
                use = uses.tiles + tile - tiles.begin
                coords = Coords(work.seq, work.head, q, self.first_key(work, tile), work.sq, work.sk)
                scores = self.load_scores(use)
                if cutlass.const_expr(self.fusion.scores):
                    self.apply_scores(scores, coords, scales, use)
                apply_mask(self.fusion.mask, scores, coords)
                # No polynomial here: it would turn a hidden -inf into a small number.
                exp2 = Exp2(scales.log2, 0)
                state = self.finish(scores, max_of(scores), state, use, exp2)
            for tile in cutlass.range(tiles.full_begin, full_end, unroll=1):
                use = uses.tiles + tile - tiles.begin
                coords = Coords(work.seq, work.head, q, self.first_key(work, tile), work.sq, work.sk)
                scores, tile_max = self.load_full_tile(use, coords, scales)
                is_finite = all(score.is_finite for score in self.fusion.scores)
                exp2 = Exp2(scales.log2, self.config.exp2_poly_elems if is_finite else 0)
                state = self.finish(scores, tile_max, state, use, exp2)
        self.send_row_sum(work, uses, tiles.count, state.sum)
        self.store_lse(work, q, state)
        return uses.after(tiles)

    def first_key(self, work: Work, tile: Int32) -> Int32:
        return work.k_tile(self.fusion, self.config, tile) * self.config.tile_n

    def start(self) -> RowState:
        """Before the first key: that of the sink, which is like a key seen before all others."""
        if not self.fusion.sinks:
            return RowState(Float32(NO_KEY_OFFSET), Float32(0.0))
        logit = Float32(self.fusion.sinks[0].logit)
        is_seen = logit > -NO_KEY_OFFSET
        offset = cutlass.select_(is_seen, -logit * LOG2_E, Float32(NO_KEY_OFFSET))
        return RowState(offset, cutlass.select_(is_seen, Float32(2.0**self.config.p_scale_log2), Float32(0.0)))

    @cute.jit
    def load_full_tile(self, use: Int32, coords: Coords, scales: ScoreScales) -> tuple[cute.Tensor, Float32]:
        """Scores of a tile without masked elements, and the maximum of the row."""
        if cutlass.const_expr(self.fusion.scores):
            scores = self.load_scores(use)
            self.apply_scores(scores, coords, scales, use)
            tile_max = max_of(scores)
        else:
            scores, tile_max = self.load_scores_and_max(use)
        return scores, tile_max

    def apply_scores(self, scores: cute.Tensor, coords: Coords, scales: ScoreScales, use: Int32) -> None:
        """Logits of S, by the score functions of the fusion."""

        def with_tensor(score: Any, scores: cute.Tensor, coords: Coords) -> None:
            self.port.tensor_rows[0].apply(score, scores, coords, use)

        apply_scores(self.fusion, scores, coords, scales.logit, with_tensor)

    @cute.jit
    def load_scores(self, use: Int32) -> cute.Tensor:
        """A row of S in registers, once the mma warp has made it."""
        self.port.scores_edge.consumer_wait(lane_slot(self.port.tile_idx, use))
        tmem_after_wait()
        scores = cute.make_rmem_tensor(cute.make_layout(self.config.tile_n), Float32)
        chunks = RowChunks(self.port.s, CHUNK_COLS, self.port.warp_row)
        for col in cutlass.range_constexpr(0, self.config.tile_n, CHUNK_COLS):
            chunks.load(col, columns(scores, col, CHUNK_COLS))
        cute.arch.fence_view_async_tmem_load()
        return scores

    @cute.jit
    def load_scores_and_max(self, use: Int32) -> tuple[cute.Tensor, Float32]:
        """The same, with the maximum of the row, which sm_103a's loads deliver on the way."""
        if cutlass.const_expr(not self.config.row_max_by_load):
            scores = self.load_scores(use)
            tile_max = max_of(scores)
        else:
            self.port.scores_edge.consumer_wait(lane_slot(self.port.tile_idx, use))
            tmem_after_wait()
            scores = cute.make_rmem_tensor(cute.make_layout(self.config.tile_n), Float32)
            maxima = cute.make_rmem_tensor(cute.make_layout(self.config.tile_n // CHUNK_COLS), Float32)
            chunks = RowChunksWithMax(self.port.s, CHUNK_COLS, self.port.warp_row)
            for col in cutlass.range_constexpr(0, self.config.tile_n, CHUNK_COLS):
                chunks.load(col, columns(scores, col, CHUNK_COLS), columns(maxima, col // CHUNK_COLS, 1))
            cute.arch.fence_view_async_tmem_load()
            tile_max = max_of(maxima)
        return scores, tile_max

    @cute.jit
    def finish(
        self,
        scores: cute.Tensor,
        tile_max: Float32,
        state: RowState,
        use: Int32,
        exp2: Exp2,
    ) -> RowState:
        """Exponentials, P into tensor memory, the rescale factor to the correction; the new state of the row."""
        tile_offset = -tile_max * exp2.scale_log2
        growth = state.offset - tile_offset
        grew = growth > float(self.config.rescale_threshold_log2)
        offset = cutlass.select_(grew, tile_offset, state.offset)
        factor = cute.math.exp2(-cutlass.select_(grew, growth, Float32(0.0)), fastmath=True)
        self.send_factor(use, factor)
        exponent = offset
        if cutlass.const_expr(self.config.p_scale_log2 != 0):
            exponent = exponent + float(self.config.p_scale_log2)
        partial = (Float32(0.0), Float32(0.0))
        words_per_chunk = CHUNK_COLS // self.elems_per_word
        words = cute.make_rmem_tensor(cute.make_layout(words_per_chunk), Float32)
        chunks = RowChunks(self.port.p, words_per_chunk, self.port.warp_row)
        for col in cutlass.range_constexpr(0, self.config.tile_n, CHUNK_COLS):
            chunk = columns(scores, col, CHUNK_COLS)
            exp2_chunk(chunk, exp2.scale_log2, exponent, exp2.num_poly_of(col))
            for i in cutlass.range_constexpr(0, CHUNK_COLS, 2):
                pair = (chunk[i], chunk[i + 1])
                partial = pair if cutlass.const_expr(col + i == 0) else cute.arch.add_packed_f32x2(partial, pair)
            elems = cute.make_tensor(cute.recast_ptr(words.iterator, dtype=self.p_dtype), cute.make_layout(CHUNK_COLS))
            elems.store(chunk.load().to(self.p_dtype))
            chunks.store(words, col // self.elems_per_word)
            if cutlass.const_expr(col + CHUNK_COLS == self.config.p_head_elems):
                cute.arch.fence_view_async_tmem_store()
                tmem_before_signal()
                self.port.scores_edge.consumer_release(lane_slot(self.port.tile_idx, use))
        cute.arch.fence_view_async_tmem_store()
        tmem_before_signal()
        self.port.p_tail_edge.producer_commit(lane_slot(self.port.tile_idx, use))
        return RowState(offset, state.sum * factor + (partial[0] + partial[1]))

    def send_factor(self, use: Int32, factor: Float32) -> None:
        """Hands the rescale factor of this row to the correction."""
        self.port.factors[self.port.row] = factor
        self.port.factor_edge.producer_commit(lane_slot(self.port.tile_idx, use))

    @cute.jit
    def send_row_sum(self, work: Work, uses: LaneUses, num_tiles: Int32, row_sum: Float32) -> None:
        """At the end of a block."""
        slot = lane_slot(self.port.tile_idx, uses.blocks)
        self.port.row_sum_edge.producer_acquire(slot.producer)
        if cutlass.const_expr(self.config.keeps_factors_in_step):
            # A use that nobody waits for. Here, where the correction has taken all factors of earlier blocks, or it
            # would not have freed their row sum, and waits for none of later ones before it has this block's.
            num_fewer_tiles = work.tile_range(self.fusion, self.config, 0).count - num_tiles
            if num_fewer_tiles % 2 != 0:
                self.port.factor_edge.producer_commit(lane_slot(self.port.tile_idx, 0))
        self.port.row_sums[self.port.row] = row_sum
        self.port.row_sum_edge.producer_commit(slot)

    @cute.jit
    def store_lse(self, work: Work, q: Int32, state: RowState) -> None:
        out = self.port.lse
        if out.iterator.toint() != 0 and q < work.sq and work.v_block == 0:
            log2_sum = cute.math.log2(state.sum, fastmath=True) - state.offset - float(self.config.p_scale_log2)
            lse = cutlass.select_(state.sum == 0.0, -Float32.inf, log2_sum * LN2)
            out[work.q_rows.batch, work.head, work.q_rows.begin + q] = lse


def columns(registers: cute.Tensor, first: int, count: int) -> cute.Tensor:
    """`count` consecutive registers from `first`."""
    return cute.make_tensor(registers.iterator + first, cute.make_layout(count))


def max_of(values: cute.Tensor) -> Float32:
    """Largest of the values, by maxima of three, which are one instruction, in chains to shorten the dependence."""
    chains = [values[i] for i in range(min(MAX_CHAINS, cute.size(values)))]
    for pair, first in enumerate(range(len(chains), cute.size(values), 2)):
        chain = pair % len(chains)
        chains[chain] = cute.arch.fmax(cute.arch.fmax(chains[chain], values[first]), values[first + 1])
    return functools.reduce(cute.arch.fmax, chains)
