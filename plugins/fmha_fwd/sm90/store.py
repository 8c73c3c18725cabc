# SPDX-License-Identifier: Apache-2.0
"""Store role of the Hopper forward kernel: O through shared memory by TMA, LSE straight from registers.

Called by kernel.py in each consumer warpgroup when its output is ready. Each warpgroup stages its 64 rows over the
64 rows of Q that only it has read, so the warpgroups need not wait for each other. Source: PTX ISA,
"cp.async.bulk.tensor", "fence.proxy.async", "stmatrix". Limits: 16-bit O; rows beyond Sq are clipped by the tensor
map, and by a predicate for LSE.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.cute.nvgpu.warp import StMatrix8x8x16bOp

from opdeck.core.kernels.topology import WARPGROUP_WARPS
from opdeck.plugins.fmha_fwd.sm90.config import WARPGROUP_THREADS
from opdeck.plugins.fmha_fwd.sm90.operands import TmaTile
from opdeck.plugins.fmha_fwd.sm90.work import Work


@dataclass(frozen=True)
class StorePort:
    """All that the store may touch: sO (tile_m, D); o, the same in tiles of a warpgroup's 64 rows; lse (B, Hq, Sq)."""

    sO: cute.Tensor
    o: TmaTile
    lse: cute.Tensor


@dataclass(frozen=True)
class StoreRole:
    """One consumer thread's part of the stores; `thread` counts from the first consumer warpgroup."""

    port: StorePort
    thread: Int32

    @cute.jit
    def store_output(self, acc_o: cute.Tensor, pv_mma: cute.TiledMma, first_tile: Int32) -> None:
        """Round and store the warpgroup's rows; `first_tile`: tile of `port.o` where the CTA's rows begin."""
        warpgroup_idx = cute.arch.make_warp_uniform(self.thread // WARPGROUP_THREADS)
        warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx() % WARPGROUP_WARPS)
        self.stage_output(acc_o, pv_mma)
        cute.arch.fence_proxy("async.shared", space="cta")
        # Barrier 0 is the CTA's; each warpgroup has its own.
        cute.arch.barrier(barrier_id=1 + warpgroup_idx, number_of_threads=WARPGROUP_THREADS)
        if warp_idx == 0:
            self.port.o.store(warpgroup_idx, first_tile + warpgroup_idx)
            cute.arch.cp_async_bulk_commit_group()
            # Shared memory must outlive the reads of the copy; its writes may finish after the CTA.
            cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def stage_output(self, acc_o: cute.Tensor, pv_mma: cute.TiledMma) -> None:
        """acc_o, rounded to O's type, to shared memory."""
        sO = self.port.sO
        rO = cute.make_rmem_tensor_like(acc_o, sO.element_type)
        rO.store(acc_o.load().to(sO.element_type))
        atom = cute.make_copy_atom(StMatrix8x8x16bOp(False, 4), sO.element_type)
        copy = cute.make_tiled_copy_C(atom, pv_mma).get_slice(self.thread)
        cute.copy(atom, copy.retile(rO), copy.partition_D(sO))

    @cute.jit
    def store_lse(self, lse: cute.Tensor, coords: cute.Tensor, work: Work) -> None:
        """Store the LSE of the thread's rows (2,), where the caller wants it and the row exists."""
        # Of the lanes that share a row, the one that holds column 0 of the tile writes.
        if self.port.lse.iterator.toint() != 0 and coords[0, 0][1] == 0:
            gLSE = self.port.lse[work.batch, work.head, None]
            for row in cutlass.range_constexpr(cute.size(lse)):
                q = work.q_first + coords[row, 0][0]
                if q < work.sizes.sq:
                    gLSE[q] = lse[row]
