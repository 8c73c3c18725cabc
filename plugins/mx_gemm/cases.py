# SPDX-License-Identifier: Apache-2.0
"""cases.py: the case table of mx_gemm, its inputs, and how many multiply-accumulates a case must take.

Who calls it: tests/kernels.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from opdeck.core import dtypes
from opdeck.core.mx import MxTensor, quantize, tile_scales, untile_scales
from opdeck.core.mx.formats import SCALE_TILE_COLS, SCALE_TILE_ROWS
from opdeck.core.variant import Variant
from opdeck.plugins.mx_gemm.sm100.config import CTA_M, Config
from opdeck.plugins.mx_gemm.spec import ALIGN_BYTES, OUTPUT_DTYPES
from opdeck.plugins.mx_gemm.variants import KERNELS

Array = npt.NDArray[Any]


class Values(enum.Enum):
    """What A and B hold."""

    NORMAL = "normal"  # N(0, 1), rows of magnitudes from 2^-4 to 2^4
    INTEGERS = "integers"  # -2 .. 2, for scales that are powers of two: every sum is exact, whatever the order


@dataclass(frozen=True)
class Shape:
    """num_batches products of (m, k) and (n, k)."""

    m: int
    n: int
    k: int
    num_batches: int = 1

    def __str__(self) -> str:
        return f"l{self.num_batches}_m{self.m}_n{self.n}_k{self.k}"


@dataclass(frozen=True)
class Case:
    """One row.

    terms: which of "c" and "bias" are given. transposed: which of "a" and "b" are MN-major. tile: slug of the Tile (of
    variants.py) to run on; None: the one that is selected.
    """

    shape: Shape
    formats: tuple[str, str] = ("mxfp8_e4m3", "mxfp8_e4m3")
    d_format: str = "bf16"
    values: Values = Values.NORMAL
    terms: tuple[str, ...] = ()
    transposed: tuple[str, ...] = ()
    max_ctas: int | None = None
    tile: str | None = None

    @property
    def id(self) -> str:
        majors = [f"{name}_mn" for name in self.transposed]
        words = (*self.formats, self.d_format, str(self.shape), self.values.value, *self.terms, *majors)
        words += () if self.max_ctas is None else (f"ctas{self.max_ctas}",)
        words += (f"on_{self.tile}",) if self.tile else ()
        return "-".join(words)


@dataclass(frozen=True)
class Inputs:
    """Operands of a case, and D, which is filled with NaN. Whatever pads the scales is NaN too."""

    a: MxTensor
    b: MxTensor
    d: Array
    alpha: float
    beta: float = 0.0
    terms: dict[str, Array] = field(default_factory=dict)


_MXFP8, _MXFP4, _NVFP4 = ("mxfp8_e4m3",) * 2, ("mxfp4",) * 2, ("nvfp4",) * 2
# Less than a tile, more than one, rows and columns past whole tiles, and every end that K can have in one.
_EDGES = (Shape(1, 8, 32), Shape(200, 136, 160), Shape(130, 264, 96, 3), Shape(129, 128, 448), Shape(256, 256, 256))
# More than one cluster of each tile, a part of one, and a part of a tile of K, of an MMA of packed elements even.
_CLUSTERS = Shape(520, 600, 416)
# Groups of stages by the widest MMAs of sm_103a, a whole stage besides, and a part of one.
_LONG = Shape(300, 520, 2 * 768 + 256 + 32)


def cases() -> Iterator[Case]:
    """Every row."""
    for formats, shape in itertools.product((_MXFP8, _MXFP4, _NVFP4), _EDGES):
        yield Case(shape, formats, tile="")
    shape = Shape(200, 136, 224)
    for formats in (("mxfp6_e3m2", "mxfp6_e2m3"), ("mxfp8_e5m2", "mxfp4"), ("mxfp4", "mxfp6_e2m3")):
        yield Case(shape, formats, "fp16")
    for formats in (_MXFP8, _MXFP4):
        yield Case(shape, formats, "fp32", Values.INTEGERS)
    for tile, formats in itertools.product(("256x256_2x2", "256x256", "256x128", "128x64"), (_MXFP8, _NVFP4)):
        yield Case(_CLUSTERS, formats, max_ctas=4, tile=tile)
    for terms in (("c",), ("bias",), ("c", "bias")):
        yield Case(replace(shape, num_batches=2), _MXFP8, terms=terms)
    yield Case(shape, _NVFP4, "fp32", terms=("c", "bias"))
    for transposed in (("a",), ("b",), ("a", "b")):
        yield Case(replace(shape, num_batches=2), ("mxfp8_e4m3", "mxfp8_e5m2"), transposed=transposed)
    yield Case(shape, ("mxfp6_e2m3", "mxfp8_e4m3"), transposed=("b",))
    yield Case(_CLUSTERS, _MXFP8, transposed=("a", "b"), tile="256x256")
    yield Case(Shape(2050, 2056, 64), _MXFP8, max_ctas=16)
    for formats, tile in itertools.product((_NVFP4, _MXFP4), ("", "256x256")):
        yield Case(_LONG, formats, max_ctas=4, tile=tile)


def every_format() -> Iterator[Case]:
    """A case for each pair of formats and each way that operands may lie, of the plain types of D in turn."""
    kernels = {(kernel.formats, kernel.transposed): kernel for kernel in KERNELS}
    for kernel in kernels.values():
        for idx, formats in enumerate(kernel.formats):
            d_format = OUTPUT_DTYPES[idx % len(OUTPUT_DTYPES)]
            yield Case(Shape(200, 136, 352), formats, d_format, transposed=kernel.transposed, tile="")


def make_inputs(case: Case, seed: int) -> Inputs:
    """The arrays of a case."""
    rng = np.random.default_rng(seed)
    shape = case.shape
    a, b = (
        _operand(case.values, (shape.num_batches, rows, shape.k), name, rng)
        for rows, name in ((shape.m, case.formats[0]), (shape.n, case.formats[1]))
    )
    a, b = (_mn_major(tensor) if name in case.transposed else tensor for name, tensor in (("a", a), ("b", b)))
    element = dtypes.dtype(case.d_format).numpy
    shapes = {"c": (shape.num_batches, shape.m, shape.n), "bias": (shape.n,)}
    terms = {name: (8.0 * rng.standard_normal(shapes[name])).astype(element) for name in case.terms}
    d = np.full((shape.num_batches, shape.m, shape.n), np.nan).astype(element)
    alpha = 1.0 if case.values is Values.INTEGERS else 0.75
    return Inputs(a, b, d, alpha, -1.5 if "c" in terms else 0.0, terms)


def _operand(values: Values, shape: tuple[int, ...], format_name: str, rng: np.random.Generator) -> MxTensor:
    if values is Values.INTEGERS:
        numbers = rng.integers(-2, 3, shape).astype(np.float32)
    else:
        numbers = rng.standard_normal(shape, np.float32) * np.exp2(rng.integers(-4, 5, (*shape[:-1], 1)))
    tensor = quantize(numbers.astype(np.float32), format_name)
    return replace(tensor, scales=_with_poisoned_padding(tensor))


def _mn_major(tensor: MxTensor) -> MxTensor:
    """The same numbers with each column side by side, and NaN between the columns."""
    data = np.asarray(tensor.data)
    *batch, rows, k = data.shape
    padded = np.full((*batch, k, -(-rows // ALIGN_BYTES) * ALIGN_BYTES), np.nan).astype(data.dtype)
    padded[..., :rows] = data.swapaxes(-1, -2)
    return replace(tensor, data=padded[..., :rows].swapaxes(-1, -2))


def _with_poisoned_padding(tensor: MxTensor) -> Array:
    """The scales in their tiles, NaN in all bytes that are no block's."""
    row, scales = tensor.format, np.asarray(tensor.scales)
    rows, blocks = tensor.shape[-2], row.num_blocks(tensor.shape[-1])
    row_tiles, col_tiles = scales.shape[-3:-1]
    padded = np.full((*scales.shape[:-3], row_tiles * SCALE_TILE_ROWS, col_tiles * SCALE_TILE_COLS), np.nan)
    poisoned = padded.astype(scales.dtype)
    poisoned[..., :rows, :blocks] = untile_scales(scales, rows, blocks)
    return tile_scales(poisoned)


def expected_macs(shape: Shape, variant: Variant) -> int:
    """Multiply-accumulates of the tiles and K steps that a compiled variant takes, whole ones each."""
    config = Config.of(variant)

    def rounded_up(extent: int, step: int) -> int:
        return -(-extent // step) * step

    rows = rounded_up(shape.m, CTA_M * config.cluster_m)
    columns = rounded_up(shape.n, config.mma_n * config.cluster_n)
    return shape.num_batches * rows * columns * rounded_up(shape.k, config.inst_k)
