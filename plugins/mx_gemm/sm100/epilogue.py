# SPDX-License-Identifier: Apache-2.0
"""The epilogue warps: the accumulator from tensor memory through registers and shared memory to D.

Called by: kernel.py. Drains "acc". Each warp owns 32 rows and stages and stores them by itself, a box of 128 bytes a
row at a time, so that no barrier joins the four. Rows past M and columns past N lie outside the tensor map's bounds and
are not written. A box of C is loaded into the buffer in which the box of D will stand, where both are of the same
columns; where a column of D is made of several of the sums, into one of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, pipeline
from cutlass.block import block_copy

from opdeck.core.kernels.pipelines import tmem_after_wait, tmem_before_signal
from opdeck.core.kernels.tmem_tile import RowChunks, tmem_tensor
from opdeck.plugins.mx_gemm.sm100.config import (
    CHUNK_COLS,
    NUM_ACCUMULATORS,
    NUM_EPILOGUE_WARPS,
    STORE_ROW_BYTES,
    WARP_ROWS,
    Config,
)
from opdeck.plugins.mx_gemm.sm100.operands import ELEMENTS
from opdeck.plugins.mx_gemm.sm100.work import TileCoord, Work

PIECE_BYTES = 16


@dataclass(frozen=True)
class EpiloguePort:
    """A thread's row `row` of the CTA's tile. acc_base: tensor memory of the accumulators; c_gmem, d_gmem (32
    rows, columns, boxes along M, boxes along N, batch) with their TMA atoms; c_smem, d_smem (32 rows, columns, buffer);
    c_barriers: one a warp."""

    row: Int32
    acc_base: cute.Pointer
    c_atom: Any
    c_gmem: cute.Tensor
    c_smem: cute.Tensor
    d_atom: Any
    d_gmem: cute.Tensor
    d_smem: cute.Tensor
    c_barriers: cute.Pointer
    acc_edge: Any


@dataclass(frozen=True)
class Terms:
    """alpha * A B^T + beta * C + bias. has_c: whether there is a C; bias (N,), absent where its pointer is null."""

    alpha: Float32
    beta: Float32
    has_c: cutlass.Boolean
    bias: cute.Tensor


@dataclass(frozen=True)
class Box:
    """Rows of a warp and store_cols columns of D: which (m, n, batch, counted in boxes), in which buffer, from which
    column of tensor memory; use_idx counts the boxes of the warp."""

    m: Any
    n: Any
    batch: Any
    buffer: Any
    acc_col: Any
    use_idx: Any


class EpilogueRole:
    """Runs in one warpgroup."""

    def __init__(self, config: Config, port: EpiloguePort, terms: Terms, activation: Any) -> None:
        self.config = config
        self.port = port
        self.terms = terms
        self.activation = activation
        self.element = ELEMENTS[config.d]

    @cute.jit
    def run(self, work: Work) -> None:
        stage = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.config.acc_stages)
        has_terms = self.terms.has_c or self.terms.bias.iterator.toint() != 0
        tile_count = Int32(0)
        for index in cutlass.range(work.cluster_idx, work.grid.count, work.num_clusters, unroll=1):
            self.port.acc_edge.consumer_wait(stage)
            tmem_after_wait()
            tile = work.cta_tile(index)
            if has_terms:
                self.finish_tile(tile, stage, tile_count, self.add_terms)
            else:
                self.finish_tile(tile, stage, tile_count, self.add_nothing)
            stage.advance()
            tile_count += 1
        # The CTA's shared memory must outlive the reads of the copies.
        cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def finish_tile(self, tile: TileCoord, stage: Any, tile_count: Int32, add: cutlass.Constexpr) -> None:
        """Moves the CTA's tile, the tile_count-th, to D. add(values, box, col) adds to a chunk of the product."""
        config, num_boxes = self.config, self.config.boxes_per_tile
        accumulator = tile_count % NUM_ACCUMULATORS
        warp_idx = cute.arch.make_warp_uniform(self.port.row // WARP_ROWS)
        for turn in cutlass.range(num_boxes, unroll=1):
            box_idx, use_idx = turn, tile_count * num_boxes + turn
            if cutlass.const_expr(config.acc_shared_cols > 0):
                # The columns that both accumulators use are the last of the first, the first of the second.
                box_idx = cutlass.select_(accumulator == 0, num_boxes - 1 - turn, turn)
            box = Box(
                m=tile.m * NUM_EPILOGUE_WARPS + warp_idx,
                n=tile.n * num_boxes + box_idx,
                batch=tile.batch,
                buffer=warp_idx * config.d_stages + use_idx % config.d_stages,
                acc_col=accumulator * config.acc_stride_cols + box_idx * config.box_acc_cols,
                use_idx=use_idx,
            )
            self.wait_buffer()
            results = cute.make_rmem_tensor(cute.make_layout(CHUNK_COLS), Float32)
            for col in cutlass.range_constexpr(0, config.box_acc_cols, CHUNK_COLS):
                sums = self.load(box.acc_col + col)
                if turn == config.boxes_until_release - 1 and col == config.box_acc_cols - CHUNK_COLS:
                    tmem_before_signal()
                    self.port.acc_edge.consumer_release(stage)
                scale_values(sums, self.terms.alpha)
                add(sums, box, col)
                d_col, d_cols = col // config.num_columns, CHUNK_COLS // config.num_columns
                self.activate(sums, part_of(results, d_col % CHUNK_COLS, d_cols))
                if cutlass.const_expr((d_col + d_cols) % CHUNK_COLS == 0):
                    self.stage_chunk(results, box, d_col + d_cols - CHUNK_COLS)
            cute.arch.fence_view_async_shared()
            cute.arch.sync_warp()
            self.store(box)

    @cute.jit
    def wait_buffer(self) -> None:
        """Returns when the copy that last read the next buffer is done with it, in all lanes."""
        cute.arch.cp_async_bulk_wait_group(self.config.d_stages - 1, read=True)
        cute.arch.sync_warp()

    @cute.jit
    def load(self, first_col: Int32) -> cute.Tensor:
        """A chunk of the thread's row of the accumulators."""
        chunk = tmem_tensor(self.port.acc_base, first_col, CHUNK_COLS)
        values = cute.make_rmem_tensor(cute.make_layout(CHUNK_COLS), Float32)
        RowChunks(chunk, CHUNK_COLS, self.port.row).load(0, values)
        cute.arch.fence_view_async_tmem_load()
        return values

    def activate(self, sums: cute.Tensor, results: cute.Tensor) -> None:
        if self.activation is None:
            results.store(sums.load())
        else:
            self.activation.apply(sums, results)

    def add_nothing(self, values: cute.Tensor, box: Box, col: int) -> None:
        pass

    @cute.jit
    def add_terms(self, values: cute.Tensor, box: Box, col: cutlass.Constexpr) -> None:
        """Adds beta * C and the bias to the sums of columns `col` of the box and on."""
        if self.terms.has_c:
            if cutlass.const_expr(col % self.config.c_cols == 0):
                self.load_c(box, col // self.config.c_cols)
            self.add_c(values, box, col % self.config.c_cols)
        if self.terms.bias.iterator.toint() != 0:
            self.add_bias(values, box.n * self.config.box_acc_cols + col)

    @cute.jit
    def load_c(self, box: Box, box_idx: cutlass.Constexpr) -> None:
        """The box_idx-th box of C for a box of D into the buffer, by TMA; returns when it is there."""
        boxes_of_c = self.config.box_acc_cols // self.config.c_cols
        barrier = self.port.c_barriers + self.port.row // WARP_ROWS
        if cutlass.const_expr(self.config.has_c_buffer):
            cute.arch.sync_warp()  # all lanes have read the box before
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, WARP_ROWS * STORE_ROW_BYTES)
        block_copy(
            self.port.c_atom,
            cute.group_modes(self.port.c_gmem[None, None, box.m, box.n * boxes_of_c + box_idx, box.batch], 0, 2),
            cute.group_modes(self.port.c_smem[None, None, self.c_buffer(box)], 0, 2),
            tma_bar_ptr=barrier,
        )
        cute.arch.mbarrier_wait(barrier, (box.use_idx * boxes_of_c + box_idx) & 1)

    def c_buffer(self, box: Box) -> Any:
        return self.port.row // WARP_ROWS if self.config.has_c_buffer else box.buffer

    @cute.jit
    def add_c(self, values: cute.Tensor, box: Box, col: cutlass.Constexpr) -> None:
        pieces = self.pieces(self.port.c_smem, self.c_buffer(box))
        elems = pieces.shape[0]
        for i in cutlass.range_constexpr(CHUNK_COLS // elems):
            piece = cute.make_rmem_tensor(cute.make_layout(elems), self.element)
            cute.autovec_copy(pieces[None, col // elems + i], piece)
            for j in cutlass.range_constexpr(elems):
                values[i * elems + j] = values[i * elems + j] + self.terms.beta * piece[j].to(Float32)

    @cute.jit
    def add_bias(self, values: cute.Tensor, first_col: Int32) -> None:
        """Every row takes the same numbers, so that a warp reads one word at a time; past N any will do."""
        bias = self.terms.bias
        for i in cutlass.range_constexpr(CHUNK_COLS):
            values[i] = values[i] + bias[cutlass.min(first_col + i, Int32(bias.shape[0]) - 1)].to(Float32)

    def pieces(self, buffers: cute.Tensor, buffer: Any) -> cute.Tensor:
        """The thread's row of a buffer, (elements of 16 bytes, piece)."""
        elems = PIECE_BYTES * 8 // buffers.element_type.width
        tiles = cute.local_tile(buffers[None, None, buffer], (1, elems), (self.port.row % WARP_ROWS, None))
        return tiles[0, None, None]

    @cute.jit
    def stage_chunk(self, values: cute.Tensor, box: Box, col: cutlass.Constexpr) -> None:
        """One chunk of a row to shared memory, 16 bytes at a time."""
        pieces = self.pieces(self.port.d_smem, box.buffer)
        elems = pieces.shape[0]
        rounded = cute.make_rmem_tensor(cute.make_layout(CHUNK_COLS), self.element)
        rounded.store(values.load().to(self.element))
        for i in cutlass.range_constexpr(CHUNK_COLS // elems):
            cute.autovec_copy(part_of(rounded, i * elems, elems), pieces[None, col // elems + i])

    @cute.jit
    def store(self, box: Box) -> None:
        block_copy(
            self.port.d_atom,
            cute.group_modes(self.port.d_smem[None, None, box.buffer], 0, 2),
            cute.group_modes(self.port.d_gmem[None, None, box.m, box.n, box.batch], 0, 2),
        )
        cute.arch.cp_async_bulk_commit_group()


def part_of(registers: cute.Tensor, first: int, size: int) -> cute.Tensor:
    return cute.make_tensor(registers.iterator + first, cute.make_layout(size))


@cute.jit
def scale_values(values: cute.Tensor, factor: Float32) -> None:
    for i in cutlass.range_constexpr(0, cute.size(values), 2):
        values[i], values[i + 1] = cute.arch.mul_packed_f32x2((values[i], values[i + 1]), (factor, factor))
