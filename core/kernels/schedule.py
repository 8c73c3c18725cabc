# SPDX-License-Identifier: Apache-2.0
"""Order of the CTAs of an attention grid, flattened into x.

Called by: attention kernels (host: heads_per_section; device: decode); unit tests, with Python ints.
Heads are cut into sections whose K and V fit the L2 cache together; inside a section all heads of the last query block
come first, then those of the block before it, so that under a causal mask the longest blocks start first and the CTAs
that run together read the same K and V.
Limits: num_q_blocks * num_heads * batch < 2^31, the grid's own limit in x.
"""

from __future__ import annotations

from dataclasses import dataclass

from opdeck.core.fusion.intmath import IntLike, max_, min_

# Half of the smallest L2 among the targets (50 MB on H100/H200, 126 MB on B200): leaves room for Q, O and the tail.
SECTION_BYTES = 24 * 1024 * 1024


@dataclass(frozen=True)
class BlockCoord:
    """A CTA's work: query block, query head, batch."""

    q_block: IntLike
    head: IntLike
    batch: IntLike


def heads_per_section(kv_head_bytes: IntLike, head_group: IntLike) -> IntLike:
    """Query heads whose K and V (`kv_head_bytes` a KV head, shared by `head_group` query heads) fit a section."""
    return max_(SECTION_BYTES // max_(kv_head_bytes, 1), 1) * head_group


def decode(
    block_idx: IntLike, num_q_blocks: IntLike, num_heads: IntLike, num_rows: IntLike, section_heads: IntLike
) -> BlockCoord:
    """Coordinates of CTA `block_idx`; `num_rows` = num_heads * batch, `section_heads` from heads_per_section."""
    section = block_idx // (section_heads * num_q_blocks)
    first_row = section * section_heads
    in_section = block_idx - first_row * num_q_blocks
    rows = min_(num_rows - first_row, section_heads)  # the last section may be short
    from_last = in_section // rows
    row = first_row + in_section - from_last * rows
    batch = row // num_heads
    return BlockCoord(q_block=num_q_blocks - 1 - from_last, head=row - batch * num_heads, batch=batch)
