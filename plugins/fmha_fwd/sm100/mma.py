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
from opdeck.plugins.fmha_fwd.sm100.work import Lane, Uses, Work, span


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
    def run(self, work: Work, uses: Uses) -> Uses:
        first = Lane(0, work.tile_range(self.fusion, self.config, 0), uses.first)
        second = Lane(1, work.tile_range(self.fusion, self.config, 1), uses.second)
        begin, end = span(first.tiles, second.tiles)
        if begin < end:
            k_slot = self.wait_k(uses.kv)
            self.issue_scores(first, begin, k_slot)
            self.issue_scores(second, begin, k_slot)
            self.port.k_edge.consumer_release(k_slot)
            for tile in cutlass.range(begin + 1, end, unroll=1):
                use = uses.kv + tile - begin
                v_slot = self.wait_v(use - 1)
                k_slot = self.wait_k(use)
                self.issue_output(first, tile - 1, v_slot)
                self.issue_scores(first, tile, k_slot)
                self.issue_output(second, tile - 1, v_slot)
                self.port.v_edge.consumer_release(v_slot)
                self.issue_scores(second, tile, k_slot)
                self.port.k_edge.consumer_release(k_slot)
            v_slot = self.wait_v(uses.kv + end - begin - 1)
            self.issue_output(first, end - 1, v_slot)
            self.issue_output(second, end - 1, v_slot)
            self.port.v_edge.consumer_release(v_slot)
        return uses.after(first.tiles, second.tiles)

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
    def issue_scores(self, lane: Lane, tile: cutlass.Int32, k_slot: Any) -> None:
        """S = Q K^T of a query tile, if it visits K tile `tile`. The S columns are free: either never used, or their P
        has been read by the P V issued before."""
        tile_idx, tiles = lane.tile_idx, lane.tiles
        if tile >= tiles.begin and tile < tiles.end:
            q_slot = lane_slot(tile_idx, lane.uses.visiting)
            if tile == tiles.begin:
                self.port.q_edge.consumer_wait(q_slot)
            q = self.port.q[None, None, None, tile_idx]
            k = self.port.k[None, None, None, k_slot.index]
            self.gemm(self.port.qk_mma, self.port.s[tile_idx], q, k, range(cute.size(q, mode=[2])), False)
            self.port.scores_edge.producer_commit(lane_slot(tile_idx, lane.use(tile)))
            if tile + 1 == tiles.end:
                self.port.q_edge.consumer_release(q_slot)

    @cute.jit
    def issue_output(self, lane: Lane, tile: cutlass.Int32, v_slot: Any) -> None:
        """O += P V of a query tile, if it visits K tile `tile`."""
        tile_idx, tiles = lane.tile_idx, lane.tiles
        if tile >= tiles.begin and tile < tiles.end:
            use = lane.use(tile)
            # The stage of S is free again: that is the sign that the first columns of P stand in it.
            self.port.scores_edge.producer_acquire(lane_slot(tile_idx, use + 1).producer)
            # Before its first P V too, for which there is no O to rescale.
            self.port.o_edge.producer_acquire(lane_slot(tile_idx, use + 1).producer)
            tmem_after_wait()
            v = self.port.v[None, None, None, v_slot.index]
            o, p = self.port.o[tile_idx], self.port.p[tile_idx]
            num_blocks = cute.size(p, mode=[2])
            num_head_blocks = num_blocks * self.config.p_head_elems // self.config.tile_n
            self.gemm(self.port.pv_mma, o, p, v, range(num_head_blocks), tile > tiles.begin)
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
