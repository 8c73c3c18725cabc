# SPDX-License-Identifier: Apache-2.0
"""faulty_fusions.py: fusions of a third party's whose methods fail while a kernel is traced, or return the wrong kind.

Who calls it: tests/contract/test_function_errors.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from opdeck.core.fusion import BandMask, Coords, Float32Leaf, IntervalMask, Mask, Score, TensorLeaf, tensor_leaf


@dataclass(frozen=True)
class Branching(Mask):
    name: ClassVar[str] = "faulty.branching"

    def visible(self, coords: Coords) -> Any:
        if coords.q < 3:  # a traced number has no truth value
            return coords.k < coords.sk
        return coords.k < 1


@dataclass(frozen=True)
class Bounded(BandMask):
    name: ClassVar[str] = "faulty.bounded"

    def visible_interval(self, q: Any, sq: Any, sk: Any) -> tuple[Any, Any]:
        return 0, bounded(q, sk)


def bounded(q: Any, sk: Any) -> Any:
    return sk if q > sk else q


@dataclass(frozen=True)
class FromMath(Score):
    cap: Float32Leaf = 3.0

    name: ClassVar[str] = "faulty.from_math"

    def score(self, score: Any, coords: Coords) -> Any:
        return self.cap * math.tanh(score)


@dataclass(frozen=True)
class OneIndex(Score):
    table: TensorLeaf = tensor_leaf(rank=1)

    name: ClassVar[str] = "faulty.one_index"

    def at(self, batch: Any, head: Any) -> OneIndex:
        return self.replace(table=self.tabel[head])  # type: ignore[attr-defined]

    def score(self, score: Any, coords: Coords) -> Any:
        return score + self.table


@dataclass(frozen=True)
class RowOfTable(Score):
    table: TensorLeaf = tensor_leaf(rank=2)

    name: ClassVar[str] = "faulty.row_of_table"

    def score(self, score: Any, coords: Coords) -> Any:
        return score + self.table[coords.head]


@dataclass(frozen=True)
class RowInAt(Mask):
    """Two indices, but not at once."""

    table: TensorLeaf = tensor_leaf(rank=2)

    name: ClassVar[str] = "faulty.row_in_at"

    def at(self, batch: Any, head: Any) -> RowInAt:
        return self.replace(table=self.table[head])  # a row

    def visible(self, coords: Coords) -> Any:
        return self.table[coords.q] > 0


@dataclass(frozen=True)
class NoResult(Score):
    name: ClassVar[str] = "faulty.no_result"

    def score(self, score: Any, coords: Coords) -> Any:
        score * 2.0


@dataclass(frozen=True)
class NoTruth(Mask):
    name: ClassVar[str] = "faulty.no_truth"

    def visible(self, coords: Coords) -> Any:
        return coords.k - coords.q


@dataclass(frozen=True)
class OneBound(IntervalMask):
    name: ClassVar[str] = "faulty.one_bound"

    def visible_interval(self, q: Any, sq: Any, sk: Any) -> Any:
        return sk


@dataclass(frozen=True)
class NoMethod(IntervalMask):
    name: ClassVar[str] = "faulty.no_method"
