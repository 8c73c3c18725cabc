# SPDX-License-Identifier: Apache-2.0
"""Masks on wgmma score fragments.

Called by consumer.py. A mask has `apply(scores, coords, k_tile)`: Unmasked leaves the scores alone, FusionMask asks the
fusion which keys each row sees. Scores and coords are (row, column) views of a thread's fragment; a coordinate is
(query, key) within the tile. Source: opdeck.core.fusion.base, Mask and IntervalMask.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from opdeck.core.fusion import Coords, IntervalMask, Mask


@dataclass(frozen=True)
class Unmasked:
    """The mask of tiles whose every key is visible to every row."""

    def apply(self, scores: cute.Tensor, coords: cute.Tensor, k_tile: Int32) -> None:
        pass


@dataclass(frozen=True)
class FusionMask:
    """The mask of tiles where a row may miss keys. origin: of the CTA's query tile, with k = 0; tile_n: keys a tile."""

    fusion: Mask
    origin: Coords
    tile_n: int

    @cute.jit
    def apply(self, scores: cute.Tensor, coords: cute.Tensor, k_tile: Int32) -> None:
        """Set the scores that the fusion does not show to -inf."""
        k_first = k_tile * self.tile_n
        for row in cutlass.range_constexpr(cute.size(scores, mode=[0])):
            at = self.origin._replace(q=self.origin.q + coords[row, 0][0])
            if cutlass.const_expr(isinstance(self.fusion, IntervalMask)):
                begin, end = self.fusion.visible_interval(at.q, at.sq, at.sk)
                for col in cutlass.range_constexpr(cute.size(scores, mode=[1])):
                    k = k_first + coords[row, col][1]
                    if k < begin or k >= end:
                        scores[row, col] = -Float32.inf
            else:
                for col in cutlass.range_constexpr(cute.size(scores, mode=[1])):
                    if not self.fusion.visible(at._replace(k=k_first + coords[row, col][1])):
                        scores[row, col] = -Float32.inf
