# SPDX-License-Identifier: Apache-2.0
"""Consumer role of the Hopper forward kernel: S = Q K^T, softmax, O += P V, each warpgroup for 64 of the query rows.

Called by kernel.py in the consumer warpgroups. QK reads both operands from shared memory, PV takes P from registers:
the accumulator fragment of one wgmma is, once rounded to 16 bits, the A fragment of the next, element for element
(PTX ISA, "wgmma.mma_async": register fragments of D and of A). Limits: one Q tile; QK does not overlap softmax.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import warpgroup

from opdeck.core.fusion import TileRanges
from opdeck.plugins.fmha_fwd.sm90.config import WARPGROUP_THREADS, Config
from opdeck.plugins.fmha_fwd.sm90.mask import TileMask, Unmasked
from opdeck.plugins.fmha_fwd.sm90.operands import TiledMmas
from opdeck.plugins.fmha_fwd.sm90.softmax import OnlineSoftmax, rows_of


@dataclass(frozen=True)
class ConsumerPort:
    """All that a consumer warpgroup may touch until its output is ready.

    sQ (tile_m, D, 1), sK (tile_n, D, stage), sV (D, tile_n, stage) and the consumer ends of their pipelines.
    """

    sQ: cute.Tensor
    sK: cute.Tensor
    sV: cute.Tensor
    q_full: Any
    k_full: Any
    v_full: Any


@dataclass(frozen=True)
class ConsumerRole:
    """One consumer thread's operands and accumulators, and the loop over K tiles.

    tSrQ, tSrK, tOrV: shared memory descriptors; acc_s, acc_o: wgmma accumulators; rP: acc_s in V's type, as A operand;
    coords: (query, key) in the tile of each element of acc_s, as (row, column).
    """

    port: ConsumerPort
    mmas: TiledMmas
    tSrQ: cute.Tensor
    tSrK: cute.Tensor
    tOrV: cute.Tensor
    acc_s: cute.Tensor
    acc_o: cute.Tensor
    rP: cute.Tensor
    coords: cute.Tensor

    @staticmethod
    def make(port: ConsumerPort, mmas: TiledMmas, config: Config, thread: Int32) -> ConsumerRole:
        """The role of consumer thread `thread`, counted from the first consumer warpgroup."""
        # Descriptors are built from the first thread of the warpgroup, so that they are uniform in it.
        first_thread = cute.arch.make_warp_uniform(thread // WARPGROUP_THREADS) * WARPGROUP_THREADS
        qk, pv = mmas.qk.get_slice(first_thread), mmas.pv.get_slice(first_thread)
        tile_mn = (config.tile_m, config.tile_n)
        return ConsumerRole(
            port=port,
            mmas=mmas,
            tSrQ=qk.make_fragment_A(qk.partition_A(port.sQ)),
            tSrK=qk.make_fragment_B(qk.partition_B(port.sK)),
            tOrV=pv.make_fragment_B(pv.partition_B(port.sV)),
            acc_s=cute.make_rmem_tensor(qk.partition_shape_C(tile_mn), Float32),
            acc_o=cute.make_rmem_tensor(pv.partition_shape_C((config.tile_m, config.head_dim)), Float32),
            rP=cute.make_rmem_tensor(pv.partition_shape_A(tile_mn), port.sV.element_type),
            coords=rows_of(mmas.qk.get_slice(thread).partition_C(cute.make_identity_tensor(tile_mn))),
        )

    @cute.jit
    def run(self, softmax: OnlineSoftmax, mask: TileMask, ranges: TileRanges) -> None:
        """Attend over the K tiles of `ranges`; leaves the output in acc_o, not yet normalised."""
        self.acc_o.fill(0.0)
        q_full, k_full, v_full = self.port.q_full, self.port.k_full, self.port.v_full
        q_full.wait_and_advance()
        k_full, v_full = self.sweep((ranges.begin, ranges.full_begin), mask, softmax, k_full, v_full)
        k_full, v_full = self.sweep((ranges.full_begin, ranges.full_end), Unmasked(), softmax, k_full, v_full)
        k_full, v_full = self.sweep((ranges.full_end, ranges.end), mask, softmax, k_full, v_full)

    @cute.jit
    def sweep(
        self, tiles: tuple[Int32, Int32], mask: TileMask, softmax: OnlineSoftmax, k_full: Any, v_full: Any
    ) -> Any:
        """Attend over the K tiles [tiles[0], tiles[1]) under one mask; returns the advanced pipeline ends."""
        for k_tile in cutlass.range(tiles[0], tiles[1], unroll=1):
            k_stage = k_full.wait_and_advance()
            self.multiply_qk(k_stage.index)
            k_stage.release()
            scores = rows_of(self.acc_s)
            mask.apply(scores, self.coords, k_tile)
            softmax.update(scores, rows_of(self.acc_o))
            v_stage = v_full.wait_and_advance()
            self.multiply_pv(v_stage.index)
            v_stage.release()
        return k_full, v_full

    @cute.jit
    def multiply_qk(self, stage: Int32) -> None:
        """acc_s = Q K^T for the K tile in `stage`."""
        warpgroup.fence()
        for block in cutlass.range_constexpr(cute.size(self.tSrQ, mode=[2])):
            mma = self.mmas.qk if block > 0 else self.mmas.qk_first
            cute.gemm(mma, self.acc_s, self.tSrQ[None, None, block, 0], self.tSrK[None, None, block, stage], self.acc_s)
        warpgroup.commit_group()
        warpgroup.wait_group(0)

    @cute.jit
    def multiply_pv(self, stage: Int32) -> None:
        """acc_o += P V for the V tile in `stage`, P being acc_s rounded to V's type."""
        cute.make_tensor(self.rP.iterator, self.acc_s.layout).store(self.acc_s.load().to(self.rP.element_type))
        warpgroup.fence()
        for block in cutlass.range_constexpr(cute.size(self.rP, mode=[2])):
            rP, tOrV = self.rP[None, None, block], self.tOrV[None, None, block, stage]
            cute.gemm(self.mmas.pv, self.acc_o, rP, tOrV, self.acc_o)
        warpgroup.commit_group()
        warpgroup.wait_group(0)
