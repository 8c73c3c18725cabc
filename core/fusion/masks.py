# SPDX-License-Identifier: Apache-2.0
"""masks.py: the built-in masks.

Who calls it: users (`mask=Causal()`), variant rows, kernels through the Mask interface.
Source: the masks of CUTLASS example 77: residual, causal with the queries at the beginning (`qbegin`, here top_left)
or at the end (`qend`, here bottom_right) of the keys.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar

from opdeck.core.errors import ArgumentError
from opdeck.core.fusion.base import IntervalMask, TileRanges
from opdeck.core.fusion.intmath import IntLike, ceil_div, clamp, floor_div, min_


@dataclass(frozen=True)
class Residual(IntervalMask):
    """No mask but the end of K: what `mask=None` means. Right for every sk."""

    name: ClassVar[str] = "residual"

    def visible_interval(self, q: IntLike, sq: IntLike, sk: IntLike) -> tuple[IntLike, IntLike]:
        return 0, sk

    def tile_ranges(self, q_block: IntLike, tile: tuple[int, int], sq: IntLike, sk: IntLike) -> TileRanges:
        return TileRanges(0, 0, floor_div(sk, tile[1]), ceil_div(sk, tile[1]))


class Align(enum.Enum):
    """Which corner of S the diagonal of a causal mask starts from."""

    BOTTOM_RIGHT = "bottom_right"
    TOP_LEFT = "top_left"


@dataclass(frozen=True)
class Causal(IntervalMask):
    """Query q sees keys k <= q + offset: offset is sk - sq for bottom_right (the default), 0 for top_left.

    Raises: ArgumentError when align is neither.
    """

    align: Align | str = Align.BOTTOM_RIGHT

    name: ClassVar[str] = "causal"

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "align", Align(self.align))
        except ValueError:
            want = "|".join(align.value for align in Align)
            raise ArgumentError("Causal.align", repr(self.align), want) from None

    def _offset(self, sq: IntLike, sk: IntLike) -> IntLike:
        return sk - sq if self.align is Align.BOTTOM_RIGHT else 0

    def visible_interval(self, q: IntLike, sq: IntLike, sk: IntLike) -> tuple[IntLike, IntLike]:
        return 0, clamp(q + (self._offset(sq, sk) + 1), 0, sk)

    def tile_ranges(self, q_block: IntLike, tile: tuple[int, int], sq: IntLike, sk: IntLike) -> TileRanges:
        tile_m, tile_n = tile
        q_begin = q_block * tile_m
        q_end = min_(q_begin + tile_m, sq)
        # The first row sees the fewest keys, the last row the most.
        _, k_end_first = self.visible_interval(q_begin, sq, sk)
        _, k_end_last = self.visible_interval(q_end - 1, sq, sk)
        return TileRanges(0, 0, floor_div(k_end_first, tile_n), ceil_div(k_end_last, tile_n))
