# SPDX-License-Identifier: Apache-2.0
"""fusions.py: an ALiBi whose penalty grows with the logarithm of the distance, a soft cap without tanh, a mask that
knows no tile ranges, and a gate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from opdeck.core.fusion import Activation, Float32Leaf, Int32Leaf, LeafKind, Mask, Score, TensorLeaf, tensor_leaf
from opdeck.core.fusion.floatmath import abs_, log, reciprocal, select, sigmoid, to_float
from opdeck.core.hookspecs import hookimpl


@dataclass(frozen=True)
class LogAlibi(Score):
    """Takes slope * ln(1 + distance) from a logit. slopes: (Hq,) fp32."""

    slopes: TensorLeaf = tensor_leaf(dims=("num_heads",))

    name: ClassVar[str] = "acme.log_alibi"
    is_finite: ClassVar[bool] = True

    def at(self, batch, head):
        return self.replace(slopes=self.slopes[head])

    def score(self, score, coords):
        distance = abs_(to_float(coords.k - (coords.q + coords.sk - coords.sq)))
        return score - self.slopes * log(1.0 + distance)

    def sample(self, extent, rng):
        return self.replace(slopes=rng.uniform(0, 2, extent.num_heads).astype(np.float32))


@dataclass(frozen=True)
class RationalCap(Score):
    """limit * x / (limit + |x|): logits stay within (-limit, limit)."""

    limit: Float32Leaf = 30.0

    name: ClassVar[str] = "acme.rational_cap"
    is_finite: ClassVar[bool] = True

    def score(self, score, coords):
        return self.limit * score * reciprocal(self.limit + abs_(score))


@dataclass(frozen=True)
class Strided(Mask):
    """Of the keys up to a query's own, the last `width` and the first 64."""

    width: Int32Leaf = 100

    name: ClassVar[str] = "acme.strided"

    def visible(self, coords):
        own = coords.q + coords.sk - coords.sq
        seen = (own - coords.k < self.width) | (coords.k < 64)
        return (coords.k <= own) & seen & (coords.k < coords.sk)


@dataclass(frozen=True)
class LimitedGate(Activation):
    """gate * sigmoid(slope * gate) * (value + 1) of columns 2j and 2j + 1, neither beyond the limit."""

    slope: Float32Leaf = 1.702
    limit: Float32Leaf = 7.0

    name: ClassVar[str] = "acme.limited_gate"
    num_columns: ClassVar[int] = 2

    def activate(self, *columns):
        gate, value = (select(x > self.limit, self.limit, x) for x in columns)
        value = select(value < -self.limit, -self.limit, value)
        return gate * sigmoid(self.slope * gate) * (value + 1.0)


@hookimpl
def opdeck_activations():
    return [LimitedGate()]


@hookimpl
def opdeck_fusions():
    return [LogAlibi(LeafKind.TENSOR), RationalCap(), Strided()]
