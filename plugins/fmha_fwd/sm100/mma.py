# SPDX-License-Identifier: Apache-2.0
"""The mma warp: issues S = Q K^T and O += P V for both query tiles, one K tile apart.

Called by: kernel.py. Drains "q", "k", "v" and "p_tail", fills "scores" and "o".
Order in the steady state, tensor pipe busy with one query tile while the softmax works on the other:
    O0 += P0 V(j-1);  S0 = Q0 K(j);  O1 += P1 V(j-1);  S1 = Q1 K(j)
P lies where its S lay, so S(j) must follow the P V that reads P(j-1): the tensor pipe keeps the order of issue.
Source: PTX ISA 9.x, "tcgen05.mma", "tcgen05.commit" (a commit covers all earlier tcgen05 work of the thread).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import tcgen05
from cutlass.cutlass_dsl import extract_mlir_values, new_from_mlir_values

from opdeck.core.kernels.pipelines import Slot, lane_slot, ring_slot, tmem_after_wait
from opdeck.plugins.fmha_fwd.sm100.config import Config
from opdeck.plugins.fmha_fwd.sm100.work import TileRange, Work, span


@dataclass(frozen=True)
class MmaPort:
    """Operands as tcgen05 fragments; tuples hold one entry a query tile."""

    qk_mma: Any
    pv_mma: Any
    q: cute.Tensor
    k: cute.Tensor
    v: cute.Tensor
    s: tuple[cute.Tensor, cute.Tensor]
    p: tuple[cute.Tensor, cute.Tensor]
    o: tuple[cute.Tensor, cute.Tensor]
    q_edge: Any
    k_edge: Any
    v_edge: Any
    scores_edge: Any
    p_tail_edge: Any
    o_edge: Any


class MmaRole:
    """Runs in one warp; tcgen05.mma and tcgen05.commit are issued by one elected lane."""

    def __init__(self, config: Config, port: MmaPort, fusion: Any) -> None:
        self.config = config
        self.port = port
        self.fusion = fusion

    @cute.jit
    def run(self, work: Work) -> None:
        first = work.tile_range(self.fusion, self.config, 0)
        second = work.tile_range(self.fusion, self.config, 1)
        begin, end = span(first, second)
        if begin < end:
            k_slot = self.wait_k(0)
            self.issue_scores(0, first, begin, k_slot)
            self.issue_scores(1, second, begin, k_slot)
            self.port.k_edge.consumer_release(k_slot)
            for tile in cutlass.range(begin + 1, end, unroll=1):
                v_slot = self.wait_v(tile - begin - 1)
                k_slot = self.wait_k(tile - begin)
                self.issue_output(0, first, tile - 1, v_slot)
                self.issue_scores(0, first, tile, k_slot)
                self.issue_output(1, second, tile - 1, v_slot)
                self.port.v_edge.consumer_release(v_slot)
                self.issue_scores(1, second, tile, k_slot)
                self.port.k_edge.consumer_release(k_slot)
            v_slot = self.wait_v(end - begin - 1)
            self.issue_output(0, first, end - 1, v_slot)
            self.issue_output(1, second, end - 1, v_slot)

    @cute.jit
    def wait_k(self, use: cutlass.Int32) -> Slot:
        slot = ring_slot(self.config.k_stages, use)
        self.port.k_edge.consumer_wait(slot)
        return slot

    @cute.jit
    def wait_v(self, use: cutlass.Int32) -> Slot:
        slot = ring_slot(self.config.v_stages, use)
        self.port.v_edge.consumer_wait(slot)
        return slot

    @cute.jit
    def issue_scores(self, tile_idx: int, tiles: TileRange, tile: cutlass.Int32, k_slot: Any) -> None:
        """S = Q K^T of query tile `tile_idx`, if it visits K tile `tile`. The S columns are free: either never used,
        or their P has been read by the P V issued before."""
        if tile >= tiles.begin and tile < tiles.end:
            use = tile - tiles.begin
            if use == 0:
                self.port.q_edge.consumer_wait(lane_slot(tile_idx, 0))
            q = self.port.q[None, None, None, tile_idx]
            k = self.port.k[None, None, None, k_slot.index]
            self.gemm(self.port.qk_mma, self.port.s[tile_idx], q, k, range(cute.size(q, mode=[2])), False)
            self.port.scores_edge.producer_commit(lane_slot(tile_idx, use))

    @cute.jit
    def issue_output(self, tile_idx: int, tiles: TileRange, tile: cutlass.Int32, v_slot: Any) -> None:
        """O += P V of query tile `tile_idx`, if it visits K tile `tile`."""
        if tile >= tiles.begin and tile < tiles.end:
            use = tile - tiles.begin
            # The stage of S is free again: that is the sign that the first columns of P stand in it.
            self.port.scores_edge.producer_acquire(lane_slot(tile_idx, use + 1).producer)
            self.port.o_edge.producer_acquire(lane_slot(tile_idx, use).producer)
            tmem_after_wait()
            v = self.port.v[None, None, None, v_slot.index]
            o, p = self.port.o[tile_idx], self.port.p[tile_idx]
            num_blocks = cute.size(p, mode=[2])
            num_head_blocks = num_blocks * self.config.p_head_elems // self.config.tile_n
            self.gemm(self.port.pv_mma, o, p, v, range(num_head_blocks), use > 0)
            self.port.p_tail_edge.consumer_wait(lane_slot(tile_idx, use))
            tmem_after_wait()
            self.gemm(self.port.pv_mma, o, p, v, range(num_head_blocks, num_blocks), True)
            self.port.o_edge.producer_commit(lane_slot(tile_idx, use))

    @cute.jit
    def gemm(
        self, tiled_mma: Any, acc: cute.Tensor, a: cute.Tensor, b: cute.Tensor, k_blocks: range, accumulate: Any
    ) -> None:
        """acc = a b over some blocks of K, added to what acc holds when `accumulate`."""
        # `set` changes the object in place, which must not outlive the branch that this runs in: work on a copy.
        tiled_mma = new_from_mlir_values(tiled_mma, extract_mlir_values(tiled_mma))
        for k_block in cutlass.range_constexpr(k_blocks.start, k_blocks.stop):
            tiled_mma.set(tcgen05.Field.ACCUMULATE, True if k_block > k_blocks.start else accumulate)
            cute.gemm(tiled_mma, acc, a[None, None, k_block], b[None, None, k_block], acc)
