# SPDX-License-Identifier: Apache-2.0
"""The store warp: O of each query tile from shared to global memory.

Called by: kernel.py. Drains "out". Whole tiles go by TMA; rows past the end of O lie outside the tensor map's bounds
and are not written. A tile that its sequence's end cuts goes row by row: behind it lie rows of others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.block import block_copy

from opdeck.core.fusion.intmath import max_, min_
from opdeck.core.kernels.pipelines import Slot, lane_slot, ring_slot
from opdeck.plugins.fmha_fwd.sm100.config import NUM_Q_TILES, Config
from opdeck.plugins.fmha_fwd.sm100.work import LaneUses, Work

WARP_LANES = 32
STORE_BITS = 128


@dataclass(frozen=True)
class StorePort:
    """tiles (128, D, q tile, 1, head, batch) of the sequence, by TMA; smem (128, D, 2 tiles); o (B, Sq, Hq, D)."""

    atom: Any
    tiles: cute.Tensor
    smem: cute.Tensor
    o: cute.Tensor
    out_edge: Any
    q_buffers_edge: Any
    """As LoadPort's."""


class StoreRole:
    """Runs in one warp."""

    def __init__(self, config: Config, port: StorePort) -> None:
        self.config = config
        self.port = port

    @cute.jit
    def run(self, work: Work, uses: LaneUses) -> None:
        end = work.q_rows.begin + work.sq
        block_slot = lane_slot(0, uses.blocks)
        if cutlass.const_expr(self.config.reloads_over_o):
            self.port.q_buffers_edge.consumer_wait(block_slot)
        stored: tuple[Slot, ...] = ()
        for tile_idx in cutlass.range_constexpr(NUM_Q_TILES):
            slot = ring_slot(self.config.o_stages, uses.out(tile_idx))
            self.port.out_edge.consumer_wait(slot)
            num_rows = work.sq - work.q_tile(tile_idx) * self.config.tile_m
            if num_rows < self.config.tile_m and end < self.port.o.shape[1]:
                self.store_rows(work, tile_idx, slot, max_(num_rows, Int32(0)))
            else:
                self.store_tile(work, tile_idx, slot)
            stored = (*stored, slot)
            # Buffers may be written again, and the CTA end, once the copies have read them.
            if cutlass.const_expr(len(stored) == self.config.o_stages):
                cute.arch.cp_async_bulk_wait_group(0, read=True)
                for read in stored:
                    self.port.out_edge.consumer_release(read)
                stored = ()
        if cutlass.const_expr(self.config.reloads_over_o):
            self.port.q_buffers_edge.consumer_release(block_slot)

    @cute.jit
    def store_tile(self, work: Work, tile_idx: int, slot: Slot) -> None:
        target = self.port.tiles[None, None, work.q_tile(tile_idx), work.v_block, work.head, work.q_rows.batch]
        block_copy(
            self.port.atom,
            cute.group_modes(self.port.smem[None, None, slot.index], 0, 2),
            cute.group_modes(target, 0, 2),
        )
        cute.arch.cp_async_bulk_commit_group()

    @cute.jit
    def store_rows(self, work: Work, tile_idx: int, slot: Slot, num_rows: Int32) -> None:
        """The first num_rows rows of a tile, 16 bytes a lane at a time."""
        elems_per_store = STORE_BITS // self.port.o.element_type.width
        first_col = work.v_block * self.config.d_v
        stores_per_row = min_(Int32(self.port.o.shape[3]) - first_col, Int32(self.config.d_v)) // elems_per_store
        source = cute.flat_divide(self.port.smem[None, None, slot.index], (1, elems_per_store))
        target = cute.flat_divide(self.port.o[work.q_rows.batch, None, work.head, None], (1, elems_per_store))
        first_row = work.q_rows.begin + work.q_tile(tile_idx) * self.config.tile_m
        elems = cute.make_rmem_tensor(cute.make_layout((1, elems_per_store)), self.port.o.element_type)
        for i in cutlass.range(cute.arch.lane_idx(), num_rows * stores_per_row, WARP_LANES, unroll=1):
            row, part = i // stores_per_row, i % stores_per_row
            cute.autovec_copy(source[None, None, row, part], elems)
            cute.autovec_copy(elems, target[None, None, first_row + row, first_col // elems_per_store + part])
