# SPDX-License-Identifier: Apache-2.0
"""The store warp: O of each query tile from shared to global memory by TMA.

Called by: kernel.py. Drains "out". Rows past Sq lie outside the tensor map's bounds and are not written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.block import block_copy

from opdeck.core.kernels.pipelines import lane_slot
from opdeck.plugins.fmha_fwd.sm100.config import NUM_Q_TILES
from opdeck.plugins.fmha_fwd.sm100.work import Work


@dataclass(frozen=True)
class StorePort:
    """gmem (128, D, q tile, 1, head, batch), smem (128, D, 2 tiles)."""

    atom: Any
    gmem: cute.Tensor
    smem: cute.Tensor
    out_edge: Any


class StoreRole:
    """Runs in one warp."""

    def __init__(self, port: StorePort) -> None:
        self.port = port

    @cute.jit
    def run(self, work: Work) -> None:
        for tile_idx in cutlass.range_constexpr(NUM_Q_TILES):
            self.port.out_edge.consumer_wait(lane_slot(tile_idx, 0))
            block_copy(
                self.port.atom,
                cute.group_modes(self.port.smem[None, None, tile_idx], 0, 2),
                cute.group_modes(self.port.gmem[None, None, work.q_tile(tile_idx), 0, work.head, work.batch], 0, 2),
            )
            cute.arch.cp_async_bulk_commit_group()
        # The CTA's shared memory must outlive the reads of the copies.
        cute.arch.cp_async_bulk_wait_group(0, read=True)
