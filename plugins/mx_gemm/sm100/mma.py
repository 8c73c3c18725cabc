# SPDX-License-Identifier: Apache-2.0
"""The mma warp: scale factors from shared to tensor memory, then D += A B over the tiles of K.

Called by: kernel.py. Drains "ab", fills "acc". One set of scale columns is enough: tcgen05.cp and tcgen05.mma of a
thread run in the order of issue.
The end of K: MMAs past it are not issued, so that the scales that would lie there are never read. An MMA of 4-bit
elements takes 64 of K, and K is a multiple of 32: of the last one half may lie past K; k_tail.py clears the scales of
that first.
Source: PTX ISA 9.x, "tcgen05.mma", "tcgen05.cp", "tcgen05 memory consistency: pipelined instructions".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, pipeline
from cutlass.block import block_copy
from cutlass.cute.nvgpu import tcgen05
from cutlass.cutlass_dsl import extract_mlir_values, new_from_mlir_values

from opdeck.core.kernels.pipelines import tmem_after_wait
from opdeck.plugins.mx_gemm.sm100.config import (
    MMAS_PER_K_TILE,
    NUM_ACCUMULATORS,
    STAGES_PER_GROUP,
    WARP_ROWS,
    Config,
)
from opdeck.plugins.mx_gemm.sm100.k_tail import TailPort, TailScales
from opdeck.plugins.mx_gemm.sm100.wide_k import WideKGroup
from opdeck.plugins.mx_gemm.sm100.work import Work


@dataclass(frozen=True)
class ScalePort:
    """Scales of one operand: the copy from smem (MMA, MMA_MN, MMA_K, stage) to tensor memory (MMA, MMA_MN, MMA_K).

    tmem_cols: the first of their columns."""

    copy: Any
    smem: cute.Tensor
    tmem: cute.Tensor
    tmem_cols: cute.Pointer


@dataclass(frozen=True)
class MmaPort:
    """a, b: tcgen05 fragments (MMA, MMA_MN, MMA_K, stage); acc (MMA, MMA_M, MMA_N) in tensor memory,
    the first of the accumulators. wide_k: a WideKPort; None where there are no such MMAs."""

    tiled_mma: Any
    a: cute.Tensor
    b: cute.Tensor
    a_scale: ScalePort
    b_scale: ScalePort
    acc: cute.Tensor
    ab_edge: Any
    acc_edge: Any
    wide_k: Any
    tail: TailPort


@dataclass(frozen=True)
class Operands:
    """What the MMAs of a stage work on: the accumulator, the stage, and the scales of B in tensor memory, those of the
    tile's first column first."""

    acc: cute.Tensor
    stage_idx: Int32
    b_scale: cute.Tensor


class MmaRole:
    """Runs in one warp of the CTA that leads an MMA; tcgen05 instructions are issued by one elected lane."""

    def __init__(self, config: Config, port: MmaPort) -> None:
        self.config = config
        self.port = port

    @cute.jit
    def run(self, work: Work) -> None:
        port, k_tiles = self.port, work.k_tiles
        stage = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.config.ab_stages)
        acc_stage = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.config.acc_stages)
        tile_count = Int32(0)
        for index in cutlass.range(work.cluster_idx, work.grid.count, work.num_clusters, unroll=1):
            b_scale = self.b_scale_of_tile(work, index)
            port.acc_edge.producer_acquire(acc_stage)
            tmem_after_wait()
            first_col = tile_count % NUM_ACCUMULATORS * self.config.acc_stride_cols
            acc = cute.make_tensor(port.acc.iterator + first_col, port.acc.layout)
            first_k_tile = Int32(0)
            if cutlass.const_expr(port.wide_k is not None):
                num_groups = k_tiles.num_whole // STAGES_PER_GROUP
                for group in cutlass.range(num_groups, unroll=1):
                    WideKGroup(self.config, port.wide_k).multiply(acc[None, 0, 0], stage, group > 0)
                    for _ in cutlass.range_constexpr(STAGES_PER_GROUP):
                        stage.advance()
                first_k_tile = num_groups * STAGES_PER_GROUP
            for k_tile in cutlass.range(first_k_tile, k_tiles.num_whole, unroll=1):
                port.ab_edge.consumer_wait(stage)
                self.copy_scales(stage.index)
                self.multiply(Operands(acc, stage.index, b_scale), k_tile > 0)
                port.ab_edge.consumer_release(stage)
                stage.advance()
            if k_tiles.tail_mmas > 0:
                port.ab_edge.consumer_wait(stage)
                if cutlass.const_expr(self.config.mma_blocks > 1):
                    TailScales(self.config, port.tail).clear_as_leader(stage.index, k_tiles.tail_blocks, tile_count)
                self.copy_scales(stage.index)
                self.multiply_tail(Operands(acc, stage.index, b_scale), k_tiles)
                port.ab_edge.consumer_release(stage)
                stage.advance()
            port.acc_edge.producer_commit(acc_stage)
            acc_stage.advance()
            tile_count += 1

    def b_scale_of_tile(self, work: Work, index: Int32) -> cute.Tensor:
        """The scales of the columns of a tile, in tensor memory; those of scale_n columns are loaded."""
        config, scale = self.config, self.port.b_scale
        if config.mma_n == config.scale_n:
            return scale.tmem
        tiles_per_load = config.scale_n // config.mma_n
        cols = work.mma_tile(index).n % tiles_per_load * (config.mma_n // WARP_ROWS)
        first = cute.recast_ptr(scale.tmem_cols + cols, dtype=scale.tmem.element_type)
        return cute.make_tensor(first, scale.tmem.layout)

    @cute.jit
    def copy_scales(self, stage_idx: Int32) -> None:
        for scale in (self.port.a_scale, self.port.b_scale):
            block_copy(scale.copy, scale.smem[None, None, None, stage_idx], scale.tmem)

    @cute.jit
    def multiply(self, operands: Operands, accumulate: Any) -> None:
        for block in cutlass.range_constexpr(MMAS_PER_K_TILE):
            self.issue(operands, block, True if block > 0 else accumulate)

    @cute.jit
    def multiply_tail(self, operands: Operands, k_tiles: Any) -> None:
        """The MMAs of a tile that K ends in."""
        self.issue(operands, 0, k_tiles.num_whole > 0)
        for block in cutlass.range_constexpr(1, MMAS_PER_K_TILE):
            if block < k_tiles.tail_mmas:
                self.issue(operands, block, True)

    @cute.jit
    def issue(self, operands: Operands, block: int, accumulate: Any) -> None:
        """One MMA, block `block` of the K of a stage."""
        port = self.port
        # `set` changes the object in place, which must not outlive the branch that this runs in: work on a copy.
        tiled_mma = new_from_mlir_values(port.tiled_mma, extract_mlir_values(port.tiled_mma))
        tiled_mma.set(tcgen05.Field.ACCUMULATE, accumulate)
        acc, stage_idx = operands.acc, operands.stage_idx
        a = [port.a[None, None, block, stage_idx], port.a_scale.tmem[None, None, block]]
        b = [port.b[None, None, block, stage_idx], operands.b_scale[None, None, block]]
        cute.gemm(tiled_mma, acc, a, b, acc)
