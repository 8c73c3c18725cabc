# SPDX-License-Identifier: Apache-2.0
"""The order of sequences whose lengths only the device knows: those of the longest blocks first.

Called by: kernel.py, for kernels whose CTAs take several blocks. Where lengths are given, a kernel launched before the
main one on the same stream sorts the sequences into the launch's workspace, by the K tiles of their last blocks, which
a causal mask makes their longest. The main kernel's CTAs find their blocks there.
Schedules take blocks from the last to the first: so the order is from short to long, and a sequence's last block comes
first. Blocks of a sequence follow one another, with its K and V in the L2 cache. All that are listed have rows.
Limits: ORDER_GROUP_SEQS sequences at a time are sorted; the groups come in the order of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.utils import SmemAllocator

from opdeck.core.fusion.intmath import ceil_div, clamp, min_
from opdeck.plugins.fmha_fwd.sm100.config import NUM_Q_TILES, Config
from opdeck.plugins.fmha_fwd.sm100.sequences import MAX_ROWS, Sequences, is_given, last_begun
from opdeck.plugins.fmha_fwd.sm100.work import Work, span
from opdeck.plugins.fmha_fwd.variants import ORDER_GROUP_SEQS

MAX_TILES = 1 << 22
"""Longer ones count as equal, so that a key of 32 bits holds the tiles and, after them, the place in the group."""
FIRST_BLOCK, SEQ = 0, 1


@dataclass(frozen=True)
class OrderedSequences(Sequences):
    """Sequences that a launch orders where it has lengths. order: (num_seqs + 1, 2) i32, the first block, counted over
    the sequences before, and the number of each sequence; then how many blocks there are."""

    num_seqs: Int32
    order: cute.Tensor

    @staticmethod
    def of(sequences: Sequences, batch: Any, workspace: cute.Tensor) -> OrderedSequences:
        """On the host. batch: extent of dim 0 of Q."""
        num_packed = sequences.num_packed
        num_seqs = Int32(cutlass.select_(num_packed < 0, Int32(batch), num_packed))
        order = cute.make_tensor(workspace.iterator, cute.make_layout((num_seqs + 1, 2), stride=(2, 1)))
        return OrderedSequences(**vars(sequences), num_seqs=num_seqs, order=order)

    @property
    def has_lengths(self) -> Any:
        return is_given(self.cu_seqlens_q) | is_given(self.seqused_q) | is_given(self.seqused_k)

    @property
    def num_groups(self) -> Int32:
        return ceil_div(self.num_seqs + 1, ORDER_GROUP_SEQS)

    def block_lists(self, batch: Any, num_rows: Any, block_m: int) -> tuple[Int32, Int32]:
        """All in one list, in order; without lengths one a batch entry."""
        num_lists, num_blocks = super().block_lists(batch, num_rows, block_m)
        return (
            Int32(cutlass.select_(self.has_lengths, Int32(1), num_lists)),
            Int32(cutlass.select_(self.has_lengths, num_lists * num_blocks, num_blocks)),
        )

    @cute.jit
    def num_listed(self, num_blocks: Int32) -> Int32:
        """At least 1, which then has no row."""
        num_listed = num_blocks
        if self.has_lengths:
            num_listed = clamp(self.order[self.num_seqs, FIRST_BLOCK], 1, num_blocks)
        return num_listed

    @cute.jit
    def find(self, batch: Int32, q_block: Int32, num_rows: Int32, block_m: int) -> tuple[Int32, Int32, Int32]:
        seq, block = batch, q_block
        if self.has_lengths:
            slot = last_begun(self.listed_first, q_block, self.num_seqs)
            seq = self.order[slot, SEQ]
            block = q_block - self.listed_first(slot)
            # Of sequences that overlap, so many that the count of their blocks has wrapped around.
            block = cutlass.select_(block < 0, Int32(MAX_ROWS // block_m), block)
            if not is_given(self.cu_seqlens_q):
                batch = seq
        return batch, seq, block

    def listed_first(self, slot: Int32) -> Int32:
        return self.order[slot, FIRST_BLOCK]


def make_sorter(config: Config, fusion: Any, name: str) -> Callable[..., None]:
    """A @cute.jit function (sequences, rows of Q and of K, leaves, stream) that launches the kernel which writes the
    order, where there are lengths. name: of the kernel."""

    @cute.kernel
    def kernel(sequences: OrderedSequences, num_q_rows: Int32, num_k_rows: Int32, leaves: Any) -> None:
        SequenceSorter(config, fusion.with_leaves(leaves)).run_cta(sequences, num_q_rows, num_k_rows)

    @cute.jit
    def launch(sequences, num_q_rows, num_k_rows, leaves, stream):  # type: ignore[no-untyped-def]
        if sequences.has_lengths:
            kernel(sequences, num_q_rows, num_k_rows, leaves).launch(
                grid=(sequences.num_groups, 1, 1), block=(ORDER_GROUP_SEQS, 1, 1), stream=stream
            )

    kernel.set_name_prefix(name, remove_cutlass_symbol=True, keep_mangled_name=False)
    return launch


class SequenceSorter:
    """The kernel that writes the order; a CTA a group, of which each thread compares its sequence with all."""

    def __init__(self, config: Config, fusion: Any) -> None:
        self.config = config
        self.fusion = fusion

    @cute.jit
    def run_cta(self, sequences: OrderedSequences, num_q_rows: Int32, num_k_rows: Int32) -> None:
        thread = cute.arch.thread_idx()[0]
        group_begin = cute.arch.block_idx()[0] * ORDER_GROUP_SEQS
        seq, num_seqs = group_begin + thread, sequences.num_seqs
        smem = SmemAllocator()
        keys, counts, earlier_counts = (
            smem.allocate_tensor(Int32, cute.make_layout(ORDER_GROUP_SEQS)) for _ in range(3)
        )
        num_earlier = Int32(0)
        for earlier in cutlass.range(thread, group_begin, ORDER_GROUP_SEQS, unroll=1):
            num_earlier += self.num_blocks(sequences, earlier, num_q_rows)
        num_tiles, num_blocks = Int32(MAX_TILES), Int32(0)  # of what is no sequence, which comes last
        if seq < num_seqs:
            num_blocks = self.num_blocks(sequences, seq, num_q_rows)
            num_tiles = self.num_tiles(sequences, seq, num_q_rows, num_k_rows)
        key = num_tiles * ORDER_GROUP_SEQS + thread
        keys[thread], counts[thread], earlier_counts[thread] = key, num_blocks, num_earlier
        cute.arch.sync_threads()
        # Threads beyond the last sequence of the first group have nothing to tell.
        num_threads = cutlass.select_(
            group_begin > 0, Int32(ORDER_GROUP_SEQS), min_(num_seqs + 1, Int32(ORDER_GROUP_SEQS))
        )
        rank, first_block = Int32(0), Int32(0)
        for other in cutlass.range(num_threads, unroll=4):
            is_before = keys[other] < key
            rank += cutlass.select_(is_before, Int32(1), Int32(0))
            first_block += earlier_counts[other] + cutlass.select_(is_before, counts[other], Int32(0))
        if seq <= num_seqs:
            sequences.order[group_begin + rank, FIRST_BLOCK] = first_block
            sequences.order[group_begin + rank, SEQ] = seq

    def num_blocks(self, sequences: OrderedSequences, seq: Int32, num_q_rows: Int32) -> Int32:
        return ceil_div(sequences.q_rows(seq, Int32(0), num_q_rows).count, self.config.block_m)

    @cute.jit
    def num_tiles(self, sequences: OrderedSequences, seq: Int32, num_q_rows: Int32, num_k_rows: Int32) -> Int32:
        """K tiles of a sequence's last block, less than MAX_TILES; 0 when it has none."""
        num_tiles, num_blocks = Int32(0), self.num_blocks(sequences, seq, num_q_rows)
        if num_blocks > 0:
            work = Work(
                q_block=num_blocks - 1,
                head=Int32(0),
                kv_head=Int32(0),
                v_block=Int32(0),
                seq=seq,
                q_rows=sequences.q_rows(seq, Int32(0), num_q_rows),
                k_rows=sequences.k_rows(seq, Int32(0), num_k_rows),
            )
            fusion = self.fusion.at(work.seq, work.head)
            begin, end = span(*(work.tile_range(fusion, self.config, tile_idx) for tile_idx in range(NUM_Q_TILES)))
            num_tiles = clamp(end - begin, 0, MAX_TILES - 1)
        return num_tiles
