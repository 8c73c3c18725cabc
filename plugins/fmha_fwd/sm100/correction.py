# SPDX-License-Identifier: Apache-2.0
"""The correction warpgroup: rescales O in tensor memory when a row's reference maximum moved; at the end O / row sum
to shared memory.

Called by: kernel.py. Drains "factor", "row_sum" and "o", fills "out".
Domain: a row that saw no key (row_sum 0) gives O = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from opdeck.core.kernels.pipelines import Slot, lane_slot, ring_slot, tmem_after_wait, tmem_before_signal
from opdeck.core.kernels.tmem_tile import RowChunks, tmem_tensor
from opdeck.plugins.fmha_fwd.sm100.config import NUM_Q_TILES, Config
from opdeck.plugins.fmha_fwd.sm100.work import Lane, LaneUses, Uses, Work, common_tiles, of_query_tile, span

CHUNK_COLS = 32
TILES_PER_TRIP = 2  # of the loop over K tiles that both query tiles visit
STAGED_COLS = 16  # with 32, ptxas 13.0 spills at the end of a tile


@dataclass(frozen=True)
class CorrectionPort:
    """A thread's row `row` of both query tiles; those of its warp begin with `warp_row`. o_base: tensor memory, O of
    query tile t from column t * Dv; factors and row_sums (128, 2 tiles) f32 and o_smem (128, Dv, 2 tiles) in shared
    memory."""

    row: Int32
    warp_row: Int32
    o_base: cute.Pointer
    factors: cute.Tensor
    row_sums: cute.Tensor
    o_smem: cute.Tensor
    factor_edge: Any
    row_sum_edge: Any
    o_edge: Any
    out_edge: Any


class CorrectionRole:
    """Runs in one warpgroup."""

    def __init__(self, config: Config, port: CorrectionPort, fusion: Any, out_dtype: Any) -> None:
        self.config = config
        self.port = port
        self.fusion = fusion
        self.out_dtype = out_dtype

    @cute.jit
    def run(self, work: Work, out_scale: Float32, uses: Uses) -> Uses:
        first = Lane(0, work.tile_range(self.fusion, self.config, 0), uses.first)
        second = Lane(1, work.tile_range(self.fusion, self.config, 1), uses.second)
        begin, end = span(first.tiles, second.tiles)
        common_begin, common_end = common_tiles(first.tiles, second.tiles, TILES_PER_TRIP)
        # In the order of the mma warp, which may be far into one query tile's K tiles when the other's first one comes.
        # Two passes over (other tiles, common tiles): first the others before the common ones and the common ones, then
        # the others after.
        for side in cutlass.range(2, unroll=1):
            other_begin = cutlass.select_(side == 0, Int32(begin), Int32(common_end))
            other_end = cutlass.select_(side == 0, Int32(common_begin), Int32(end))
            pass_end = cutlass.select_(side == 0, Int32(common_end), Int32(common_begin))
            for tile in cutlass.range(other_begin, other_end, unroll=1):
                for tile_idx in cutlass.range(NUM_Q_TILES, unroll=1):
                    tiles = of_query_tile(tile_idx, first.tiles, second.tiles)
                    lane = Lane(tile_idx, tiles, uses.lane(tile_idx))
                    self.visit(lane, tile, uses.factor(self.config, lane, tile))
            for tile in cutlass.range(common_begin, pass_end, TILES_PER_TRIP, unroll=1):
                # Trips are of an even number of tiles, so that the parities of each are those of the first. Two of them
                # are worth keeping over the loop; the four of query tiles out of step are not (SASS of ptxas 13.4).
                alike = common_begin if cutlass.const_expr(self.config.keeps_factors_in_step) else tile
                for i in cutlass.range_constexpr(TILES_PER_TRIP):
                    self.follow(first, tile + i, uses.factor(self.config, first, alike + i))
                    self.follow(second, tile + i, uses.factor(self.config, second, alike + i))
        for tile_idx in cutlass.range(NUM_Q_TILES, unroll=1):
            self.finish(work, tile_idx, out_scale, uses.lane(tile_idx))
        return uses.after(first.tiles, second.tiles)

    @cute.jit
    def visit(self, lane: Lane, tile: Int32, factor_use: Int32) -> None:
        """Takes the factor of K tile `tile` and frees O for its P V, if the query tile visits it. Its first finds no O
        to rescale."""
        if tile >= lane.tiles.begin and tile < lane.tiles.end:
            factor = self.receive(lane_slot(lane.tile_idx, factor_use))
            if tile > lane.tiles.begin:
                self.rescale(lane, tile, factor)
            self.port.o_edge.consumer_release(lane_slot(lane.tile_idx, lane.use(tile)))

    @cute.jit
    def follow(self, lane: Lane, tile: Int32, factor_use: Int32) -> None:
        """The same of a K tile that the query tile does visit, and not as its first."""
        self.rescale(lane, tile, self.receive(lane_slot(lane.tile_idx, factor_use)))
        self.port.o_edge.consumer_release(lane_slot(lane.tile_idx, lane.use(tile)))

    @cute.jit
    def receive(self, slot: Slot) -> Float32:
        self.port.factor_edge.consumer_wait(slot)
        return self.port.factors[self.port.row, slot.index]

    @cute.jit
    def rescale(self, lane: Lane, tile: Int32, factor: Float32) -> None:
        """O *= factor, behind the P V of the tile before; skipped by warps whose factors are all 1."""
        if cute.arch.vote_any_sync(factor != 1.0):
            self.port.o_edge.consumer_wait(lane_slot(lane.tile_idx, lane.use(tile - 1)))
            tmem_after_wait()
            chunks = RowChunks(self.o_tensor(lane.tile_idx), CHUNK_COLS, self.port.warp_row)
            values = cute.make_rmem_tensor(cute.make_layout(CHUNK_COLS), Float32)
            for col in cutlass.range_constexpr(0, self.config.d_v, CHUNK_COLS):
                chunks.load(col, values)
                cute.arch.fence_view_async_tmem_load()
                scale_values(values, factor)
                chunks.store(values, col)
            cute.arch.fence_view_async_tmem_store()
            tmem_before_signal()

    @cute.jit
    def finish(self, work: Work, tile_idx: Int32, out_scale: Float32, uses: LaneUses) -> None:
        """O * out_scale / row_sum to shared memory in the output type."""
        count = work.tile_range(self.fusion, self.config, tile_idx).count
        row_sum_slot = lane_slot(tile_idx, uses.blocks)
        self.port.row_sum_edge.consumer_wait(row_sum_slot)
        row_sum = self.port.row_sums[self.port.row, tile_idx]
        self.port.row_sum_edge.consumer_release(row_sum_slot)
        # Not 1.0 / row_sum: the call of its slow path keeps registers from the loads beside it, and kernels spill.
        inverse = cutlass.select_(row_sum == 0.0, Float32(0.0), cute.arch.rcp_approx(row_sum))
        out_slot = ring_slot(self.config.o_stages, uses.out(tile_idx))
        self.port.out_edge.producer_acquire(out_slot.producer)
        if count > 0:
            self.port.o_edge.consumer_wait(lane_slot(tile_idx, uses.tiles + count - 1))
            tmem_after_wait()
            self.stage_scaled(tile_idx, out_slot, inverse * out_scale)
            # The signal is that of the next block's first K tile, which frees O for its P V.
            tmem_before_signal()
        else:
            # Without a K tile tensor memory holds no O.
            self.stage_zeros(out_slot)
        cute.arch.fence_view_async_shared()
        self.port.out_edge.producer_commit(out_slot)

    @cute.jit
    def stage_scaled(self, tile_idx: Int32, slot: Slot, factor: Float32) -> None:
        chunks = RowChunks(self.o_tensor(tile_idx), STAGED_COLS, self.port.warp_row)
        values = cute.make_rmem_tensor(cute.make_layout(STAGED_COLS), Float32)
        for col in cutlass.range_constexpr(0, self.config.d_v, STAGED_COLS):
            chunks.load(col, values)
            cute.arch.fence_view_async_tmem_load()
            scale_values(values, factor)
            self.stage_chunk(values, slot, col)

    @cute.jit
    def stage_zeros(self, slot: Slot) -> None:
        values = cute.make_rmem_tensor(cute.make_layout(CHUNK_COLS), Float32)
        values.fill(0.0)
        for col in cutlass.range_constexpr(0, self.config.d_v, CHUNK_COLS):
            self.stage_chunk(values, slot, col)

    @cute.jit
    def stage_chunk(self, values: cute.Tensor, slot: Slot, col: int) -> None:
        """One chunk of a row of O to shared memory, 16 bytes at a time."""
        elems = cute.make_rmem_tensor(values.layout, self.out_dtype)
        elems.store(values.load().to(self.out_dtype))
        elems_per_store = 128 // self.out_dtype.width
        out = cute.local_tile(self.port.o_smem[None, None, slot.index], (1, elems_per_store), (self.port.row, None))
        for i in cutlass.range_constexpr(cute.size(values) // elems_per_store):
            part = cute.make_tensor(elems.iterator + i * elems_per_store, cute.make_layout((1, elems_per_store)))
            cute.autovec_copy(part, out[None, None, col // elems_per_store + i])

    def o_tensor(self, tile_idx: Any) -> cute.Tensor:
        return tmem_tensor(self.port.o_base, tile_idx * self.config.d_v, self.config.d_v)


@cute.jit
def scale_values(values: cute.Tensor, factor: Float32) -> None:
    for i in cutlass.range_constexpr(0, cute.size(values), 2):
        values[i], values[i + 1] = cute.arch.mul_packed_f32x2((values[i], values[i + 1]), (factor, factor))
