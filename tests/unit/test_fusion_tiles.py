# SPDX-License-Identifier: Apache-2.0
"""Tile ranges and trip counts of masks against brute force: every element of S looked at, one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdeck.core.errors import ArgumentError
from opdeck.core.fusion import (
    Causal,
    Coords,
    Int32Leaf,
    IntervalMask,
    Mask,
    Residual,
    TileRanges,
    check_tile_ranges,
)


@dataclass(frozen=True)
class Left(IntervalMask):
    """Sees the keys k >= q - left: a test mask whose rows begin late, with a run-time argument."""

    left: Int32Leaf

    name: ClassVar[str] = "test.left"

    def visible_interval(self, q: Any, sq: Any, sk: Any) -> tuple[Any, Any]:
        return np.clip(q - self.left, 0, None), sk

    def tile_ranges(self, q_block: Any, tile: tuple[int, int], sq: Any, sk: Any) -> Any:
        tile_m, tile_n = tile
        end = -(-sk // tile_n)
        last_row = min((q_block + 1) * tile_m, sq) - 1
        begin = min(max(q_block * tile_m - self.left, 0) // tile_n, end)
        full_begin = min(-(-max(last_row - self.left, 0) // tile_n), end)
        return TileRanges(begin, full_begin, max(full_begin, sk // tile_n), end)


@dataclass(frozen=True)
class Checkerboard(Mask):
    """Sees every other key: no interval, no tile ranges of its own."""

    name: ClassVar[str] = "test.checkerboard"

    def visible(self, coords: Coords) -> Any:
        return ((coords.q + coords.k) % 2 == 0) & (coords.k < coords.sk)


MASKS = [
    Residual(),
    Causal(),
    Causal(align="top_left"),
    Checkerboard(),
    Left(5),
    Causal() & Causal(align="top_left"),
    Causal() & Left(3),
    Left(17) & Left(2),
    Checkerboard() & Causal(),
    Causal() & Checkerboard() & Left(9),
]

lengths = st.integers(0, 70)
tiles = st.tuples(st.integers(1, 24), st.sampled_from([1, 3, 8, 16, 20]))


def visible_elements(mask: Mask, sq: int, sk: int) -> np.ndarray:
    q, k = np.ogrid[:sq, :sk]
    return np.broadcast_to(mask.visible(Coords(0, 0, q, k, sq, sk)), (sq, sk))


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: mask.canonical_name)
@settings(deadline=None, max_examples=150)
@given(sq=lengths.filter(bool), sk=lengths, tile=tiles, data=st.data())
def test_ranges_hold_all_visible_elements(
    mask: Mask, sq: int, sk: int, tile: tuple[int, int], data: st.DataObject
) -> None:
    check_tile_ranges(mask, sq, sk, tile)
    q_block = data.draw(st.integers(0, (sq - 1) // tile[0]))
    begin, _, _, end = mask.tile_ranges(q_block, tile, sq, sk)
    assert mask.get_trip_count(q_block, tile, sq, sk) == end - begin
    masked = mask.get_masked_trip_count(q_block, tile, sq, sk)
    assert masked + mask.get_unmasked_trip_count(q_block, tile, sq, sk) == end - begin


@dataclass(frozen=True)
class Claimed(IntervalMask):
    """Shows the keys from 4 on, and has the ranges that it is given."""

    ranges: TileRanges

    name: ClassVar[str] = "test.claimed"
    canonical_name: ClassVar[str] = "test.claimed"  # type: ignore[misc]

    def visible_interval(self, q: Any, sq: Any, sk: Any) -> tuple[Any, Any]:
        return 4, sk

    def tile_ranges(self, q_block: Any, tile: tuple[int, int], sq: Any, sk: Any) -> TileRanges:
        return self.ranges


@pytest.mark.parametrize(
    ("ranges", "want"),
    [
        ((0, 1, 2, 3), None),
        ((0, 0, 0, 3), None),
        ((-1, 1, 2, 3), "0 <= begin <= full_begin <= full_end <= end <= 3"),
        ((0, 2, 1, 3), "0 <= begin <= full_begin <= full_end <= end <= 3"),
        ((0, 1, 2, 4), "0 <= begin <= full_begin <= full_end <= end <= 3"),
        ((1, 1, 2, 3), "every tile with a visible key in"),
        ((0, 1, 2, 2), "every tile with a visible key in"),
        ((0, 0, 2, 3), "only tiles of visible keys in"),
        ((0, 1, 3, 3), "only tiles of visible keys in"),
    ],
)
def test_wrong_ranges_are_found(ranges: tuple[int, int, int, int], want: str | None) -> None:
    """Keys 4..19 in tiles of 8: the first is masked in part, and the last is one of 4 keys."""
    mask = Claimed(TileRanges(*ranges))
    if want is None:
        check_tile_ranges(mask, sq=3, sk=20, tile=(4, 8))
        return
    with pytest.raises(ArgumentError, match=rf"tile_ranges of q_block 0, sq 3, sk 20: got TileRanges.*, want {want}"):
        check_tile_ranges(mask, sq=3, sk=20, tile=(4, 8))


@pytest.mark.parametrize("mask", [Residual(), Causal(), Causal(align="top_left")], ids=lambda m: m.canonical_name)
@settings(deadline=None, max_examples=150)
@given(sq=lengths.filter(bool), sk=lengths, tile=tiles)
def test_built_in_ranges_are_tight(mask: Mask, sq: int, sk: int, tile: tuple[int, int]) -> None:
    """No tile is visited that is wholly masked, and none is called masked that is wholly visible."""
    tile_m, tile_n = tile
    visible = visible_elements(mask, sq, sk)
    for q_block in range(-(-sq // tile_m)):
        rows = visible[q_block * tile_m : (q_block + 1) * tile_m]
        ranges = mask.tile_ranges(q_block, tile, sq, sk)
        by_tile = [rows[:, t * tile_n : (t + 1) * tile_n] for t in range(-(-sk // tile_n))]
        assert ranges.end - ranges.begin == sum(elements.any() for elements in by_tile)
        whole = [elements.all() and elements.shape[1] == tile_n for elements in by_tile]
        assert ranges.full_end - ranges.full_begin == sum(whole)


@pytest.mark.parametrize(
    ("align", "sq", "sk", "offset"),
    [("top_left", 17, 257, 0), ("bottom_right", 17, 257, 240), ("bottom_right", 1024, 1013, -11)],
)
def test_causal_trip_counts_are_those_of_example_77(align: str, sq: int, sk: int, offset: int) -> None:
    tile_m = tile_n = 128
    for q_block in range(-(-sq // tile_m)):
        last_row = min((q_block + 1) * tile_m, sq)
        want = max(0, min(-(-sk // tile_n), -(-(last_row + offset) // tile_n)))
        assert Causal(align=align).get_trip_count(q_block, (tile_m, tile_n), sq, sk) == want


def test_reference_sets_hidden_scores_to_minus_infinity() -> None:
    q, k = np.ogrid[:3, :4]
    scores = np.arange(12.0).reshape(3, 4)
    masked = Causal(align="top_left").reference(scores, Coords(0, 0, q, k, 3, 4))
    assert np.array_equal(masked, np.where(k <= q, scores, -np.inf))
