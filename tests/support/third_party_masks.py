# SPDX-License-Identifier: Apache-2.0
"""third_party_masks.py: masks as third parties write them, with run-time numbers and tensors, intervals or not, and a
score function with a tensor.

Who calls it: tests/kernels/test_third_party_masks.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from opdeck.core.fusion import (
    Coords,
    Int32Leaf,
    IntervalMask,
    Mask,
    Score,
    TensorLeaf,
    TensorScore,
    TileRanges,
    tensor_leaf,
)
from opdeck.core.fusion.intmath import ceil_div, clamp, floor_div, floor_mod, max_, min_


@dataclass(frozen=True)
class Window(IntervalMask):
    """Query q sees the keys of [q - left, q + right]; tiles outside are not visited."""

    left: Int32Leaf
    right: Int32Leaf

    name: ClassVar[str] = "third_party_masks.window"

    def visible_interval(self, q: Any, sq: Any, sk: Any) -> tuple[Any, Any]:
        return clamp(q - self.left, 0, sk), clamp(q + self.right + 1, 0, sk)

    def tile_ranges(self, q_block: Any, tile: tuple[int, int], sq: Any, sk: Any) -> TileRanges:
        tile_m, tile_n = tile
        first_begin, first_end = self.visible_interval(q_block * tile_m, sq, sk)
        last_begin, last_end = self.visible_interval(min_((q_block + 1) * tile_m, sq) - 1, sq, sk)
        end = ceil_div(last_end, tile_n)
        begin = min_(floor_div(first_begin, tile_n), end)
        full_begin = clamp(ceil_div(last_begin, tile_n), begin, end)
        return TileRanges(begin, full_begin, max_(full_begin, min_(floor_div(first_end, tile_n), end)), end)


@dataclass(frozen=True)
class Striped(Mask):
    """Query q sees every key k with (q + k) a multiple of `period`: no interval."""

    period: int

    name: ClassVar[str] = "third_party_masks.striped"

    def visible(self, coords: Coords) -> Any:
        return ((coords.q + coords.k) % self.period == 0) & (coords.k < coords.sk)


@dataclass(frozen=True)
class Chunked(IntervalMask):
    """Query q sees, of the chunk of keys in which key q - before lies, those from the chunk's begin to that key."""

    chunk: Int32Leaf
    before: Int32Leaf

    name: ClassVar[str] = "third_party_masks.chunked"

    def visible_interval(self, q: Any, sq: Any, sk: Any) -> tuple[Any, Any]:
        own_key = q - self.before
        return clamp(floor_div(own_key, self.chunk) * self.chunk, 0, sk), clamp(own_key + 1, 0, sk)


@dataclass(frozen=True)
class Dotted(Mask):
    """Query q sees every key k with k - q a multiple of `period`, a run-time number: no interval."""

    period: Int32Leaf

    name: ClassVar[str] = "third_party_masks.dotted"

    def visible(self, coords: Coords) -> Any:
        return (floor_mod(coords.k - coords.q, self.period) == 0) & (coords.k < coords.sk)


@dataclass(frozen=True)
class HeadLimits(Mask):
    """Query head h sees the keys before limits[h]. limits: (Hq,) int32, a run-time tensor."""

    limits: TensorLeaf = tensor_leaf(rank=1, dtype="int32")

    name: ClassVar[str] = "third_party_masks.head_limits"

    def visible(self, coords: Coords) -> Any:
        return (coords.k < self.limits[coords.head]) & (coords.k < coords.sk)


@dataclass(frozen=True)
class Steps(IntervalMask):
    """Query q of head h sees the keys before limits[h, q // 64], the last one's for all that follow.

    limits: (Hq, any) int32. head: what `at` is told; the table stays one.
    """

    limits: TensorLeaf = tensor_leaf(dims=("num_heads", None), dtype="int32")
    head: Int32Leaf = 0

    name: ClassVar[str] = "third_party_masks.steps"

    def at(self, batch: Any, head: Any) -> Steps:
        return self.replace(head=head)

    def visible_interval(self, q: Any, sq: Any, sk: Any) -> tuple[Any, Any]:
        step = min_(floor_div(q, 64), self.limits.shape[1] - 1)
        return 0, clamp(self.limits[self.head, step], 0, sk)


@dataclass(frozen=True)
class Gated(TensorScore):
    """Multiplies logits by gates[b, h, q, k]. Computes logit by logit: it does not say how a row is computed."""

    gates: TensorLeaf = tensor_leaf(dims=("batch|1", "num_heads|1", "sq|1", "sk"), align_bytes=16)

    name: ClassVar[str] = "third_party_masks.gated"

    @property
    def tensor(self) -> Any:
        return self.gates

    def score_with(self, score: Any, element: Any, coords: Coords) -> Any:
        return score * element


@dataclass(frozen=True)
class Rounds(IntervalMask):
    """Query q sees the keys before a bound that a row of numbers decides, each round of which needs all of them.

    They take registers of every warp. Ten are as many as individual kernels of sm_100a and head dim 64 have room for,
    and more than dynamic ones have (ptxas 13.0). rows: (Sq, num_numbers) int32, of bounds that never decrease.
    """

    num_numbers: int
    rows: TensorLeaf = tensor_leaf(rank=2, dtype="int32")

    name: ClassVar[str] = "third_party_masks.rounds"

    def visible_interval(self, q: Any, sq: Any, sk: Any) -> tuple[Any, Any]:
        row = min_(q, sq - 1)
        numbers = [self.rows[row, idx] for idx in range(self.num_numbers)]
        for _ in range(3):
            total = numbers[0]
            for number in numbers[1:]:
                total = max_(total * 3, number)
            numbers = [max_(total - number, number) for number in numbers]
        return 0, clamp(numbers[0] + numbers[-1], 0, sk)

    def tile_ranges(self, q_block: Any, tile: tuple[int, int], sq: Any, sk: Any) -> TileRanges:
        tile_m, tile_n = tile
        _, first_end = self.visible_interval(q_block * tile_m, sq, sk)
        _, last_end = self.visible_interval((q_block + 1) * tile_m - 1, sq, sk)
        return TileRanges(0, 0, 0, ceil_div(max_(first_end, last_end), tile_n))


@dataclass(frozen=True)
class Relative(Score):
    """Adds bias[h, distance] to logits, as T5 does: of the distance from query to key, clamped to the table's extent.

    Every key reads the table, so a row of 128 scores takes as many addresses. bias: (Hq, 2 * reach + 1) fp32.
    """

    reach: int
    bias: TensorLeaf = tensor_leaf(rank=2)

    name: ClassVar[str] = "third_party_masks.relative"
    is_finite: ClassVar[bool] = True

    def score(self, score: Any, coords: Coords) -> Any:
        distance = clamp(coords.k - coords.q, -self.reach, self.reach)
        return score + self.bias[coords.head, distance + self.reach]
