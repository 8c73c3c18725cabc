# SPDX-License-Identifier: Apache-2.0
"""opdeck.core.fusion: functions that are compiled into kernels, and how to write one. Imports no DSL.

Masks and score functions are of attention, activations of GEMM.
"""

from opdeck.core.fusion.activations import Activation, GatedSilu, Gelu, Relu, Silu
from opdeck.core.fusion.attention import (
    AttentionFusion,
    BandMask,
    Coords,
    Extent,
    IntervalMask,
    Mask,
    Score,
    Tile,
    TileRanges,
)
from opdeck.core.fusion.base import Float32Leaf, Fusion, Int32Leaf, Leaf, LeafKind, TensorLeaf, tensor_leaf
from opdeck.core.fusion.blocks import BlockSparse, block_sparse
from opdeck.core.fusion.check import check_tile_ranges
from opdeck.core.fusion.functions import mask_mod, score_mod
from opdeck.core.fusion.masks import Align, Causal, Document, PrefixLM, Residual, Window
from opdeck.core.fusion.scores import Alibi, Bias, Sink, Softcap, TensorScore

__all__ = [
    "Activation",
    "Alibi",
    "Align",
    "AttentionFusion",
    "BandMask",
    "Bias",
    "BlockSparse",
    "Causal",
    "Coords",
    "Document",
    "Extent",
    "Float32Leaf",
    "Fusion",
    "GatedSilu",
    "Gelu",
    "Int32Leaf",
    "IntervalMask",
    "Leaf",
    "LeafKind",
    "Mask",
    "PrefixLM",
    "Relu",
    "Residual",
    "Score",
    "Silu",
    "Sink",
    "Softcap",
    "TensorLeaf",
    "TensorScore",
    "Tile",
    "TileRanges",
    "Window",
    "block_sparse",
    "check_tile_ranges",
    "mask_mod",
    "score_mod",
    "tensor_leaf",
]
