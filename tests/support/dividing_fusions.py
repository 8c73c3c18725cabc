# SPDX-License-Identifier: Apache-2.0
"""dividing_fusions.py: fusions of a third party's that divide negative numbers.

Who calls it: tests/kernels/test_fmha_fwd_functions.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from opdeck.core.fusion import BandMask, Coords, Int32Leaf, Mask, Score, TensorLeaf, tensor_leaf
from opdeck.core.fusion.floatmath import to_float
from opdeck.core.fusion.intmath import clamp


@dataclass(frozen=True)
class OneOfThree(Score):
    """Adds x % 3 of x = q - k + shift to a logit."""

    shift: Int32Leaf

    name: ClassVar[str] = "dividing.one_of_three"

    def score(self, score: Any, coords: Coords) -> Any:
        return score + to_float((coords.q - coords.k + self.shift) % 3)


@dataclass(frozen=True)
class Divided(Mask):
    """Shows keys by quotients and remainders of x = q - k + shift. divisors: (3,), that of head h at (h - 5) % 3."""

    shift: Int32Leaf
    divisors: TensorLeaf = tensor_leaf(rank=1, dtype="int32")

    name: ClassVar[str] = "dividing.divided"

    def at(self, batch: Any, head: Any) -> Divided:
        return self.replace(divisors=self.divisors[(head - 5) % 3])

    def visible(self, coords: Coords) -> Any:
        x = coords.q - coords.k + self.shift
        by_divisor = (x % self.divisors == 77 % self.divisors) | (x // self.divisors == -2)
        return (by_divisor | (x % 5 == 3) & (x % 4 == coords.k % 7)) & (coords.k < coords.sk)


@dataclass(frozen=True)
class Blocks(BandMask):
    """Query q sees the keys of its own block. Each has `length` keys, one begins with key `shift`."""

    shift: Int32Leaf
    length: Int32Leaf

    name: ClassVar[str] = "dividing.blocks"

    def visible_interval(self, q: Any, sq: Any, sk: Any) -> tuple[Any, Any]:
        own = q - self.shift
        return clamp(q - own % self.length, 0, sk), clamp((own // self.length + 1) * self.length + self.shift, 0, sk)
