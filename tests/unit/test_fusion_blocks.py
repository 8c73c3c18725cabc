# SPDX-License-Identifier: Apache-2.0
"""Lists of K tiles: none that a query sees is left out, none is visited twice, and only whole ones go unmasked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdeck.core.errors import ArgumentError, ArgumentTypeError
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
    part = fusion.at(0, 0)
    visited = [part.get_trip_count(q_tile, (TILE, TILE), sq, sk) for q_tile in range(shape[0])]
    q, k = np.ogrid[:sq, :sk]
    seen = by_kind(Coords(0, 0, q, k, sq, sk), kinds)
    padded = np.zeros((shape[0] * TILE, shape[1] * TILE), bool)
    padded[:sq, :sk] = seen
    want = padded.reshape(shape[0], TILE, shape[1], TILE).any(axis=(1, 3)).sum(axis=1)
    assert visited == want.tolist()


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


def test_two_lists_are_refused() -> None:
    mask = block_sparse(Causal(), Extent(1, 1, 128, 128))
    with pytest.raises(ArgumentError, match="two block-sparse masks, want one, of the masks joined"):
        _ = mask & mask
