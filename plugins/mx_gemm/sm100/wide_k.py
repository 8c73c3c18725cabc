# SPDX-License-Identifier: Apache-2.0
"""MMAs of sm_103a that take 96 of K of packed 4-bit elements: three stages of A and B, 768 of K, by eight of them.

Called by: mma.py, for the whole groups of three stages; what K has beyond those goes by MMAs of 64. A row of an MMA is
48 bytes, and so the third and the sixth begin in one stage and end in the next: their descriptors name both. Scales go
to tensor memory three words of four at a time, which is what two MMAs (blocks of 16) or four (of 32) take.
Source: PTX ISA 9.x, "tcgen05.mma" kinds mxf4 and mxf4nvf4 with K = 96, "Shared memory descriptor" (leading dimension
stride mode: absolute address), "tcgen05.mma block scaling" (K = 96: factors that go on in the next word).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute
from cutlass import Uint8
from cutlass.block import block_copy
from cutlass.cute.nvgpu import tcgen05
from cutlass.cutlass_dsl import extract_mlir_values, new_from_mlir_values
from cutlass.utils import blackwell_helpers

from opdeck.plugins.mx_gemm.sm100.config import SCALE_ROWS, SCALE_WORD_BLOCKS, WARP_ROWS, WIDE_K, Config
from opdeck.plugins.mx_gemm.sm100.operands import ELEMENTS, cta_group

CHUNK_BYTES = 16
TMEM_LANE_ELEMS = 4 << 16
"""Distance of two lanes of tensor memory in scales; a column has four."""


@dataclass(frozen=True)
class WordPort:
    """Scales of one operand by words: the copy of one from smem ((rows, block), 1, 1, word, stage) to tensor memory
    ((rows, block), 1, 1, word), and the distance of two words there in scales."""

    copy: Any
    smem: cute.Tensor
    tmem: cute.Tensor
    word_elems: int


@dataclass(frozen=True)
class WideKPort:
    """a, b: shared memory by bytes ((row, 16), 1, chunk of 16, stage)."""

    tiled_mma: Any
    a: cute.Tensor
    b: cute.Tensor
    a_scale: WordPort
    b_scale: WordPort
    ab_edge: Any


def tiled_mma(config: Config) -> Any:
    scale, shape = ELEMENTS[config.scale], (config.mma_m, config.mma_n)
    return blackwell_helpers.sm103_make_blockscaled_trivial_tiled_mma(
        scale, config.block_elems, cta_group(config), shape
    )


def bytes_of(config: Config, smem: cute.Pointer, swizzle: Any, rows: int) -> cute.Tensor:
    """An operand's stages by bytes; each row's 128 of a stage are one span of the swizzle."""
    atom = tcgen05.make_smem_layout_atom(tcgen05.SmemLayoutAtomKind.K_SW128, Uint8)
    chunks = config.tile_k * config.smem_elem_bits // 8 // CHUNK_BYTES
    shape = ((rows, CHUNK_BYTES), 1, chunks, config.ab_stages)
    layout = tcgen05.tile_to_mma_shape(atom, shape, order=(0, 1, 2))
    return cute.make_tensor(cute.recast_ptr(smem, swizzle_=swizzle, dtype=Uint8), layout.outer)


def word_port(config: Config, smem: cute.Pointer, tmem: cute.Pointer, rows: int) -> WordPort:
    """Scales of `rows` rows, whose stages begin at smem, and their columns at tmem."""
    words, block = config.scale_words, config.block_elems
    chunks, cols = rows // SCALE_ROWS, rows // WARP_ROWS
    chunk_bytes = SCALE_ROWS * SCALE_WORD_BLOCKS
    smem_layout = cute.make_layout(
        ((((WARP_ROWS, 4), chunks), (block, 4)), 1, 1, words, config.ab_stages),
        stride=((((CHUNK_BYTES, 4), words * chunk_bytes), (0, 1)), 0, 0, chunk_bytes, chunks * words * chunk_bytes),
    )
    word_elems = SCALE_WORD_BLOCKS * cols
    tmem_layout = cute.make_layout(
        ((((WARP_ROWS, cols), 4), (block, 4)), 1, 1, config.tmem_scale_words),
        stride=((((TMEM_LANE_ELEMS, SCALE_WORD_BLOCKS), WARP_ROWS * TMEM_LANE_ELEMS), (0, 1)), 0, 0, word_elems),
    )
    scale = ELEMENTS[config.scale]
    to = cute.make_tensor(cute.recast_ptr(tmem, dtype=scale), tmem_layout)
    atom = cute.make_copy_atom(tcgen05.Cp4x32x128bOp(cta_group(config)), scale)
    copy = tcgen05.make_s2t_copy(atom, cute.filter_zeros(to[None, None, None, 0]))
    return WordPort(copy, cute.make_tensor(smem, smem_layout), to, word_elems)


class WideKGroup:
    """Part of the mma role."""

    def __init__(self, config: Config, port: WideKPort) -> None:
        self.config = config
        self.port = port

    def multiply(self, acc: cute.Tensor, stage: Any, accumulate: Any) -> None:
        """Waits for three stages from `stage` on, multiplies them and frees them."""
        config, edge = self.config, self.port.ab_edge
        first = stage.clone()
        second = first.clone()
        second.advance()
        third = second.clone()
        third.advance()
        stages = (first, second, third)
        mmas_per_load = config.words_per_load * SCALE_WORD_BLOCKS * config.block_elems // WIDE_K
        num_ready = num_freed = 0
        for load in range(config.group_k // (mmas_per_load * WIDE_K)):
            end_k = (load + 1) * mmas_per_load * WIDE_K
            while num_ready * config.tile_k < end_k:
                edge.consumer_wait(stages[num_ready])
                num_ready += 1
            self.copy_scales(stages, load)
            for mma in range(load * mmas_per_load, (load + 1) * mmas_per_load):
                self.issue(acc, stages, mma, True if mma > 0 else accumulate)
            while (num_freed + 1) * config.tile_k <= end_k:
                edge.consumer_release(stages[num_freed])
                num_freed += 1

    def copy_scales(self, stages: tuple[Any, ...], load: int) -> None:
        words = self.config.words_per_load
        for slot in range(words):
            stage, word = divmod(load * words + slot, self.config.scale_words)
            for scale in (self.port.a_scale, self.port.b_scale):
                source = scale.smem[None, None, None, word, stages[stage].index]
                block_copy(scale.copy, source, scale.tmem[None, None, None, slot])

    def issue(self, acc: cute.Tensor, stages: tuple[Any, ...], mma: int, accumulate: Any) -> None:
        config, port = self.config, self.port
        tiled = new_from_mlir_values(port.tiled_mma, extract_mlir_values(port.tiled_mma))
        tiled.set(tcgen05.Field.ACCUMULATE, accumulate)
        first_block = mma * WIDE_K // config.block_elems % (config.words_per_load * SCALE_WORD_BLOCKS)
        word, in_word = divmod(first_block, SCALE_WORD_BLOCKS)
        for name, scale in ((tcgen05.Field.SFA, port.a_scale), (tcgen05.Field.SFB, port.b_scale)):
            tiled.set(name, scale.tmem.iterator + (word * scale.word_elems + in_word))
        a, b = (self.descriptor(smem, stages, mma) for smem in (port.a, port.b))
        cute.mma_atom_call(tiled, acc, a, b, acc)

    def descriptor(self, smem: cute.Tensor, stages: tuple[Any, ...], mma: int) -> cute.Tensor:
        """Of an operand of an MMA: 48 bytes a row, which begin in one stage and may end in the next."""
        stage_bytes = self.config.tile_k * self.config.smem_elem_bits // 8
        mma_bytes = WIDE_K * self.config.smem_elem_bits // 8
        begin, last = mma * mma_bytes, (mma + 1) * mma_bytes - 1
        here, there = begin // stage_bytes, last // stage_bytes
        rows = smem[None, 0, begin % stage_bytes // CHUNK_BYTES, stages[here].index]
        following = smem[None, 0, 0, stages[there].index]
        word = tcgen05.make_umma_smem_desc(rows.iterator, rows.layout, "k", next_src=following.iterator)
        return cute.make_tensor(word, cute.make_layout(1, stride=0))
