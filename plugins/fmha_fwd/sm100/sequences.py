# SPDX-License-Identifier: Apache-2.0
"""Which rows of the tensors a CTA works on: of a batch of equal lengths, or of packed sequences.

Called by: kernel.py. Every warp finds its CTA's Work by itself, so nothing is published and nobody waits.
Packed, T rows of num_seqs sequences: the host does not know the lengths, so a head has ceil(T / block_m) + num_seqs
blocks. Sequence i, of rows [a, b), has those from floor(a / block_m) + i to before floor(b / block_m) + i + 1: as many
as its rows take, or one more. No sum over sequences says where they begin, so a warp finds the sequence of a block
among 32^n by looking n times.
Limits: what the tensors of lengths say is not checked, but never leads outside Q, K, V and O: rows are clamped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from opdeck.core.fusion.intmath import ceil_div, clamp, floor_div, max_, min_
from opdeck.plugins.fmha_fwd.sm100.work import Rows, Work

WARP_LANES = 32
MAX_ROWS = (1 << 31) - (1 << 10)  # so that the end of the tile of the last one has 32 bits too


@dataclass(frozen=True)
class Sequences:
    """Lengths in device memory, each absent when its pointer is null: cu_seqlens (num_seqs + 1,), the first row of each
    packed sequence and the end; seqused (num_seqs,), how many of its rows count; block_table (num_seqs, max_pages), the
    pages of K and V, whole tiles each, in which its rows lie."""

    cu_seqlens_q: cute.Tensor
    cu_seqlens_k: cute.Tensor
    seqused_q: cute.Tensor
    seqused_k: cute.Tensor
    block_table: cute.Tensor

    @property
    def num_packed(self) -> Int32:
        """Packed sequences; -1 when there are none but those of the batch dim."""
        return Int32(self.cu_seqlens_q.shape[0]) - 1

    def block_lists(self, batch: Any, num_rows: Any, block_m: int) -> tuple[Int32, Int32]:
        """Lists of blocks a head, and blocks of each, for Q of `batch` entries of `num_rows` rows: one list a batch
        entry, with all blocks that there may be. On the host, where an absent tensor has no rows."""
        return Int32(batch), ceil_div(Int32(num_rows), block_m) + max_(self.num_packed, Int32(0))

    def num_listed(self, num_blocks: Int32) -> Int32:
        """Blocks of a list, of `num_blocks` that there may be."""
        return num_blocks

    def num_k_rows(self, num_rows: Any) -> Int32:
        """Rows of K that a sequence may have, on the host: `num_rows` of a batch entry, or of as many pages as are
        listed, up to what 32 bits hold."""
        num_listed = max_(Int64(self.block_table.shape[1]), Int64(1))
        return Int32(min_(num_listed * Int64(num_rows), Int64(MAX_ROWS)))

    @cute.jit
    def k_tile(self, work: Work, tile: Int32, tiles_per_page: Int32) -> tuple[Int32, Int32]:
        """(entry of dim 0 of K and V, tile in it) in which a sequence's K tile lies."""
        batch, in_batch = work.k_rows.batch, tile
        if is_given(self.block_table):
            page_idx = tile // tiles_per_page
            batch = self.block_table[work.seq, page_idx]
            in_batch = tile - page_idx * tiles_per_page
        return batch, in_batch

    @cute.jit
    def find(self, batch: Int32, q_block: Int32, num_rows: Int32, block_m: int) -> tuple[Int32, Int32, Int32]:
        """(entry of dim 0 of Q, sequence, block of its own) of block `q_block` of the list `batch`. A packed block
        before the first sequence's has sequence num_packed."""
        seq, block = batch, q_block
        if is_given(self.cu_seqlens_q):
            first_block = partial(self.first_block, num_rows=num_rows, block_m=block_m)
            seq = last_begun(first_block, q_block, self.num_packed)
            block = q_block - first_block(seq)
            if block < 0:
                seq, block = self.num_packed, Int32(0)
        return batch, seq, block

    def first_block(self, seq: Int32, num_rows: Int32, block_m: int) -> Int32:
        """Of a packed sequence."""
        return floor_div(clamp(self.cu_seqlens_q[seq], 0, num_rows), block_m) + seq

    def q_rows(self, seq: Int32, batch: Int32, num_rows: Int32) -> Rows:
        begin, count = row_interval(self.cu_seqlens_q, self.seqused_q, seq, num_rows)
        return Rows(batch, begin, count)

    def k_rows(self, seq: Int32, batch: Int32, num_rows: Int32) -> Rows:
        begin, count = row_interval(self.cu_seqlens_k, self.seqused_k, seq, num_rows)
        return Rows(batch, begin, count)


@cute.jit
def last_begun(first_block: Callable[[Int32], Int32], q_block: Int32, num_seqs: Int32) -> Int32:
    """The last of num_seqs sequences that begins at or before a block, or 0. first_block: of a sequence; it never
    decreases."""
    seq, end = Int32(0), num_seqs
    while seq + 1 < end:
        stride = ceil_div(end - seq, WARP_LANES)
        probe = seq + cute.arch.lane_idx() * stride
        is_before = first_block(min_(probe, end - 1)) <= cutlass.select_(probe < end, q_block, Int32(-1))
        num_before = Int32(cute.arch.popc(cute.arch.vote_ballot_sync(is_before)))
        seq = seq + max_(num_before - 1, 0) * stride
        end = min_(seq + stride, end)
    return seq


@cute.jit
def row_interval(cu_seqlens: cute.Tensor, seqused: cute.Tensor, seq: Int32, num_rows: Int32) -> tuple[Int32, Int32]:
    """(first row, number of rows) of sequence `seq` in a tensor of `num_rows` rows; one past the last has none."""
    begin, count = Int32(0), num_rows
    if is_given(cu_seqlens):
        count = Int32(0)
        if seq + 1 < cu_seqlens.shape[0]:
            begin = clamp(cu_seqlens[seq], 0, num_rows)
            count = clamp(cu_seqlens[seq + 1], begin, num_rows) - begin
    if is_given(seqused) and count > 0 and seq < seqused.shape[0]:
        count = clamp(seqused[seq], 0, count)
    return begin, count


def is_given(tensor: cute.Tensor) -> Any:
    return tensor.iterator.toint() != 0
