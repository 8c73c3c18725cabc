# SPDX-License-Identifier: Apache-2.0
"""The tensor of a score function, such as a bias, from global memory to the softmax, by a ring of stages a query tile.

Called by: kernel.py (tensor map, buffer); the store warp, idle until O is there, which fills edge "score_tensor"; the
softmax warpgroups, which drain it.
A stage holds 32 keys of each of the 128 rows, swizzled, so that eight lanes read 16-byte pieces from different banks.
What is past the end of a row or of the rows arrives as zeros (tensor-map bounds); the padding of rows is not read.
A dim of one entry counts for every sequence, head or query: of one row, every thread reads the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.utils as utils
from cutlass import Float32, Int32
from cutlass.block import block_copy
from cutlass.cute.nvgpu import cpasync
from cutlass.utils import SmemAllocator
from cutlass.utils import blackwell_helpers as sm100_utils

from opdeck.core.fusion import AttentionFusion, TensorScore
from opdeck.core.fusion.attention import Coords
from opdeck.core.fusion.intmath import broadcast_index, max_
from opdeck.core.kernels.pipelines import Slot
from opdeck.core.kernels.registers import compute_here
from opdeck.plugins.fmha_fwd.sm100.config import NUM_Q_TILES, SCORE_TENSOR_COLS, Config
from opdeck.plugins.fmha_fwd.sm100.work import Lane, Uses, Work, span

LOAD_BYTES = 16
SWIZZLE_ALIGN_BYTES = 1024


def tensor_scores(fusion: AttentionFusion) -> tuple[TensorScore, ...]:
    """The score function of the fusion that has a tensor, if there is one: rows have one at most."""
    return tuple(score for score in fusion.scores if isinstance(score, TensorScore))


@dataclass(frozen=True)
class ScoreTensorMap:
    """The TMA atom and the coordinate tensor (Sq or 1, Sk, Hq or 1, B or 1)."""

    atom: Any
    tensor: cute.Tensor


def stage_layout(config: Config, dtype: Any) -> Any:
    """Shared memory (128 rows, columns of a stage, stages of both query tiles)."""
    shape = (config.tile_m, SCORE_TENSOR_COLS)
    return sm100_utils.make_smem_layout_epi(dtype, utils.LayoutEnum.ROW_MAJOR, shape, config.score_tensor_stages)


def allocate_stages(smem: SmemAllocator, config: Config, score: TensorScore) -> cute.Tensor:
    dtype = score.tensor.element_type
    layout = stage_layout(config, dtype)
    return smem.allocate_tensor(dtype, layout.outer, SWIZZLE_ALIGN_BYTES, swizzle=layout.inner)


def make_score_tensor_map(config: Config, tensor: cute.Tensor) -> ScoreTensorMap:
    """Of a tensor (B or 1, Hq or 1, Sq or 1, Sk)."""
    order = (2, 3, 1, 0)
    # At least 1, as a tensor map has it.
    shape = tuple(max_(Int32(tensor.shape[dim]), Int32(1)) for dim in order)
    permuted = cute.make_tensor(
        tensor.iterator, cute.make_layout(shape, stride=tuple(tensor.stride[dim] for dim in order))
    )
    layout = cute.select(stage_layout(config, tensor.element_type), mode=[0, 1])
    load = cpasync.CopyBulkTensorTileG2SOp()
    atom, coords = cpasync.make_tiled_tma_atom(load, permuted, layout, (config.tile_m, SCORE_TENSOR_COLS))
    return ScoreTensorMap(atom, coords)


@dataclass(frozen=True)
class ScoreTensorPort:
    """smem: as stage_layout. num_q_rows: Sq or 1."""

    map: ScoreTensorMap
    smem: cute.Tensor
    edge: Any

    @property
    def num_q_rows(self) -> Any:
        return self.map.tensor.shape[0]


class ScoreTensorRole:
    """Loads; runs in one warp."""

    def __init__(self, config: Config, port: ScoreTensorPort, fusion: Any) -> None:
        self.config = config
        self.port = port
        self.fusion = fusion

    @cute.jit
    def run(self, work: Work, uses: Uses) -> Uses:
        first = Lane(0, work.tile_range(self.fusion, self.config, 0), uses.first)
        second = Lane(1, work.tile_range(self.fusion, self.config, 1), uses.second)
        begin, end = span(first.tiles, second.tiles)
        for tile in cutlass.range(begin, end, unroll=1):
            for part in cutlass.range(self.config.score_tensor_parts, unroll=1):
                self.load(work, first, tile, part)
                self.load(work, second, tile, part)
        return uses.after(first.tiles, second.tiles)

    @cute.jit
    def load(self, work: Work, lane: Lane, tile: Int32, part: Int32) -> None:
        """One part of K tile `tile`, if the query tile visits it."""
        tile_idx, tiles, port, num_parts = lane.tile_idx, lane.tiles, self.port, self.config.score_tensor_parts
        if tile >= tiles.begin and tile < tiles.end:
            slot = part_slot(self.config, tile_idx, lane.use(tile), part)
            port.edge.producer_acquire(slot.producer)
            _, _, num_heads, num_seqs = port.map.tensor.shape
            rows = port.map.tensor[
                None, None, broadcast_index(work.head, num_heads), broadcast_index(work.seq, num_seqs)
            ]
            tiled = cute.flat_divide(rows, (self.config.tile_m, SCORE_TENSOR_COLS))
            q_tile = cutlass.select_(port.num_q_rows == 1, Int32(0), Int32(work.q_tile(tile_idx)))
            k_tile = work.k_tile(self.fusion, self.config, tile)
            source = tiled[None, None, q_tile, k_tile * num_parts + part]
            block_copy(
                port.map.atom,
                cute.group_modes(source, 0, 2),
                cute.group_modes(port.smem[None, None, slot.index], 0, 2),
                tma_bar_ptr=port.edge.producer_get_barrier(slot),
            )


@dataclass(frozen=True)
class ScoreTensorRows:
    """The tensor as the softmax sees it: row `row` of query tile `tile_idx`."""

    config: Config
    port: ScoreTensorPort
    tile_idx: Int32
    row: Int32

    @cute.jit
    def apply(self, score: TensorScore, scores: cute.Tensor, coords: Coords, use: Int32) -> None:
        """Runs the score function on a row of logits of the query tile's `use`-th K tile."""
        port, config = self.port, self.config
        row = cutlass.select_(port.num_q_rows == 1, Int32(0), self.row)
        num_elems = LOAD_BYTES // config.score_tensor_bytes
        elems = cute.make_rmem_tensor(cute.make_layout((1, num_elems)), port.smem.element_type)
        elements = cute.make_rmem_tensor(cute.make_layout(num_elems), Float32)
        compute_here(scores)
        for part in cutlass.range_constexpr(config.score_tensor_parts):
            slot = part_slot(config, self.tile_idx, use, part)
            port.edge.consumer_wait(slot)
            pieces = cute.local_tile(port.smem[None, None, slot.index], (1, num_elems), (row, None))
            for piece in cutlass.range_constexpr(SCORE_TENSOR_COLS // num_elems):
                cute.autovec_copy(pieces[None, None, piece], elems)
                for elem in cutlass.range_constexpr(num_elems):
                    elements[elem] = Float32(elems[elem])
                first = part * SCORE_TENSOR_COLS + piece * num_elems
                logits = cute.make_tensor(scores.iterator + first, cute.make_layout(num_elems))
                score.apply_score_with(logits, elements, coords._replace(k=coords.k + first))
                compute_here(logits)
            port.edge.consumer_release(slot)


def part_slot(config: Config, tile_idx: Any, use: Any, part: Any) -> Slot:
    """Part `part` of the `use`-th K tile in the ring of a query tile. A K tile is a whole number of rounds."""
    num_stages = config.score_tensor_stages // NUM_Q_TILES
    rounds_per_tile = config.score_tensor_parts // num_stages
    return Slot(tile_idx * num_stages + part % num_stages, (use * rounds_per_tile + part // num_stages) & 1)
