# SPDX-License-Identifier: Apache-2.0
"""opdeck.core.fusion: functions that are compiled into kernels, and how to write one. Imports no DSL.

Masks are of attention, activations of GEMM.
"""

from opdeck.core.fusion.activations import Activation, GatedSilu, Gelu, Relu, Silu
from opdeck.core.fusion.base import (
    AttentionFusion,
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
    "Activation",
    "Align",
    "AttentionFusion",
    "Causal",
    "Coords",
    "Float32Leaf",
    "Fusion",
    "GatedSilu",
    "Gelu",
    "Int32Leaf",
    "IntervalMask",
    "Leaf",
    "LeafKind",
    "Mask",
    "Relu",
    "Residual",
    "Silu",
    "TensorLeaf",
    "Tile",
    "TileRanges",
    "check_tile_ranges",
    "tensor_leaf",
]
