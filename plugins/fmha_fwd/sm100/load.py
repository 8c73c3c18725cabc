# SPDX-License-Identifier: Apache-2.0
"""The load warp: Q once, then K and V tile by tile, by TMA.

Called by: kernel.py. Fills edges "q" and "kv" in the order in which the mma warp drains them:
Q0 K0 Q1 V0 K1 V1 ... Out-of-range rows arrive as zeros (tensor-map bounds), so no tail code is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.block import block_copy

from opdeck.core.kernels.pipelines import lane_slot, ring_slot
from opdeck.plugins.fmha_fwd.sm100.config import Config
from opdeck.plugins.fmha_fwd.sm100.work import Work, span


@dataclass(frozen=True)
class TmaTile:
    """One operand: its TMA atom, gmem (MMA, MMA_MN, MMA_K, tiles.., head, batch), smem (MMA, MMA_MN, MMA_K, stage)."""

    atom: Any
    gmem: cute.Tensor
    smem: cute.Tensor


@dataclass(frozen=True)
class LoadPort:
    """Tiles along S are mode 3 of q and k, mode 4 of v (whose mode 3 is the head dim)."""

    q: TmaTile
    k: TmaTile
    v: TmaTile
    q_edge: Any
    kv_edge: Any


class LoadRole:
    """Runs in one warp."""

    def __init__(self, config: Config, port: LoadPort, fusion: Any) -> None:
        self.config = config
        self.port = port
        self.fusion = fusion

    @cute.jit
    def run(self, work: Work) -> None:
        first = work.tile_range(self.fusion, self.config, 0)
        second = work.tile_range(self.fusion, self.config, 1)
        begin, end = span(first, second)
        if begin < end:
            if first.count > 0:
                self.load_q(work, 0)
            self.load_k(work, begin, 0)
            if second.count > 0:
                self.load_q(work, 1)
            self.load_v(work, begin, 1)
            for tile in cutlass.range(begin + 1, end, unroll=1):
                use = 2 * (tile - begin)
                self.load_k(work, tile, use)
                self.load_v(work, tile, use + 1)

    @cute.jit
    def load_q(self, work: Work, tile_idx: int) -> None:
        source = self.port.q.gmem[None, None, None, work.q_tile(tile_idx), 0, work.head, work.batch]
        slot = lane_slot(tile_idx, 0).producer
        self.copy(self.port.q, source, self.port.q_edge, slot)

    @cute.jit
    def load_k(self, work: Work, tile: cutlass.Int32, use: cutlass.Int32) -> None:
        source = self.port.k.gmem[None, None, None, tile, 0, work.kv_head, work.batch]
        slot = ring_slot(self.config.kv_stages, use).producer
        self.copy(self.port.k, source, self.port.kv_edge, slot)

    @cute.jit
    def load_v(self, work: Work, tile: cutlass.Int32, use: cutlass.Int32) -> None:
        source = self.port.v.gmem[None, None, None, 0, tile, work.kv_head, work.batch]
        slot = ring_slot(self.config.kv_stages, use).producer
        self.copy(self.port.v, source, self.port.kv_edge, slot)

    @cute.jit
    def copy(self, operand: TmaTile, source: cute.Tensor, edge: Any, slot: Any) -> None:
        edge.producer_acquire(slot)
        block_copy(
            operand.atom,
            cute.group_modes(source, 0, 3),
            cute.group_modes(operand.smem[None, None, None, slot.index], 0, 3),
            tma_bar_ptr=edge.producer_get_barrier(slot),
        )
