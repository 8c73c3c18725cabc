# SPDX-License-Identifier: Apache-2.0
"""The family "copy": y = x * factor, or y = fusion(x * factor), row by row. Imports no DSL.

x, y: (rows, cols) fp32 or fp16, cols 128, row strides of a multiple of 16 bytes. row_sums: (rows,) fp32, the sums of x,
may be left out. factor: f32, 1 / sqrt(cols) by default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from opdeck.core import dtypes
from opdeck.core.arch import GPU_ARCHS
from opdeck.core.fusion import Float32Leaf, Fusion, Int32Leaf, TensorLeaf, tensor_leaf
from opdeck.core.schema import ArgSpec, FamilySchema, Rule
from opdeck.core.variant import Variant, fusion_slug

NUM_COLS = 128
DTYPES = ("fp32", "fp16")

SCHEMA = FamilySchema(
    "copy",
    args=(
        ArgSpec("x", "tensor", "read", ("rows", "cols"), "T", DTYPES, align_bytes=16, contiguous_last=True),
        ArgSpec("y", "tensor", "write", ("rows", "cols"), "T", DTYPES, align_bytes=16, contiguous_last=True),
        ArgSpec("row_sums", "tensor", "write", ("rows",), "S", ("fp32",), optional=True, align_bytes=4),
        ArgSpec("factor", "f32", optional=True, default=("rsqrt", "cols")),
    ),
    empty=(Rule("rows", "eq", (0,)),),
)


@dataclass(frozen=True)
class Affine(Fusion):
    """y = x * factor * gain + bias[col] * num_times: a fusion with a leaf of each kind."""

    bias: TensorLeaf = tensor_leaf(rank=1)
    num_times: Int32Leaf = 1
    gain: Float32Leaf = 1.0

    name: ClassVar[str] = "copy_plugin.affine"


def rows(fusions: Sequence[Fusion | None]) -> tuple[Variant, ...]:
    """One variant for each arch, dtype and fusion."""
    return tuple(
        Variant(
            id=f"copy_{arch.slug}_{dtype}_{fusion_slug(fusion)}",
            family="copy",
            arch=arch.name,
            dtype=dtype,
            fusion=fusion,
            accept=(
                Rule("cols", "eq", (NUM_COLS,), hint="others: slice them"),
                Rule("dtype.T", "eq", (dtypes.dtype(dtype).number,)),
            ),
            config={"num_threads": NUM_COLS},
            factory="copy_plugin.kernel:make",
            static_dims={"cols": NUM_COLS},
        )
        for arch in GPU_ARCHS
        for dtype in DTYPES
        for fusion in fusions
    )
