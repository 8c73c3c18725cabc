# SPDX-License-Identifier: Apache-2.0
"""compose.py: the intersection of two masks, `a & b`.

Who calls it: Mask.__and__.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from opdeck.core.fusion.base import Coords, IntervalMask, Mask, TileRanges
from opdeck.core.fusion.intmath import IntLike, clamp, max_, min_
from opdeck.core.fusion.masks import Residual


@dataclass(frozen=True)
class MaskAnd(Mask):
    """Shows what both masks show."""

    left: Mask
    right: Mask

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.left.name}&{self.right.name}"

    @functools.cached_property
    def canonical_name(self) -> str:
        return f"{self.left.canonical_name}&{self.right.canonical_name}"

    @functools.cached_property
    def slug(self) -> str:
        return f"{self.left.slug}_and_{self.right.slug}"

    def visible(self, coords: Coords) -> Any:
        return self.left.visible(coords) & self.right.visible(coords)

    def tile_ranges(self, q_block: IntLike, tile: tuple[int, int], sq: IntLike, sk: IntLike) -> TileRanges:
        a = self.left.tile_ranges(q_block, tile, sq, sk)
        b = self.right.tile_ranges(q_block, tile, sq, sk)
        begin = max_(a.begin, b.begin)
        end = max_(begin, min_(a.end, b.end))
        full_begin = clamp(max_(a.full_begin, b.full_begin), begin, end)
        full_end = clamp(min_(a.full_end, b.full_end), full_begin, end)
        return TileRanges(begin, full_begin, full_end, end)


@dataclass(frozen=True)
class IntervalMaskAnd(MaskAnd, IntervalMask):
    """Shows what both masks show, when each shows one interval."""

    left: IntervalMask
    right: IntervalMask

    def visible_interval(self, q: IntLike, sq: IntLike, sk: IntLike) -> tuple[IntLike, IntLike]:
        begin_a, end_a = self.left.visible_interval(q, sq, sk)
        begin_b, end_b = self.right.visible_interval(q, sq, sk)
        return max_(begin_a, begin_b), min_(end_a, end_b)


def intersect(left: Mask, right: Mask) -> Mask:
    """left & right in the cheapest form: Residual is what every mask includes, so it adds nothing."""
    if right == Residual():
        return left
    if left == Residual():
        return right
    if isinstance(left, IntervalMask) and isinstance(right, IntervalMask):
        return IntervalMaskAnd(left, right)
    return MaskAnd(left, right)
