# SPDX-License-Identifier: Apache-2.0
"""Lists of K tiles: none that a query sees is left out, none is visited twice, and only whole ones go unmasked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdeck.core.errors import ArgumentError, ArgumentTypeError, OpdeckError
from opdeck.core.fusion import Alibi, Causal, Coords, Extent, Window, block_sparse, check_tile_ranges, mask_mod
from opdeck.core.fusion.attention import AttentionFusion
from opdeck.core.fusion.blocks import TILE

SIZES = st.tuples(st.integers(1, 700), st.integers(1, 700))


@settings(deadline=None, max_examples=60)
@given(sizes=SIZES, seed=st.integers(0, 1000), share=st.sampled_from((0.0, 0.3, 0.7, 1.0)))
def test_any_pattern_of_tiles(sizes: tuple[int, int], seed: int, share: float) -> None:
    """Of tiles that are seen whole, in part or not at all."""
    sq, sk = sizes
    shape = (-(-sq // TILE), -(-sk // TILE))
    rng = np.random.default_rng(seed)
    kinds = np.where(rng.random(shape) < share, rng.integers(1, 3, shape), 0).astype(np.int32)

    def by_kind(at: Coords, table: np.ndarray) -> np.ndarray:
        kind = table[at.q // TILE, at.k // TILE]
        return (kind == 2) | ((kind == 1) & ((at.q + at.k) % TILE == 0))

    fusion = block_sparse(mask_mod(by_kind, (kinds,)), Extent(1, 1, sq, sk))
    check_tile_ranges(fusion, sq, sk)
    check_tile_ranges(fusion, sq, sk, (TILE, TILE // 2))
    part = fusion.at(0, 0)
    visited = [part.get_trip_count(q_tile, (TILE, TILE), sq, sk) for q_tile in range(shape[0])]
    q, k = np.ogrid[:sq, :sk]
    seen = by_kind(Coords(0, 0, q, k, sq, sk), kinds)
    padded = np.zeros((shape[0] * TILE, shape[1] * TILE), bool)
    padded[:sq, :sk] = seen
    want = padded.reshape(shape[0], TILE, shape[1], TILE).any(axis=(1, 3)).sum(axis=1)
    assert visited == want.tolist()
    halves = [part.get_trip_count(q_tile, (TILE, TILE // 2), sq, sk) for q_tile in range(shape[0])]
    assert halves == (2 * want).tolist()


@settings(deadline=None, max_examples=30)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), min_size=1, max_size=4),
    width=st.integers(0, 300),
)
def test_each_sequence_has_lists_of_its_own(lengths: list[tuple[int, int]], width: int) -> None:
    """As many tiles as hold a key that some query sees: of masks that depend on where a sequence ends."""
    longest = tuple(max(rows) for rows in zip(*lengths, strict=True))
    mask = mask_mod(lambda at, width: abs(at.q + at.sk - at.sq - at.k) <= width + at.batch, (width,))
    fusion = block_sparse(mask, Extent(len(lengths), 1, *longest, lengths))
    for seq, (sq, sk) in enumerate(lengths):
        part = fusion.at(seq, 0)
        q, k = np.ogrid[:sq, :sk]
        seen = np.broadcast_to(mask.visible(Coords(seq, 0, q, k, sq, sk)), (sq, sk))
        for tile_n in (TILE, TILE // 2):
            check_tile_ranges(fusion, sq, sk, (TILE, tile_n), (seq, 0))
            for q_tile in range(-(-sq // TILE)):
                rows = seen[q_tile * TILE : (q_tile + 1) * TILE]
                want = sum(rows[:, begin : begin + TILE].any() for begin in range(0, sk, TILE))
                assert part.get_trip_count(q_tile, (TILE, tile_n), sq, sk) == want * (TILE // tile_n)


def test_one_list_for_all_serves_shorter_sequences() -> None:
    """Tiles past their ends are visited, and masked; without keys there is none."""
    fusion = block_sparse(Window(None, None), Extent(1, 1, 300, 512))
    assert [fusion.at(seq, 0).get_trip_count(0, (TILE, TILE), 300, 200) for seq in (0, 5)] == [4, 4]
    assert fusion.at(0, 0).get_unmasked_trip_count(0, (TILE, TILE), 300, 200) == 0
    assert fusion.at(0, 0).get_trip_count(0, (TILE, TILE), 300, 0) == 0


def test_tiles_that_are_seen_whole_are_not_masked() -> None:
    part = block_sparse(Causal(), Extent(1, 1, 512, 512)).at(0, 0)
    ranges = [part.tile_ranges(q_tile, (TILE, TILE), 512, 512) for q_tile in range(4)]
    assert [end - begin for begin, _, _, end in ranges] == [1, 2, 3, 4]
    assert [full_end - full_begin for _, full_begin, full_end, _ in ranges] == [0, 1, 2, 3]


@pytest.mark.parametrize("other", [Causal(), Window(30, 5), Alibi(np.ones((1, 1), np.float32)) & Window(None, 3)])
def test_joined_with_another_every_tile_is_masked(other: Causal) -> None:
    fusion = block_sparse(Window(200, 100), Extent(1, 1, 300, 400)) & other
    check_tile_ranges(fusion, 300, 400)
    assert fusion.at(0, 0).get_unmasked_trip_count(1, (TILE, TILE), 300, 400) == 0


def test_for_other_lengths_no_tile_goes_unmasked() -> None:
    part = block_sparse(Window(None, None), Extent(1, 1, 256, 256)).at(0, 0)
    assert part.get_unmasked_trip_count(0, (TILE, TILE), 256, 256) == 2
    assert part.get_unmasked_trip_count(0, (TILE, TILE), 256, 255) == 0


@pytest.mark.parametrize("other", [None, Window(30, 5), Alibi(np.ones((1, 1), np.float32))], ids=str)
def test_calls_of_other_lengths_are_refused(other: AttentionFusion | None) -> None:
    mask: AttentionFusion = block_sparse(Causal(), Extent(1, 1, 300, 400))
    mask = mask if other is None else other & mask
    mask.check_lengths(300, 400)
    for lengths in ((301, 400), (300, 399)):
        with pytest.raises(ArgumentError, match="mask: got a block_sparse of 300 queries and 400 keys, want one for"):
            mask.check_lengths(*lengths)


def test_what_is_no_mask_or_no_extent_is_named() -> None:
    with pytest.raises(ArgumentTypeError, match="mask: got Alibi"):
        block_sparse(Alibi(np.ones((1, 1), np.float32)), Extent(1, 1, 300, 400))
    with pytest.raises(ArgumentTypeError, match=r"extent: got \(1, 1, 300, 400\), want an Extent"):
        block_sparse(Causal(), (1, 1, 300, 400))


@pytest.mark.parametrize(
    ("lengths", "kind", "message"),
    [
        (
            [[300, 400]],
            ArgumentError,
            r"extent.lengths: got shape \(1, 2\), want \(2, 2\): queries and keys of a sequence",
        ),
        ([300, 400], ArgumentError, r"extent.lengths: got shape \(2,\), want \(2, 2\)"),
        (
            [[300, 400], [3, 401]],
            ArgumentError,
            r"extent.lengths: got \(3, 401\) of sequence 1, want at most 300 and 400",
        ),
        ([[300, 400], [-1, 4]], ArgumentError, r"extent.lengths: got \(-1, 4\) of sequence 1, want"),
        ([[300.0, 400], [3, 4]], ArgumentTypeError, "extent.lengths: got dtype float64, want ints"),
    ],
)
def test_wrong_lengths_are_named(lengths: Any, kind: type[OpdeckError], message: str) -> None:
    with pytest.raises(kind, match=message):
        block_sparse(Causal(), Extent(2, 1, 300, 400, lengths))


def test_tiles_that_lists_have_no_whole_parts_of_are_refused() -> None:
    part = block_sparse(Causal(), Extent(1, 1, 300, 400)).at(0, 0)
    with pytest.raises(
        ArgumentError, match=r"tile of blocks_of_head: got \(128, 192\), want \(128, 128\) or \(128, 64\)"
    ):
        part.tile_ranges(0, (TILE, 192), 300, 400)


def test_two_lists_are_refused() -> None:
    mask = block_sparse(Causal(), Extent(1, 1, 128, 128))
    with pytest.raises(ArgumentError, match="two block-sparse masks, want one, of the masks joined"):
        _ = mask & mask
    with pytest.raises(ArgumentError, match="two block-sparse masks, want one, of the masks joined"):
        block_sparse(mask, Extent(1, 1, 128, 128))


@pytest.mark.parametrize(
    ("extent", "kind", "message"),
    [
        (Extent(1, 1, -1, 5), ArgumentError, "extent.sq: got -1, want at least 0"),
        (Extent(1, -2, 5, 5), ArgumentError, "extent.num_heads: got -2, want at least 0"),
        (Extent(1, 1, 5, 5.5), ArgumentTypeError, "extent.sk: got 5.5, want an int"),  # type: ignore[arg-type]
        (Extent("1", 1, 5, 5), ArgumentTypeError, "extent.batch: got '1', want a number"),  # type: ignore[arg-type]
    ],
)
def test_wrong_counts_are_named(extent: Extent, kind: type[OpdeckError], message: str) -> None:
    with pytest.raises(kind) as caught:
        block_sparse(Causal(), extent)
    assert str(caught.value) == message


@pytest.mark.parametrize(("batch", "num_heads"), [(0, 1), (1, 0)])
def test_calls_without_a_sequence_or_a_head_have_empty_lists(batch: int, num_heads: int) -> None:
    mask = block_sparse(Causal(), Extent(batch, num_heads, 300, 400))
    assert np.shape(mask.tiles) == (batch, num_heads, 2, 4)
