# SPDX-License-Identifier: Apache-2.0
"""compose.py: two fusions at once, `a & b`.

Who calls it: AttentionFusion.__and__.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from opdeck.core.errors import ArgumentError
from opdeck.core.fusion.attention import (
    AttentionFusion,
    BandMask,
    Coords,
    Extent,
    IntervalMask,
    Mask,
    Score,
    TileRanges,
)
from opdeck.core.fusion.blocks import TWO_LISTS, BlockSparse
from opdeck.core.fusion.intmath import IntLike, clamp, is_static_zero, max_, min_
from opdeck.core.fusion.masks import Residual


class _Pair(AttentionFusion):
    """What is the same for all pairs. Subclasses have the fields left and right."""

    left: AttentionFusion
    right: AttentionFusion

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.left.name}&{self.right.name}"

    @functools.cached_property
    def canonical_name(self) -> str:
        return f"{self.left.canonical_name}&{self.right.canonical_name}"

    @functools.cached_property
    def slug(self) -> str:
        return f"{self.left.slug}_and_{self.right.slug}"

    def at(self, batch: IntLike, head: IntLike) -> AttentionFusion:
        return combine(self.left.at(batch, head), self.right.at(batch, head))

    def sample(self: PairT, extent: Extent, rng: np.random.Generator) -> PairT:
        return self.replace(left=self.left.sample(extent, rng), right=self.right.sample(extent, rng))


PairT = TypeVar("PairT", bound=_Pair)


@dataclass(frozen=True)
class Stack(_Pair):
    """left, then right: fusions of which one at least is no mask. combine() puts them in order."""

    left: AttentionFusion
    right: AttentionFusion

    @property
    def scores(self) -> tuple[Score, ...]:
        return self.left.scores + self.right.scores

    @property
    def mask(self) -> Mask:
        return intersect(self.left.mask, self.right.mask)

    @property
    def sinks(self) -> tuple[Any, ...]:
        return self.left.sinks + self.right.sinks

    def reference(self, scores: npt.NDArray[np.float64], coords: Coords) -> npt.NDArray[np.float64]:
        return self.right.reference(self.left.reference(scores, coords), coords)


@dataclass(frozen=True)
class MaskAnd(_Pair, Mask):
    """Shows what both masks show."""

    left: Mask
    right: Mask

    def visible(self, coords: Coords) -> Any:
        return self.left.visible(coords) & self.right.visible(coords)

    def tile_ranges(self, q_block: IntLike, tile: tuple[int, int], sq: IntLike, sk: IntLike) -> TileRanges:
        a = self.left.tile_ranges(q_block, tile, sq, sk)
        b = self.right.tile_ranges(q_block, tile, sq, sk)
        begin = max_(a.begin, b.begin)
        end = max_(begin, min_(a.end, b.end))
        if is_static_zero(a.full_end) or is_static_zero(b.full_end):
            return TileRanges(begin, begin, begin, end)  # one of them masks all tiles: in a kernel, fewer registers
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


@dataclass(frozen=True)
class BandMaskAnd(IntervalMaskAnd, BandMask):
    """Shows what both bands show, which is a band: the later begin and the earlier end never move back either.

    Its ranges come from its own first and last row: at most those of the two masks, and in fewer registers.
    """

    left: BandMask
    right: BandMask

    tile_ranges = BandMask.tile_ranges


def combine(left: AttentionFusion, right: AttentionFusion) -> AttentionFusion:
    """left & right: the score functions as written, then what both masks show, then the sink.

    Raises: ArgumentError when both have a sink.
    """
    sinks = left.sinks + right.sinks
    if len(sinks) > 1:
        raise ArgumentError("fusion", "two sinks", "one at most")
    mask = intersect(left.mask, right.mask)
    parts = (*left.scores, *right.scores, *(() if mask == Residual() else (mask,)), *sinks)
    return functools.reduce(Stack, parts) if parts else mask


def intersect(left: Mask, right: Mask) -> Mask:
    """left & right in the cheapest form: Residual is what every mask includes, so it adds nothing.

    Raises: ArgumentError when both leave out tiles by lists.
    """
    if right == Residual():
        return left
    if left == Residual():
        return right
    sparse = [mask for mask in (left, right) if isinstance(mask, BlockSparse)]
    if len(sparse) > 1:
        raise ArgumentError(*TWO_LISTS)
    if sparse:
        return sparse[0].intersected(left if sparse[0] is right else right)
    if isinstance(left, BandMask) and isinstance(right, BandMask):
        return BandMaskAnd(left, right)
    if isinstance(left, IntervalMask) and isinstance(right, IntervalMask):
        return IntervalMaskAnd(left, right)
    return MaskAnd(left, right)
