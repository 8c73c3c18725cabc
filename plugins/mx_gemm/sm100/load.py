# SPDX-License-Identifier: Apache-2.0
"""The load warp: tiles of A, B and their scales along K, by TMA, all four on the barrier of one stage.

Called by: kernel.py. Fills edge "ab". Rows past M and N and elements past K arrive as zeros (tensor-map bounds).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import pipeline
from cutlass.block import block_copy

from opdeck.plugins.mx_gemm.sm100.config import Config
from opdeck.plugins.mx_gemm.sm100.work import TileCoord, Work


@dataclass(frozen=True)
class TmaTile:
    """One operand: its TMA atom, gmem (MMA, MMA_MN, MMA_K, tiles along MN, tiles along K, batch), smem (MMA, MMA_MN,
    MMA_K, stage), and block_copy's arguments for multicast, if any."""

    atom: Any
    gmem: cute.Tensor
    smem: cute.Tensor
    multicast: dict[str, Any]


@dataclass(frozen=True)
class LoadPort:
    a: TmaTile
    a_scale: TmaTile
    b: TmaTile
    b_scale: TmaTile
    ab_edge: Any


class LoadRole:
    """Runs in one warp of each CTA."""

    def __init__(self, config: Config, port: LoadPort) -> None:
        self.config = config
        self.port = port

    @cute.jit
    def run(self, work: Work) -> None:
        stage = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.config.ab_stages)
        num_k_tiles = work.k_tiles.num_whole + cutlass.min(work.k_tiles.tail_mmas, 1)
        for index in cutlass.range(work.cluster_idx, work.grid.count, work.num_clusters, unroll=1):
            tile = work.mma_tile(index)
            for k_tile in cutlass.range(num_k_tiles, unroll=1):
                self.load(tile, k_tile, stage)
                stage.advance()
        if cutlass.const_expr(self.config.cluster.num_ctas > 1):
            # MMAs of other CTAs free stages of this one: it must not leave before they have.
            self.port.ab_edge.producer_tail(stage)

    @cute.jit
    def load(self, tile: TileCoord, k_tile: cutlass.Int32, stage: Any) -> None:
        edge = self.port.ab_edge
        edge.producer_acquire(stage)
        barrier = edge.producer_get_barrier(stage)
        for operand, tile_mn in (
            (self.port.a, tile.m),
            (self.port.a_scale, tile.m),
            (self.port.b, tile.n),
            (self.port.b_scale, tile.n * self.config.mma_n // self.config.scale_n),
        ):
            block_copy(
                operand.atom,
                cute.group_modes(operand.gmem[None, None, None, tile_mn, k_tile, tile.batch], 0, 3),
                cute.group_modes(operand.smem[None, None, None, stage.index], 0, 3),
                tma_bar_ptr=barrier,
                **operand.multicast,
            )
