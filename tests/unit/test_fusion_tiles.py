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
    Alibi,
    Causal,
    Coords,
    Document,
    Extent,
    Fusion,
    Int32Leaf,
    IntervalMask,
    LeafKind,
    Mask,
    PrefixLM,
    Residual,
    TileRanges,
    Window,
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


# Leaf values are drawn by the masks' own `sample`.
LEAF = LeafKind.INT32
WITH_LEAVES: list[Fusion] = [
    Window(LEAF, LEAF),
    Window(LEAF, None),
    Window(None, LEAF),
    PrefixLM(LEAF),
    Document(LEAF),
    Document(LEAF) & Causal(align="top_left"),
    Window(LEAF, LEAF) & PrefixLM(LEAF),
    Alibi(LEAF) & Window(LEAF, LEAF) & Checkerboard(),
]
SMALL_EXTENTS = st.builds(
    Extent, st.integers(1, 3), st.integers(1, 2), st.integers(1, 70), st.integers(0, 70), st.none()
)


@pytest.mark.parametrize("fusion", WITH_LEAVES, ids=lambda fusion: fusion.canonical_name)
@settings(deadline=None, max_examples=100)
@given(extent=SMALL_EXTENTS, tile=tiles, seed=st.integers(0, 2**32))
def test_ranges_hold_for_every_head_and_leaf_value(
    fusion: Fusion, extent: Extent, tile: tuple[int, int], seed: int
) -> None:
    sampled = fusion.sample(extent, np.random.default_rng(seed))
    for where in np.ndindex(extent.batch, extent.num_heads):
        check_tile_ranges(sampled, extent.sq, extent.sk, tile, where)


@pytest.mark.parametrize(("left", "right"), [(0, 0), (3, 1), (0, None), (None, 2), (2**31 - 1, 2**31 - 1)])
def test_window_is_that_of_flash_attention(left: int | None, right: int | None) -> None:
    """k in [q + sk - sq - left, q + sk - sq + right]; in the 32 bits of a kernel nothing overflows."""
    sq, sk = 9, 13
    q, k = np.ogrid[:sq, :sk]
    distance = k - (q + sk - sq)
    want = (distance >= -(sk + sq if left is None else left)) & (distance <= (sk + sq if right is None else right))
    widths = [None if width is None else np.int32(width) for width in (left, right)]
    with np.errstate(over="raise"):
        got = Window(*widths).visible(Coords(0, 0, q.astype(np.int32), k.astype(np.int32), sq, sk))
    assert np.array_equal(np.broadcast_to(got, (sq, sk)), want)


def test_prefix_is_visible_to_all_and_the_rest_causal() -> None:
    q, k = np.ogrid[:4, :6]
    mask = PrefixLM(np.array([0, 4], np.int32))
    for batch, prefix in enumerate((0, 4)):
        got = mask.at(batch, 0).mask.visible(Coords(batch, 0, q, k, 4, 6))
        assert np.array_equal(got, (k <= q + 2) | (k < prefix))


def test_documents_are_those_of_the_ids() -> None:
    q_ids = np.array([[0, 0, 2, 2, 7], [1, 1, 1, 1, 1]])
    k_ids = np.array([[0, 1, 1, 2, 2, 2, 8], [0, 0, 1, 2, 2, 2, 2]])
    q, k = np.ogrid[:5, :7]
    for batch in range(2):
        got = Document.from_ids(q_ids, k_ids).at(batch, 0).mask.visible(Coords(batch, 0, q, k, 5, 7))
        assert np.array_equal(got, q_ids[batch][:, None] == k_ids[batch])
    with pytest.raises(ArgumentError, match=r"Document\.k_ids: got ids that decrease along a row"):
        Document.from_ids(q_ids, k_ids[:, ::-1])
    with pytest.raises(ArgumentError, match=r"Document\.k_ids: got shape \(1, 7\)"):
        Document.from_ids(q_ids, k_ids[:1])


def test_negative_widths_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"Window\.left: got -1, want a width >= 0"):
        Window(-1, 0)
    with pytest.raises(ArgumentError, match=r"Window\.right: got -2"):
        Window(None, np.int64(-2))
    with pytest.raises(ArgumentError, match=r"Window\.left: got -3"):
        Window(np.array(-3))


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


@dataclass(frozen=True)
class Endless(IntervalMask):
    """Shows keys that there are not."""

    name: ClassVar[str] = "test.endless"

    def visible_interval(self, q: Any, sq: Any, sk: Any) -> tuple[Any, Any]:
        return 0, sk + 1


def test_keys_past_the_last_are_found() -> None:
    with pytest.raises(ArgumentError, match=r"test\.endless of sq 3, sk 20: got visible keys past the last"):
        check_tile_ranges(Endless(), sq=3, sk=20, tile=(4, 8))
    check_tile_ranges(Endless(), sq=3, sk=24, tile=(4, 8))  # there no kernel asks


TIGHT = [Residual(), Causal(), Causal(align="top_left"), Window(5, 3), Window(None, 0), Window(0, None)]


@pytest.mark.parametrize("mask", TIGHT, ids=lambda m: m.canonical_name)
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
