# SPDX-License-Identifier: Apache-2.0
"""Which blocks of queries a CTA takes, by the schedule of its variant, and the Work of each.

Called by: kernel.py. Every role walks the same blocks by itself, so nothing is published and nobody waits.
Source: core/kernels/schedule.py orders the blocks, the longest first under a causal mask.
Limits: num_q_blocks * num_heads * batch + CTAs < 2^31.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from opdeck.core.kernels import schedule
from opdeck.plugins.fmha_fwd.sm100.config import Config
from opdeck.plugins.fmha_fwd.sm100.sequences import Sequences
from opdeck.plugins.fmha_fwd.sm100.work import LaneUses, Uses, Work


@dataclass(frozen=True)
class Sizes:
    """Extents of Q and K, and how heads and batch entries are ordered: num_q_blocks a head and batch entry,
    section_heads a section of the schedule."""

    num_q_rows: Any
    num_k_rows: Any
    num_heads: Any
    num_kv_heads: Any
    batch: Any
    num_q_blocks: Any
    section_heads: Any

    @property
    def num_blocks(self) -> Any:
        return self.num_q_blocks * self.num_heads * self.batch


@dataclass(frozen=True)
class Grid:
    """All blocks of a launch."""

    config: Config
    sequences: Sequences
    sizes: Sizes

    def work(self, block_idx: Int32) -> Work:
        """Coordinates of a block."""
        sizes = self.sizes
        num_rows = sizes.num_heads * sizes.batch
        coord = schedule.decode(block_idx, sizes.num_q_blocks, sizes.num_heads, num_rows, sizes.section_heads)
        seq, q_block = self.sequences.find(coord.batch, coord.q_block, sizes.num_q_rows, self.config.block_m)
        return Work(
            q_block=q_block,
            head=coord.head,
            kv_head=coord.head // (sizes.num_heads // sizes.num_kv_heads),
            seq=seq,
            q_rows=self.sequences.q_rows(seq, coord.batch, sizes.num_q_rows),
            k_rows=self.sequences.k_rows(seq, coord.batch, sizes.num_k_rows),
        )


@dataclass(frozen=True)
class OneBlock:
    """The schedule in which a CTA has one block, which exists."""

    work: Work


@dataclass(frozen=True)
class EveryNthBlock:
    """The schedule in which CTA i of n has the blocks i, i + n, i + 2 n, ... of a grid."""

    grid: Grid


def for_each_block(blocks: OneBlock | EveryNthBlock, run: Callable[[Work, Any], Any], uses: Any) -> None:
    """Calls run(work, uses) for each of a CTA's blocks that has rows; what it returns are the uses that the next one
    finds. uses: those of the first, Uses or LaneUses."""
    if isinstance(blocks, OneBlock):
        run(blocks.work, uses)
    else:
        run_every_nth(blocks.grid, run, as_traced(uses))


@cute.jit
def run_every_nth(grid: Grid, run: Callable[[Work, Any], Any], uses: Any) -> None:
    first, num_ctas = cute.arch.block_idx()[0], cute.arch.grid_dim()[0]
    for block_idx in cutlass.range(first, grid.sizes.num_blocks, num_ctas, unroll=1):
        work = grid.work(block_idx)
        if work.exists(grid.config):
            uses = run(work, uses)


def as_traced(uses: Any) -> Any:
    """The same counts as integers that a loop in a kernel may change."""
    if isinstance(uses, Uses):
        return Uses(as_traced(uses.first), as_traced(uses.second), Int32(uses.kv), Int32(uses.cut_v))
    return LaneUses(Int32(uses.blocks), Int32(uses.visiting), Int32(uses.tiles))
