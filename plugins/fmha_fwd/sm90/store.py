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
from cutlass.block import block_copy
from cutlass.cute.nvgpu.warp import StMatrix8x8x16bOp

from opdeck.plugins.fmha_fwd.sm90.config import WARP_THREADS, WARPGROUP_THREADS, WGMMA_M


@dataclass(frozen=True)
class StorePort:
    """All that the store may touch: O's tensor map, gO (WGMMA_M, D, row block) and sO (tile_m, D); LSE rows (Sq,)."""

    tma_o: cute.CopyAtom
    gO: cute.Tensor
    sO: cute.Tensor
    lse: cute.Tensor


@dataclass(frozen=True)
class StoreRole:
    """One consumer thread's part of the stores; pv_mma says which elements of O it holds."""

    port: StorePort
    pv_mma: cute.TiledMma
    thread: Int32

    @cute.jit
    def store_output(self, acc_o: cute.Tensor, first_row_block: Int32) -> None:
        """Store the warpgroup's 64 rows; `first_row_block` is the CTA's first block of 64 query rows."""
        port = self.port
        warpgroup_idx = cute.arch.make_warp_uniform(self.thread // WARPGROUP_THREADS)
        rO = cute.make_rmem_tensor_like(acc_o, port.sO.element_type)
        rO.store(acc_o.load().to(port.sO.element_type))
        atom = cute.make_copy_atom(StMatrix8x8x16bOp(False, 4), port.sO.element_type)
        copy = cute.make_tiled_copy_C(atom, self.pv_mma).get_slice(self.thread)
        cute.copy(atom, copy.retile(rO), copy.partition_D(port.sO))
        cute.arch.fence_proxy("async.shared", space="cta")
        # Barrier 0 is the CTA's; each warpgroup has its own.
        cute.arch.barrier(barrier_id=1 + warpgroup_idx, number_of_threads=WARPGROUP_THREADS)
        if cute.arch.make_warp_uniform(self.thread % WARPGROUP_THREADS // WARP_THREADS) == 0:
            sO = cute.local_tile(port.sO, (WGMMA_M, cute.size(port.sO, mode=[1])), (warpgroup_idx, 0))
            gO = port.gO[None, None, first_row_block + warpgroup_idx]
            block_copy(port.tma_o, cute.group_modes(sO, 0, 2), cute.group_modes(gO, 0, 2))
            cute.arch.cp_async_bulk_commit_group()
            # Shared memory must outlive the reads of the copy; the writes may finish after the CTA.
            cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def store_lse(self, lse: cute.Tensor, coords: cute.Tensor, q_first: Int32) -> None:
        """Store the LSE of the thread's rows (2,), where the caller wants it and the row exists."""
        # Column 0 of the tile is in one of the lanes that share a row.
        if self.port.lse.iterator.toint() != 0 and coords[0, 0][1] == 0:
            for row in cutlass.range_constexpr(cute.size(lse)):
                q = q_first + coords[row, 0][0]
                if q < self.port.lse.shape[0]:
                    self.port.lse[q] = lse[row]
