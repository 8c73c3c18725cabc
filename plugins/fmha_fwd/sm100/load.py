# SPDX-License-Identifier: Apache-2.0
"""The load warp: Q once, then K and V tile by tile, by TMA.

Called by: kernel.py. Fills edges "q", "k" and "v" in the order in which the mma warp drains them:
Q0 K0 Q1 V0 K1 V1 ... Rows past the end of a tensor arrive as zeros (tensor-map bounds). Rows past the end of a sequence
may hold anything: in Q they make rows of O that nobody stores, in K scores that the mask hides, but in V a NaN would
reach O as 0 * NaN. So the V tile that a sequence's end cuts goes to the tail role by "cut_v", and "v" is filled there.
Where the O of a CTA's last block is stored from the buffers of Q, the load warp has them back by "q_buffers".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.block import block_copy

from opdeck.core.kernels.pipelines import Slot, lane_slot, ring_slot
from opdeck.plugins.fmha_fwd.sm100.config import Config
from opdeck.plugins.fmha_fwd.sm100.work import Uses, Work, span


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
    k_edge: Any
    v_edge: Any
    cut_v_edge: Any
    """None where no V tile is ever cut."""
    q_buffers_edge: Any
    """None where O is not stored from the buffers that Q of the next block comes to."""
    cut_tile: Int32
    """Of V; -1: there is none."""
    k_tile: Callable[[Work, Int32], tuple[Int32, Int32]]
    """Entry of dim 0 and tile in it of a K tile of a sequence."""
    end_tile: Int32
    """The first tile past the rows of an entry."""


class LoadRole:
    """Runs in one warp."""

    def __init__(self, config: Config, port: LoadPort, fusion: Any) -> None:
        self.config = config
        self.port = port
        self.fusion = fusion

    @cute.jit
    def run(self, work: Work, uses: Uses) -> Uses:
        first = work.tile_range(self.fusion, self.config, 0)
        second = work.tile_range(self.fusion, self.config, 1)
        begin, end = span(first, second)
        num_cut = Int32(0)
        if cutlass.const_expr(self.config.reloads_over_o):
            self.take_q_buffers(uses.first.blocks)
        if begin < end:
            if first.count > 0:
                self.load_q(work, 0, uses.first.visiting)
            self.load_k(work, self.k_tile(work, begin), uses.kv)
            if second.count > 0:
                self.load_q(work, 1, uses.second.visiting)
            for position in cutlass.range(begin, end, unroll=1):
                use = uses.kv + position - begin
                tile = self.k_tile(work, position)
                self.load_v(work, tile, use, uses.cut_v + num_cut)
                num_cut += (tile == self.port.cut_tile) * 1
                if position + 1 < end:
                    self.load_k(work, self.k_tile(work, position + 1), use + 1)
        return uses.after(first, second, num_cut)

    def k_tile(self, work: Work, position: Int32) -> Int32:
        return work.k_tile(self.fusion, self.config, position)

    def place(self, work: Work, tile: Int32) -> tuple[Int32, Int32]:
        """Where a K tile lies, as LoadPort.k_tile."""
        return self.port.k_tile(work, tile) if self.fusion.mask.is_in_order else self.place_of_any(work, tile)

    @cute.jit
    def place_of_any(self, work: Work, tile: Int32) -> tuple[Int32, Int32]:
        """Of one that may lie past the sequence too: it comes as zeros, and no page of it is looked up."""
        batch, in_batch = Int32(0), self.port.end_tile
        if tile * self.config.tile_n < work.sk:
            batch, in_batch = self.port.k_tile(work, tile)
        return batch, in_batch

    @cute.jit
    def take_q_buffers(self, block: Int32) -> None:
        """Until the O of earlier blocks is stored; of each block, also if none of its tiles needs Q."""
        slot = lane_slot(0, block)
        self.port.q_buffers_edge.producer_acquire(slot.producer)
        self.port.q_buffers_edge.producer_commit(slot)

    @cute.jit
    def load_q(self, work: Work, tile_idx: int, use: Int32) -> None:
        source = self.port.q.gmem[None, None, None, work.mma_tile(tile_idx), 0, work.head, work.q_rows.batch]
        slot = lane_slot(tile_idx, use).producer
        self.copy(self.port.q, source, self.port.q_edge, slot)

    @cute.jit
    def load_k(self, work: Work, tile: Int32, use: Int32) -> None:
        batch, in_batch = self.place(work, tile)
        source = self.port.k.gmem[None, None, None, in_batch, 0, work.kv_head, batch]
        slot = ring_slot(self.config.k_stages, use).producer
        self.copy(self.port.k, source, self.port.k_edge, slot)

    @cute.jit
    def load_v(self, work: Work, tile: Int32, use: Int32, cut_use: Int32) -> None:
        batch, in_batch = self.place(work, tile)
        source = self.port.v.gmem[None, None, None, work.v_block, in_batch, work.kv_head, batch]
        slot = ring_slot(self.config.v_stages, use).producer
        if cutlass.const_expr(self.port.cut_v_edge is None):
            self.copy(self.port.v, source, self.port.v_edge, slot)
        elif tile == self.port.cut_tile:
            # Promises no bytes to the stage's barrier: they arrive at that of "cut_v".
            wait_until_free(self.port.v_edge, slot)
            cut_slot = lane_slot(0, cut_use).producer
            self.port.cut_v_edge.producer_acquire(cut_slot)
            copy_tile(self.port.v, source, slot.index, self.port.cut_v_edge.producer_get_barrier(cut_slot))
        else:
            self.copy(self.port.v, source, self.port.v_edge, slot)

    @cute.jit
    def copy(self, operand: TmaTile, source: cute.Tensor, edge: Any, slot: Slot) -> None:
        edge.producer_acquire(slot)
        copy_tile(operand, source, slot.index, edge.producer_get_barrier(slot))


def wait_until_free(edge: Any, slot: Slot) -> None:
    """Waits for a stage without using it."""
    edge.sync_object_empty.wait(slot.index, slot.phase)


def wait_for_commits(config: Config, edges: Mapping[str, Any], uses: Uses) -> None:
    """Behind the last block: until all has arrived that another CTA's mma warp commits to the barriers of this one."""
    for name, num_stages in (("k", config.k_stages), ("v", config.v_stages)):
        for stage_idx in range(num_stages):
            wait_until_free(edges[name], ring_slot(num_stages, uses.kv + stage_idx).producer)
    for tile_idx, lane in enumerate((uses.first, uses.second)):
        wait_until_free(edges["q"], lane_slot(tile_idx, lane.visiting).producer)


@cute.jit
def copy_tile(operand: TmaTile, source: cute.Tensor, stage_idx: Any, barrier: cute.Pointer) -> None:
    block_copy(
        operand.atom,
        cute.group_modes(source, 0, 3),
        cute.group_modes(operand.smem[None, None, None, stage_idx], 0, 3),
        tma_bar_ptr=barrier,
    )
