# SPDX-License-Identifier: Apache-2.0
"""Which K tiles the correction takes without asking, and how keys lie in the words of masks: by brute force."""

from __future__ import annotations

import itertools

import pytest

from opdeck.plugins.fmha_fwd.sm100.work import TileRange, common_tiles, span

NUM_TILES = 5
RANGES = [
    TileRange(begin, begin, end, end) for begin in range(NUM_TILES) for end in range(NUM_TILES + 1) if begin <= end
]


@pytest.mark.parametrize("tiles_per_trip", [1, 2])
def test_common_tiles_are_whole_trips_of_what_both_visit_again(tiles_per_trip: int) -> None:
    for first, second in itertools.product(RANGES, RANGES):
        begin, end = common_tiles(first, second, tiles_per_trip)
        again = [
            tile
            for tile in range(NUM_TILES)
            if all(tiles.begin < tile < tiles.end for tiles in (first, second))  # visited, and not as the first
        ]
        assert list(range(begin, end)) == again[: len(again) // tiles_per_trip * tiles_per_trip]
        # What is left of the span lies before and after.
        span_begin, span_end = span(first, second)
        if span_begin < span_end:
            assert span_begin <= begin <= end <= span_end


def test_keys_of_a_mask_leave_out_the_top_bit_of_each_byte() -> None:
    pytest.importorskip("cutlass")
    from opdeck.core.kernels.masking import bit_of

    bits = [bit_of(key) for key in range(129)]
    assert bits == [bit for bit in range(bits[-1] + 1) if bit % 8 != 7][:129]
