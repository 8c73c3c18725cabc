# SPDX-License-Identifier: Apache-2.0
"""Which blocks of queries a CTA takes, by the schedule of its variant, and the Work of each.

Called by: kernel.py. Every role walks the same blocks by itself; nothing is published but what cluster launch control
says.
Source: core/kernels/schedule.py orders the blocks, the longest first under a causal mask. Sequences whose lengths the
host does not know are sorted on the device (order.py) for CTAs that take several blocks; where each has one, they come
in the order of the batch, and the GPU hands out the next block to whoever is done.
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
from opdeck.core.kernels.pipelines import Slot, ring_slot
from opdeck.plugins.fmha_fwd.sm100.config import Config
from opdeck.plugins.fmha_fwd.sm100.sequences import Sequences
from opdeck.plugins.fmha_fwd.sm100.work import LaneUses, Uses, Work

RESPONSE_BYTES = 16


@dataclass(frozen=True)
class Sizes:
    """Extents of Q and K, and how heads and lists of blocks are ordered: num_q_blocks a head and list, section_heads a
    section of the schedule."""

    num_q_rows: Any
    num_k_rows: Any
    num_heads: Any
    num_kv_heads: Any
    num_lists: Any
    num_q_blocks: Any
    section_heads: Any


@dataclass(frozen=True)
class Grid:
    """All blocks of a launch."""

    config: Config
    sequences: Sequences
    sizes: Sizes

    @property
    def num_blocks(self) -> Any:
        sizes = self.sizes
        return sizes.num_q_blocks * sizes.num_heads * self.config.v_blocks * sizes.num_lists

    @property
    def first_block(self) -> Any:
        """The block that this CTA begins with, and with it the others that share its MMAs."""
        return cute.arch.block_idx()[0] // self.config.num_pair_ctas

    def work(self, block_idx: Int32) -> Work:
        """Coordinates of a block."""
        sizes, v_blocks = self.sizes, self.config.v_blocks
        num_heads = sizes.num_heads * v_blocks  # blocks of columns go with heads
        num_rows = num_heads * sizes.num_lists
        coord = schedule.decode(block_idx, sizes.num_q_blocks, num_heads, num_rows, sizes.section_heads)
        head = coord.head // v_blocks
        batch, seq, q_block = self.sequences.find(coord.batch, coord.q_block, sizes.num_q_rows, self.config.block_m)
        return Work(
            q_block=q_block,
            head=head,
            kv_head=head // (sizes.num_heads // sizes.num_kv_heads),
            v_block=coord.head - head * v_blocks,
            seq=seq,
            q_rows=self.sequences.q_rows(seq, batch, sizes.num_q_rows),
            k_rows=self.sequences.k_rows(seq, batch, sizes.num_k_rows),
            num_pair_ctas=self.config.num_pair_ctas,
            pair_idx=pair_idx(self.config),
        )


def pair_idx(config: Config) -> Any:
    """Which of the CTAs that share its MMAs this one is; the first issues them."""
    return cute.arch.block_idx()[0] % config.num_pair_ctas


@dataclass(frozen=True)
class OneBlock:
    """The schedule in which a CTA has one block, which exists."""

    work: Work


@dataclass(frozen=True)
class EveryNthBlock:
    """The schedule in which CTA i of n has the blocks i, i + n, i + 2 n, ... of a grid; pairs of them likewise."""

    grid: Grid


@dataclass(frozen=True)
class TakenBlocks:
    """The schedule in which a CTA begins with its own block and then takes those of CTAs that have not begun.
    ask(n): called before the n-th block is run; by the one warp that asks for the next."""

    grid: Grid
    queue: BlockQueue
    ask: Callable[[Int32], None] = lambda num_blocks: None


class BlockQueue:
    """How a CTA's warps learn which block comes next: one asks cluster launch control, all read the response.

    A ring of config.queue_stages stages of shared memory: responses of 16 bytes, then a "full" and an "empty" mbarrier
    each. Source: PTX ISA 9.x, "clusterlaunchcontrol.try_cancel" (after a refusal nothing may be asked for any more).
    """

    def __init__(self, config: Config, words: cute.Pointer) -> None:
        """words: 8 bytes each, the first 16-byte aligned."""
        self.num_stages = config.queue_stages
        self.num_warps = config.roles.num_warps
        self.responses = words
        self.full, self.empty = words + 2 * self.num_stages, words + 3 * self.num_stages

    def init(self) -> None:
        """By one thread, before the CTA's barrier."""
        for stage_idx in range(self.num_stages):
            cute.arch.mbarrier_init(self.full + stage_idx, 1)
            cute.arch.mbarrier_init(self.empty + stage_idx, self.num_warps)

    def response(self, slot: Slot) -> cute.Pointer:
        return (self.responses + 2 * slot.index).align(RESPONSE_BYTES)

    @cute.jit
    def ask(self, use: Int32) -> None:
        """Asks for a block; by one warp."""
        slot = ring_slot(self.num_stages, use)
        cute.arch.mbarrier_wait(self.empty + slot.index, slot.producer.phase)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(self.full + slot.index, RESPONSE_BYTES)
            cute.arch.issue_clc_query(self.full + slot.index, self.response(slot), multicast=False)

    @cute.jit
    def next(self, use: Int32) -> Int32:
        """The block that was asked for; -1 when there is none left."""
        slot = ring_slot(self.num_stages, use)
        cute.arch.mbarrier_wait(self.full + slot.index, slot.phase)
        block_idx, _, _, is_given = cute.arch.clc_response(self.response(slot))
        # The next response is written by the async proxy.
        cute.arch.fence_view_async_shared()
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(self.empty + slot.index)
        return cutlass.select_(is_given != 0, block_idx, Int32(-1))


def for_each_block(blocks: OneBlock | EveryNthBlock | TakenBlocks, run: Callable[[Work, Any], Any], uses: Any) -> Any:
    """Calls run(work, uses) for each of a CTA's blocks that has rows; what it returns are the uses that the next one
    finds. uses: those of the first, Uses or LaneUses. Returns those after the last."""
    if isinstance(blocks, OneBlock):
        return run(blocks.work, uses)
    if isinstance(blocks, EveryNthBlock):
        return run_every_nth(blocks.grid, run, as_traced(uses))
    return run_taken(blocks.grid, blocks.queue, blocks.ask, run, as_traced(uses))


@cute.jit
def run_every_nth(grid: Grid, run: Callable[[Work, Any], Any], uses: Any) -> Any:
    stride = cute.arch.grid_dim()[0] // grid.config.num_pair_ctas
    for block_idx in cutlass.range(grid.first_block, grid.num_blocks, stride, unroll=1):
        work = grid.work(block_idx)
        if work.exists(grid.config):
            uses = run(work, uses)
    return uses


@cute.jit
def run_taken(
    grid: Grid, queue: BlockQueue, ask: Callable[[Int32], None], run: Callable[[Work, Any], Any], uses: Any
) -> Any:
    block_idx, num_blocks = Int32(grid.first_block), Int32(0)
    while block_idx >= 0:
        ask(num_blocks)
        if block_idx < grid.num_blocks:
            work = grid.work(block_idx)
            if work.exists(grid.config):
                uses = run(work, uses)
        block_idx = next_of(queue, num_blocks)
        num_blocks += 1
    return uses


def next_of(queue: BlockQueue, num_blocks: Int32) -> Int32:
    return queue.next(num_blocks)


def as_traced(uses: Any) -> Any:
    """The same counts as integers that a loop in a kernel may change."""
    if isinstance(uses, Uses):
        return Uses(as_traced(uses.first), as_traced(uses.second), Int32(uses.kv), Int32(uses.cut_v))
    return LaneUses(Int32(uses.blocks), Int32(uses.visiting), Int32(uses.tiles))
