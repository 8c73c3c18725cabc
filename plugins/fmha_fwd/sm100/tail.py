# SPDX-License-Identifier: Apache-2.0
"""The tail warp: clears what a sequence's last V tile holds beyond the sequence.

Called by: kernel.py. Drains "cut_v" and fills, in place of the load warp, the one stage of "v" that the tile lies in.
The other sequences' values there have weights of 0, but 0 times a NaN or an infinity is no 0.
Source: PTX ISA 9.x, "Async proxy" (a proxy fence between these writes and the reads of tcgen05.mma).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from opdeck.core.kernels.pipelines import Slot, lane_slot, ring_slot
from opdeck.plugins.fmha_fwd.sm100.config import Config
from opdeck.plugins.fmha_fwd.sm100.work import Uses, Work, span

WARP_LANES = 32
STORE_BITS = 128


@dataclass(frozen=True)
class TailPort:
    """v: smem (MMA of (D, 16 keys), 1, tile_n / 16, stage). cut_tile: of V, -1 when there is none."""

    v: cute.Tensor
    v_edge: Any
    cut_v_edge: Any
    cut_tile: Int32


class TailRole:
    """Runs in one warp."""

    def __init__(self, config: Config, port: TailPort, fusion: Any) -> None:
        self.config = config
        self.port = port
        self.fusion = fusion

    @cute.jit
    def run(self, work: Work, uses: Uses) -> Uses:
        first = work.tile_range(self.fusion, self.config, 0)
        second = work.tile_range(self.fusion, self.config, 1)
        begin, end = span(first, second)
        first_cut, end_cut = self.positions_of_cut(begin, end)
        num_cut = Int32(0)
        for position in cutlass.range(first_cut, end_cut, unroll=1):
            if work.k_tile(self.fusion, self.config, position) == self.port.cut_tile:
                slot = ring_slot(self.config.v_stages, uses.kv + position - begin)
                self.fill(slot, lane_slot(0, uses.cut_v + num_cut), work.sk)
                num_cut += 1
        return uses.after(first, second, num_cut)

    def positions_of_cut(self, begin: Int32, end: Int32) -> tuple[Int32, Int32]:
        """Positions of [begin, end) among which the cut tile is, if at all: those of a list are searched."""
        if not self.fusion.mask.is_in_order:
            return begin, end
        tile = self.port.cut_tile
        return tile, tile + (begin <= tile) * 1 * (tile < end)

    @cute.jit
    def fill(self, slot: Slot, cut_slot: Slot, sk: Int32) -> None:
        """The stage `slot` of "v", once its bytes are there."""
        self.port.cut_v_edge.consumer_wait(cut_slot)
        self.port.cut_v_edge.consumer_release(cut_slot)
        self.clear_rows(slot.index, sk - self.port.cut_tile * self.config.tile_n)
        cute.arch.fence_view_async_shared()
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(self.port.v_edge.producer_get_barrier(slot))

    @cute.jit
    def clear_rows(self, stage_idx: Int32, first_row: Int32) -> None:
        """Zeros to the keys [first_row, tile_n) of a stage, 16 bytes a lane at a time."""
        dtype = self.port.v.element_type
        elems_per_store = STORE_BITS // dtype.width
        stores_per_row = self.config.d_v // elems_per_store
        zeros = cute.make_rmem_tensor(cute.make_layout(elems_per_store), dtype)
        zeros.fill(0.0)
        keys_per_mma = cute.size(self.port.v, mode=[0, 1])
        num_stores = (self.config.tile_n - first_row) * stores_per_row
        for i in cutlass.range(cute.arch.lane_idx(), num_stores, WARP_LANES, unroll=1):
            row = first_row + i // stores_per_row
            values = self.port.v[(None, row % keys_per_mma), 0, row // keys_per_mma, stage_idx]
            part = cute.flat_divide(values, (elems_per_store,))[None, i % stores_per_row]
            cute.autovec_copy(zeros, part)
