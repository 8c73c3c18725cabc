# SPDX-License-Identifier: Apache-2.0
"""broken.py: fusions with one fault each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from opdeck.core.fusion import Activation, BandMask, LeafKind, Score, TensorLeaf, TileRanges, tensor_leaf
from opdeck.core.fusion.floatmath import exp, sigmoid
from opdeck.core.hookspecs import hookimpl


@dataclass(frozen=True)
class ShortWindow(BandMask):
    """Its last tile is left out."""

    name: ClassVar[str] = "acme_broken.short_window"

    def visible_interval(self, q, sq, sk):
        return 0, sk

    def tile_ranges(self, q_block, tile, sq, sk):
        return TileRanges(0, 0, 0, sk // tile[1])


@dataclass(frozen=True)
class TwoMeanings(Score):
    """The reference doubles a logit, the kernel does not."""

    name: ClassVar[str] = "acme_broken.two_meanings"

    def score(self, score, coords):
        return score + 1.0

    def reference(self, scores, coords):
        return 2.0 * scores


@dataclass(frozen=True)
class NoSample(Score):
    """Nobody can tell what tensor it wants."""

    table: TensorLeaf = tensor_leaf(rank=1)

    name: ClassVar[str] = "acme_broken.no_sample"

    def score(self, score, coords):
        return score + self.table[coords.head]


@dataclass(frozen=True)
class TwoGates(Activation):
    """The reference takes the other column for the gate."""

    name: ClassVar[str] = "acme_broken.two_gates"
    num_columns: ClassVar[int] = 2

    def activate(self, *columns):
        gate, value = columns
        return sigmoid(gate) * value

    def reference(self, sums):
        return sigmoid(sums[..., 1::2]) * sums[..., ::2]


@dataclass(frozen=True)
class Neighbours(Activation):
    """A softmax: each result depends on all columns."""

    name: ClassVar[str] = "acme_broken.neighbours"

    def activate(self, *columns):
        return exp(columns[0]) / exp(columns[0]).sum(axis=-1, keepdims=True)


@hookimpl
def opdeck_activations():
    return [TwoGates(), Neighbours()]


@hookimpl
def opdeck_fusions():
    return [ShortWindow(), TwoMeanings(), NoSample(LeafKind.TENSOR)]
