# SPDX-License-Identifier: Apache-2.0
"""Masks on wgmma score fragments.

Called by consumer.py. A tile mask has `apply(scores, coords, k_tile)`, which sets the scores that a row may not see to
-inf. Scores and coords are (row, column) views of a thread's fragment; a coordinate is (query, key) within the tile.
Source: opdeck.core.fusion.base, Mask and IntervalMask.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from opdeck.core.fusion import Coords, IntervalMask, Mask


@dataclass(frozen=True)
class Unmasked:
    """Tiles whose every key is visible to every row."""

    def apply(self, scores: cute.Tensor, coords: cute.Tensor, k_tile: Int32) -> None:
        pass


@dataclass(frozen=True)
class IntervalTiles:
    """Tiles under a mask that shows each row one interval of keys.

    origin: coordinates of the CTA's first query, with key 0; tile_n: keys a tile.
    """

    fusion: IntervalMask
    origin: Coords
    tile_n: int

    @cute.jit
    def apply(self, scores: cute.Tensor, coords: cute.Tensor, k_tile: Int32) -> None:
        for row in cutlass.range_constexpr(cute.size(scores, mode=[0])):
            q = self.origin.q + coords[row, 0][0]
            begin, end = self.fusion.visible_interval(q, self.origin.sq, self.origin.sk)
            for col in cutlass.range_constexpr(cute.size(scores, mode=[1])):
                k = k_tile * self.tile_n + coords[row, col][1]
                if k < begin or k >= end:
                    scores[row, col] = -Float32.inf


@dataclass(frozen=True)
class ElementTiles:
    """Tiles under a mask that is asked element by element. Fields as IntervalTiles'."""

    fusion: Mask
    origin: Coords
    tile_n: int

    @cute.jit
    def apply(self, scores: cute.Tensor, coords: cute.Tensor, k_tile: Int32) -> None:
        for row in cutlass.range_constexpr(cute.size(scores, mode=[0])):
            for col in cutlass.range_constexpr(cute.size(scores, mode=[1])):
                q = self.origin.q + coords[row, col][0]
                k = k_tile * self.tile_n + coords[row, col][1]
                if not self.fusion.visible(self.origin._replace(q=q, k=k)):
                    scores[row, col] = -Float32.inf


TileMask = Unmasked | IntervalTiles | ElementTiles


def masked_tiles(fusion: Mask, origin: Coords, tile_n: int) -> IntervalTiles | ElementTiles:
    """The mask of tiles in which the fusion may hide keys."""
    if isinstance(fusion, IntervalMask):
        return IntervalTiles(fusion, origin, tile_n)
    return ElementTiles(fusion, origin, tile_n)
