# SPDX-License-Identifier: Apache-2.0
"""opdeck.core.fusion: masks that are compiled into attention kernels, and how to write one. Imports no DSL."""

from opdeck.core.fusion.base import (
    Coords,
    Float32Leaf,
    Fusion,
    Int32Leaf,
    IntervalMask,
    Leaf,
    LeafKind,
    Mask,
    TensorLeaf,
    Tile,
    TileRanges,
    tensor_leaf,
)
from opdeck.core.fusion.check import check_tile_ranges
from opdeck.core.fusion.masks import Align, Causal, Residual

__all__ = [
    "Align",
    "Causal",
    "Coords",
    "Float32Leaf",
    "Fusion",
    "Int32Leaf",
    "IntervalMask",
    "Leaf",
    "LeafKind",
    "Mask",
    "Residual",
    "TensorLeaf",
    "Tile",
    "TileRanges",
    "check_tile_ranges",
    "tensor_leaf",
]
