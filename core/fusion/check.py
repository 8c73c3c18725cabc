# SPDX-License-Identifier: Apache-2.0
"""check.py: whether the tile ranges of a mask agree with what it shows.

Who calls it: the tests of masks, opdeck's and third parties'. Kernels take a mask's word for its ranges: wrong ones are
wrong results, or a kernel that never ends.
"""

from __future__ import annotations

import numpy as np

from opdeck.core.errors import ArgumentError
from opdeck.core.fusion.attention import AttentionFusion, Coords, TileRanges
from opdeck.core.fusion.intmath import ceil_div


def check_tile_ranges(
    fusion: AttentionFusion, sq: int, sk: int, tile: tuple[int, int] = (128, 128), where: tuple[int, int] = (0, 0)
) -> None:
    """Compares tile_ranges of every block of queries with `visible`, element by element, for one (batch, head).

    Raises: ArgumentError naming the first block whose ranges are wrong, with what it got and what it wants. Another one
    when keys past the last are visible.
    """
    mask = fusion.at(*where).mask
    q, k = np.ogrid[:sq, :sk]
    visible = np.broadcast_to(mask.visible(Coords(*where, q, k, sq, sk)), (sq, sk))
    tile_m, tile_n = tile
    past = np.arange(sk, ceil_div(sk, tile_n) * tile_n)[None, :]
    if np.broadcast_to(mask.visible(Coords(*where, q, past, sq, sk)), (sq, past.size)).any():
        argument = f"{fusion.canonical_name} of sq {sq}, sk {sk}"
        raise ArgumentError(argument, "visible keys past the last", "k_end <= sk, and visible false where k >= sk")
    num_tiles = ceil_div(sk, tile_n) if mask.is_in_order else ceil_div(sk, tile_m) * (tile_m // tile_n)
    for q_block in range(ceil_div(sq, tile_m)):
        ranges = TileRanges(*(int(edge) for edge in mask.tile_ranges(q_block, tile, sq, sk)))
        k_tiles = [int(mask.k_tile(q_block, tile, position)) for position in range(max(0, ranges.begin), ranges.end)]
        rows = visible[q_block * tile_m : (q_block + 1) * tile_m]
        columns = [rows[:, idx * tile_n : (idx + 1) * tile_n] for idx in range(num_tiles)]
        want = _broken_promise(ranges, k_tiles, columns, tile_n)
        if want is not None:
            raise ArgumentError(
                f"{fusion.canonical_name}.tile_ranges of q_block {q_block}, sq {sq}, sk {sk}", ranges, want
            )


def _broken_promise(ranges: TileRanges, k_tiles: list[int], columns: list[np.ndarray], tile_n: int) -> str | None:
    """What the ranges of a block do not keep; None when they are right. k_tiles: those at the positions [begin, end);
    columns: what is visible in each K tile, which past the last key has fewer than tile_n columns."""
    begin, full_begin, full_end, end = ranges
    num_tiles = len(columns)
    if not 0 <= begin <= full_begin <= full_end <= end <= num_tiles:
        return f"0 <= begin <= full_begin <= full_end <= end <= {num_tiles}"
    if len(set(k_tiles)) < len(k_tiles) or not set(k_tiles) <= set(range(num_tiles)):
        return f"each K tile once, of 0..{num_tiles - 1}; got tiles {k_tiles}"
    if any(columns[tile].any() for tile in set(range(num_tiles)) - set(k_tiles)):
        return "every tile with a visible key in [begin, end)"
    whole = k_tiles[full_begin - begin : full_end - begin]
    is_whole = all(columns[tile].all() and columns[tile].shape[1] == tile_n for tile in whole)
    return None if is_whole else "only tiles of visible keys in [full_begin, full_end)"
