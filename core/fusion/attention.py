# SPDX-License-Identifier: Apache-2.0
"""attention.py: what a fusion of attention kernels is: score functions, a mask, a sink, and which tiles they visit.

Who calls it: kernels (tile ranges, intervals, scores), the reference (`reference`), masks.py and scores.py.
Source: the fusion hook of CUTLASS example 77 (trip counts, masked and unmasked), here with run-time arguments.
No method that a kernel calls may import the DSL at module level, nor branch on a traced value.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from opdeck.core.fusion.base import Fusion, FusionT
from opdeck.core.fusion.intmath import IntLike, ceil_div, clamp, floor_div, is_static_zero, min_


class TileRanges(NamedTuple):
    """K tiles that a Q tile visits: [begin, full_begin) and [full_end, end) masked, [full_begin, full_end) not.

    0 <= begin <= full_begin <= full_end <= end <= ceil(sk / tile_n).
    """

    begin: IntLike
    full_begin: IntLike
    full_end: IntLike
    end: IntLike


class Tile(NamedTuple):
    """Extent of one tile of S = Q K^T: tile_m rows (q) by tile_n columns (k)."""

    m: int
    n: int


class Coords(NamedTuple):
    """Where elements of S are: indices from zero, q and k within their sequence, and the sequence lengths."""

    batch: IntLike
    head: IntLike
    q: IntLike
    k: IntLike
    sq: IntLike
    sk: IntLike


class Extent(NamedTuple):
    """Size of an attention problem: sequences, query heads, queries and keys a sequence.

    lengths: (batch, 2) ints, the queries and keys of each sequence where they differ; sq and sk are at least those of
    the longest.
    """

    batch: int
    num_heads: int
    sq: int
    sk: int
    lengths: npt.ArrayLike | None = None


class AttentionFusion(Fusion):
    """A fusion of attention kernels: score functions, a mask, a sink, or some of these."""

    extent_names: ClassVar[tuple[str, ...] | None] = ("batch", "num_heads", "sq", "sk")

    def at(self, batch: IntLike, head: IntLike) -> AttentionFusion:
        """The fusion as one head of one sequence sees it. Kernels call it once a CTA, the reference once a head.

        Here a leaf that holds a value for each head or sequence becomes the one that counts, read once:
        `return self.replace(slopes=self.slopes[head])`. What is not the same for all heads and is used by
        visible_interval or tile_ranges must, since these are not told the head.
        """
        return self

    def check_lengths(self, sq: int, sk: int) -> None:
        """Refuses a call with sequences of other lengths than the leaf values were made for.

        Raises: ArgumentError.
        """
        for _, part in self.nested():
            if isinstance(part, AttentionFusion):
                part.check_lengths(sq, sk)

    def sample(self: FusionT, extent: Extent, rng: np.random.Generator) -> FusionT:
        """The same fusion with leaf values to try on a problem of that size; by default the fields' defaults.

        Who calls it: `opdeck check-plugin` and `opdeck run --mask`. A fusion with leaves that have no default
        overrides it.
        """
        return self.with_defaults()

    def reference(self, scores: npt.NDArray[np.float64], coords: Coords) -> npt.NDArray[np.float64]:
        """What the fusion does to scores, in numpy. coords broadcast to the shape of scores."""
        raise self.lacks("reference")

    @property
    def scores(self) -> tuple[Score, ...]:
        """The score functions within, in the order in which they run."""
        return ()

    @property
    def mask(self) -> Mask:
        """The mask within, which runs after the score functions; Residual where there is none."""
        from opdeck.core.fusion.masks import Residual

        return Residual()

    @property
    def sinks(self) -> tuple[Any, ...]:
        """The Sink within, if there is one."""
        return ()

    def __and__(self, other: object) -> AttentionFusion:
        """Both: the score functions as written, then what both masks show."""
        if not isinstance(other, AttentionFusion):
            return NotImplemented
        from opdeck.core.fusion.compose import combine

        return combine(self, other)

    def tile_ranges(self, q_block: IntLike, tile: tuple[int, int], sq: IntLike, sk: IntLike) -> TileRanges:
        """K tiles that the Q tile of rows [q_block * tile_m, (q_block + 1) * tile_m) visits.

        Domain: q_block * tile_m < sq. Those of the mask within.
        """
        return self.mask.tile_ranges(q_block, tile, sq, sk)

    def k_tile(self, q_block: IntLike, tile: tuple[int, int], position: IntLike) -> IntLike:
        """The K tile at a position of the Q tile's ranges: the same number, unless a mask has them in another order.

        The Q tiles 2 i and 2 i + 1 have the same order.
        """
        return self.mask.k_tile(q_block, tile, position)

    def get_trip_count(self, q_block: IntLike, tile: tuple[int, int], sq: IntLike, sk: IntLike) -> IntLike:
        """Number of K tiles that the Q tile visits."""
        ranges = self.tile_ranges(q_block, tile, sq, sk)
        return ranges.end - ranges.begin

    def get_masked_trip_count(self, q_block: IntLike, tile: tuple[int, int], sq: IntLike, sk: IntLike) -> IntLike:
        """Number of K tiles visited in which some element may be masked."""
        ranges = self.tile_ranges(q_block, tile, sq, sk)
        return ranges.full_begin - ranges.begin + ranges.end - ranges.full_end

    def get_unmasked_trip_count(self, q_block: IntLike, tile: tuple[int, int], sq: IntLike, sk: IntLike) -> IntLike:
        """Number of K tiles visited in which every element is visible."""
        ranges = self.tile_ranges(q_block, tile, sq, sk)
        return ranges.full_end - ranges.full_begin


class Score(AttentionFusion):
    """A fusion that changes scores: it gets and returns logits, S * softmax_scale, before the mask.

    is_finite: whether finite scores stay finite. Kernels then take a part of the exponentials by polynomial, which
    would turn -inf into a small number.
    """

    is_finite: ClassVar[bool] = False

    def score(self, score: Any, coords: Coords) -> Any:
        """The new logit of query coords.q and key coords.k.

        Arithmetic that runs on numpy arrays and on the DSL's traced numbers alike; see floatmath for functions. Where
        k >= sk the result does not matter, but tensors must not be read beyond their ends.
        """
        raise self.lacks("score")

    def apply_score(self, scores: Any, coords: Coords) -> None:
        """Changes registers `scores`, a row of logits of keys coords.k + i, in a kernel. By default one by one."""
        from cutlass import cute

        for idx in range(cute.size(scores)):
            scores[idx] = self.score(scores[idx], coords._replace(k=coords.k + idx))

    def reference(self, scores: npt.NDArray[np.float64], coords: Coords) -> npt.NDArray[np.float64]:
        result: npt.NDArray[np.float64] = self.score(scores, coords)
        return result

    @property
    def scores(self) -> tuple[Score, ...]:
        return (self,)


class Mask(AttentionFusion):
    """A fusion that only sets scores to -inf. Without a Score it runs on raw S = Q K^T, before softmax_scale."""

    def visible(self, coords: Coords) -> Any:
        """Whether query coords.q sees key coords.k: a truth value a element. Must be false where k >= sk."""
        raise self.lacks("visible")

    def reference(self, scores: npt.NDArray[np.float64], coords: Coords) -> npt.NDArray[np.float64]:
        return np.where(self.visible(coords), scores, -np.inf)

    def tile_ranges(self, q_block: IntLike, tile: tuple[int, int], sq: IntLike, sk: IntLike) -> TileRanges:
        """This default knows nothing of the mask: it visits all of K, every tile masked."""
        return TileRanges(0, 0, 0, ceil_div(sk, tile[1]))

    def k_tile(self, q_block: IntLike, tile: tuple[int, int], position: IntLike) -> IntLike:
        return position

    @property
    def is_in_order(self) -> bool:
        """Whether positions are K tiles. Where not, some may lie past the last key; those are masked."""
        return type(self).k_tile is Mask.k_tile

    @property
    def mask(self) -> Mask:
        return self


class IntervalMask(Mask):
    """A mask that shows each query one interval of keys, which kernels turn into bit masks."""

    def visible_interval(self, q: IntLike, sq: IntLike, sk: IntLike) -> tuple[IntLike, IntLike]:
        """(k_begin, k_end): query q sees the keys k_begin <= k < k_end. k_end <= sk; empty where k_end <= k_begin."""
        raise self.lacks("visible_interval")

    def visible(self, coords: Coords) -> Any:
        k_begin, k_end = self.visible_interval(coords.q, coords.sq, coords.sk)
        return (coords.k >= k_begin) & (coords.k < k_end)


class BandMask(IntervalMask):
    """An interval mask whose intervals never move back: neither bound is less for a later query.

    So the first and the last row of a block tell which tiles it visits.
    """

    def tile_ranges(self, q_block: IntLike, tile: tuple[int, int], sq: IntLike, sk: IntLike) -> TileRanges:
        tile_m, tile_n = tile
        q_begin = q_block * tile_m
        q_end = min_(q_begin + tile_m, sq)
        first_begin, first_end = self.visible_interval(q_begin, sq, sk)
        last_begin, last_end = self.visible_interval(q_end - 1, sq, sk)
        full_end, end = floor_div(first_end, tile_n), ceil_div(last_end, tile_n)
        if is_static_zero(first_begin) and is_static_zero(last_begin):
            return TileRanges(0, 0, full_end, end)
        begin = min_(floor_div(first_begin, tile_n), end)
        full_begin = clamp(ceil_div(last_begin, tile_n), begin, end)
        return TileRanges(begin, full_begin, clamp(full_end, full_begin, end), end)
