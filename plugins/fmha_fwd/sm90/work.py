# SPDX-License-Identifier: Apache-2.0
"""What one CTA of the Hopper forward kernel has to do: one tile of query rows of one head.

Called by kernel.py; every role reads it. The order of the CTAs is opdeck.core.kernels.schedule's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutlass import Int32

from opdeck.core.fusion import AttentionFusion, Coords, TileRanges
from opdeck.core.fusion.intmath import ceil_div
from opdeck.core.kernels.schedule import decode
from opdeck.plugins.fmha_fwd.sm90.config import Config


@dataclass(frozen=True)
class Sizes:
    """Extents of the problem that the kernel needs; all Int32."""

    batch: Any
    num_heads: Any
    num_kv_heads: Any
    sq: Any
    sk: Any


@dataclass(frozen=True)
class Work:
    """Coordinates of a CTA: query rows from q_first = q_block * tile_m on; `ranges` are its K tiles."""

    batch: Int32
    head: Int32
    kv_head: Int32
    q_block: Int32
    q_first: Int32
    ranges: TileRanges
    sizes: Sizes

    @staticmethod
    def of(cta_idx: Int32, section_heads: Int32, sizes: Sizes, config: Config, fusion: AttentionFusion) -> Work:
        """The work of CTA `cta_idx`; section_heads as schedule.heads_per_section gives it."""
        num_q_blocks = ceil_div(sizes.sq, config.tile_m)
        at = decode(cta_idx, num_q_blocks, sizes.num_heads, sizes.num_heads * sizes.batch, section_heads)
        part = fusion.at(at.batch, at.head)
        ranges = part.tile_ranges(at.q_block, (config.tile_m, config.tile_n), sizes.sq, sizes.sk)
        kv_head = at.head // (sizes.num_heads // sizes.num_kv_heads)
        return Work(at.batch, at.head, kv_head, at.q_block, at.q_block * config.tile_m, ranges, sizes)

    @property
    def origin(self) -> Coords:
        """Coordinates of the CTA's first query, with key 0."""
        return Coords(self.batch, self.head, self.q_first, 0, self.sizes.sq, self.sizes.sk)
