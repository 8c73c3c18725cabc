# SPDX-License-Identifier: Apache-2.0
"""The epilogue warps: the accumulator from tensor memory through registers and shared memory to D.

Called by: kernel.py. Drains "acc". Each warp owns 32 rows and stages and stores them by itself, a box of 128 bytes a
row at a time, so that no barrier joins the four. Rows past M and columns past N lie outside the tensor map's bounds and
are not written. A box of C is loaded into the buffer in which the box of D will stand, where both are of the same
columns; else into one of its own. Block-scaled D is encoded in registers, and a row's scales go straight to memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Uint16, Uint32, pipeline
from cutlass.block import block_copy

from opdeck.core.kernels.block_encoder import BLACKWELL, BlockEncoder, inverse_of, scale_values
from opdeck.core.kernels.pipelines import tmem_after_wait, tmem_before_signal
from opdeck.core.kernels.tmem_tile import RowChunks, tmem_tensor
from opdeck.core.mx.formats import SCALE_TILE_COLS, mx_format
from opdeck.plugins.mx_gemm.sm100.config import (
    CHUNK_COLS,
    NUM_ACCUMULATORS,
    NUM_EPILOGUE_WARPS,
    STORE_ROW_BYTES,
    WARP_ROWS,
    Config,
)
from opdeck.plugins.mx_gemm.sm100.operands import ELEMENTS, PIECE_BYTES
from opdeck.plugins.mx_gemm.sm100.work import TileCoord, Work


@dataclass(frozen=True)
class EpiloguePort:
    """A thread's row `row` of the CTA's tile; num_rows: M. acc_base: tensor memory of the accumulators; c_gmem, d_gmem
    (32 rows, columns, boxes along M, boxes along N, batch) with their TMA atoms; c_smem, d_smem (32 rows, columns,
    buffer); c_barriers: one a warp."""

    row: Int32
    num_rows: Int32
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
class Results:
    """What there is besides D. block_scales: (L, tiles along M, tiles along N, 512), of a block-scaled D; amax (1,), 0
    at first, absent where its pointer is null; unit: what block-scaled numbers are counted in; num_cols: of D."""

    block_scales: cute.Tensor
    amax: cute.Tensor
    unit: Float32
    num_cols: Int32


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


@dataclass(frozen=True)
class Extras:
    """What a problem may ask for besides: scale(products, alpha) and add(sums, box, column of it) change a chunk of the
    products, note(values, box, column of it) sees a chunk of D."""

    scale: Callable[[cute.Tensor, Float32], None]
    add: Callable[[cute.Tensor, Box, int], None]
    note: Callable[[cute.Tensor, Box, int], None]


class EpilogueRole:
    """Runs in one warpgroup."""

    def __init__(self, config: Config, port: EpiloguePort, terms: Terms, results: Results, activation: Any) -> None:
        self.config = config
        self.port = port
        self.terms = terms
        self.results = results
        self.activation = activation
        self.amax_bits = cute.make_rmem_tensor(cute.make_layout(1), Uint32)

    @cute.jit
    def run(self, work: Work) -> None:
        stage = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.config.acc_stages)
        has_amax = self.results.amax.iterator.toint() != 0
        has_extras = self.terms.has_c or self.terms.bias.iterator.toint() != 0 or has_amax
        self.amax_bits[0] = Uint32(0)
        if cutlass.const_expr(self.config.d_format != ""):
            self.encoder = BlockEncoder(mx_format(self.config.d_format), inverse_of(self.results.unit), BLACKWELL)
            self.codes = cute.make_rmem_tensor(cute.make_layout(self.config.store_blocks), Uint32)
        tile_count = Int32(0)
        for index in cutlass.range(work.cluster_idx, work.grid.count, work.num_clusters, unroll=1):
            self.port.acc_edge.consumer_wait(stage)
            tmem_after_wait()
            tile = work.cta_tile(index)
            if has_extras:
                self.finish_tile(tile, stage, tile_count, Extras(scale_values, self.add_terms, self.note_amax))
            elif self.terms.alpha != 1.0:
                self.finish_tile(tile, stage, tile_count, Extras(scale_values, do_nothing, do_nothing))
            else:
                self.finish_tile(tile, stage, tile_count, Extras(do_nothing, do_nothing, do_nothing))
            stage.advance()
            tile_count += 1
        if has_amax:
            largest = cute.arch.warp_redux_sync(self.amax_bits[0], "umax")
            with cute.arch.elect_one():
                cute.arch.atomic_max(cute.recast_ptr(self.results.amax.iterator, dtype=Uint32), largest)
        # The CTA's shared memory must outlive the reads of the copies.
        cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def finish_tile(self, tile: TileCoord, stage: Any, tile_count: Int32, extras: cutlass.Constexpr) -> None:
        """Moves the CTA's tile, the tile_count-th, to D."""
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
            chunk = cute.make_rmem_tensor(cute.make_layout(CHUNK_COLS), Float32)
            for col in cutlass.range_constexpr(0, config.box_acc_cols, CHUNK_COLS):
                sums = self.load(box.acc_col + col)
                if turn == config.boxes_until_release - 1 and col == config.box_acc_cols - CHUNK_COLS:
                    tmem_before_signal()
                    self.port.acc_edge.consumer_release(stage)
                extras.scale(sums, self.terms.alpha)
                extras.add(sums, box, col)
                d_col, d_cols = col // config.num_columns, CHUNK_COLS // config.num_columns
                self.activate(sums, part_of(chunk, d_col % CHUNK_COLS, d_cols))
                if cutlass.const_expr((d_col + d_cols) % CHUNK_COLS == 0):
                    chunk_col = d_col + d_cols - CHUNK_COLS
                    extras.note(chunk, box, chunk_col)
                    self.stage_chunk(chunk, box, chunk_col)
            cute.arch.fence_view_async_shared()
            cute.arch.sync_warp()
            self.store(box)
            if cutlass.const_expr(config.d_format != ""):
                self.store_codes(box)

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
            piece = cute.make_rmem_tensor(cute.make_layout(elems), ELEMENTS[self.config.c])
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
        if cutlass.const_expr(self.config.d_format != ""):
            stored = self.encode(values, col)
        else:
            stored = cute.make_rmem_tensor(cute.make_layout(CHUNK_COLS), ELEMENTS[self.config.d])
            stored.store(values.load().to(ELEMENTS[self.config.d]))
        num_pieces = cute.size(stored) // elems
        for i in cutlass.range_constexpr(num_pieces):
            cute.autovec_copy(part_of(stored, i * elems, elems), pieces[None, col // CHUNK_COLS * num_pieces + i])

    def encode(self, values: cute.Tensor, col: int) -> cute.Tensor:
        """The bytes of a chunk's elements; keeps the codes of its scales."""
        block_elems = self.encoder.row.block
        words = []
        for first in range(0, CHUNK_COLS, block_elems):
            block = self.encoder.encode(part_of(values, first, block_elems))
            self.codes[(col + first) // block_elems] = block.code
            words += block.words
        registers = cute.make_rmem_tensor(cute.make_layout(len(words)), Uint32)
        for i, word in enumerate(words):
            registers[i] = word
        bytes_of_words = cute.recast_ptr(registers.iterator, dtype=cutlass.Uint8)
        return cute.make_tensor(bytes_of_words, cute.make_layout(4 * len(words)))

    @cute.jit
    def store_codes(self, box: Box) -> None:
        """The scales of a row of a box. What pads a tile of scales is written too, as zeros."""
        port, num_codes = self.port, self.config.store_blocks
        first = box.n * num_codes
        num_blocks = self.results.num_cols // self.encoder.row.block
        known = cutlass.select_(box.m * WARP_ROWS + port.row % WARP_ROWS < port.num_rows, num_blocks - first, Int32(0))
        width = min(num_codes, SCALE_TILE_COLS)
        for begin in cutlass.range_constexpr(0, num_codes, width):
            word = Uint32(0)
            for i in cutlass.range_constexpr(width):
                word |= cutlass.select_(begin + i < known, self.codes[begin + i], Uint32(0)) << (8 * i)
            self.store_word(word, box, first + begin)
        if cutlass.const_expr(width < SCALE_TILE_COLS):
            end = first + num_codes
            if end >= num_blocks and end % SCALE_TILE_COLS != 0:  # no other tile of D has the rest
                self.store_word(Uint32(0), box, end)

    @cute.jit
    def store_word(self, word: Uint32, box: Box, block: Any) -> None:
        """Scales of the thread's row from block `block` on: four, or the half of a word."""
        tiles, row = self.results.block_scales, self.port.row
        m_tile, n_tile = box.m // NUM_EPILOGUE_WARPS, block // SCALE_TILE_COLS
        if m_tile < tiles.shape[1] and n_tile < tiles.shape[2]:
            first_byte = row % WARP_ROWS * 16 + row // WARP_ROWS * SCALE_TILE_COLS + block % SCALE_TILE_COLS
            element = Uint32 if self.config.store_blocks >= SCALE_TILE_COLS else Uint16
            target = tiles[box.batch, m_tile, n_tile, None].iterator + first_byte
            aligned = target.align(element.width // 8)
            cute.make_tensor(cute.recast_ptr(aligned, dtype=element), cute.make_layout(1))[0] = element(word)

    @cute.jit
    def note_amax(self, values: cute.Tensor, box: Box, col: cutlass.Constexpr) -> None:
        """Keeps the largest magnitude of a chunk of D, of the rows and columns that there are."""
        port, amax_bits = self.port, self.amax_bits
        if self.results.amax.iterator.toint() != 0:
            known = self.results.num_cols - (box.n * self.config.store_cols + col)
            known = cutlass.select_(box.m * WARP_ROWS + port.row % WARP_ROWS < port.num_rows, known, Int32(0))
            magnitudes = cute.make_rmem_tensor(cute.make_layout(CHUNK_COLS), Float32)
            for i in cutlass.range_constexpr(CHUNK_COLS):
                magnitudes[i] = cutlass.select_(i < known, values[i], Float32(0.0))
            amax_bits[0] = cutlass.max(amax_bits[0], BLACKWELL.abs_max(magnitudes))

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


def do_nothing(values: cute.Tensor, *_: Any) -> None:
    pass
