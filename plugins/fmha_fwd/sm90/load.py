# SPDX-License-Identifier: Apache-2.0
"""Load role of the Hopper forward kernel: one warp brings Q once, then K and V tile by tile, by TMA.

Called by kernel.py in warp 0 of the producer warpgroup. The order K, V, K, V is the order in which the consumers
wait, so a stage is never held back by one that is needed later. Source: PTX ISA, "cp.async.bulk.tensor", "mbarrier".
Limits: bf16/fp16; rows beyond the sequence arrive as zeros, by the bounds of the tensor maps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.block import block_copy


@dataclass(frozen=True)
class TmaTile:
    """A tensor map and its two ends: atom, tiled gmem coordinates (tile..., tile_idx), smem stages (tile..., stage)."""

    atom: cute.CopyAtom
    gmem: cute.Tensor
    smem: cute.Tensor

    @cute.jit
    def load(self, tile_idx: Int32, handle: Any) -> None:
        """Fill the stage of `handle`, an acquired producer stage, with tile `tile_idx`."""
        block_copy(
            self.atom,
            cute.group_modes(self.gmem[None, None, tile_idx], 0, 2),
            cute.group_modes(self.smem[None, None, handle.index], 0, 2),
            tma_bar_ptr=handle.barrier,
        )


@dataclass(frozen=True)
class LoadPort:
    """All that the load warp may touch: three TMA tiles and the producer ends of their pipelines."""

    q: TmaTile
    k: TmaTile
    v: TmaTile
    q_free: Any
    k_free: Any
    v_free: Any


class LoadRole:
    @cute.jit
    def run(self, port: LoadPort, q_block: Int32, k_begin: Int32, k_end: Int32) -> None:
        """Load query tile `q_block` and the K and V tiles [k_begin, k_end)."""
        q_free, k_free, v_free = port.q_free, port.k_free, port.v_free
        port.q.load(q_block, q_free.acquire_and_advance())
        for k_tile in cutlass.range(k_begin, k_end, unroll=1):
            port.k.load(k_tile, k_free.acquire_and_advance())
            port.v.load(k_tile, v_free.acquire_and_advance())
