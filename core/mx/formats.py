# SPDX-License-Identifier: Apache-2.0
"""formats.py: the block-scaled formats, as rows.

Who calls it: the quantiser, mx_gemm (rules, command line), reports.
Source: OCP Microscaling specification 1.0; NVFP4 is NVIDIA's.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import ml_dtypes

from opdeck.core import dtypes
from opdeck.core.dtypes import DType
from opdeck.core.errors import ArgumentError

# A tile of the scale layout "128x4": 128 rows by 4 blocks, a byte each.
SCALE_TILE_ROWS = 128
SCALE_TILE_COLS = 4
SCALE_TILE_BYTES = SCALE_TILE_ROWS * SCALE_TILE_COLS

# The rows of elements under a byte begin a multiple of this apart, and their padding is zero: what TMA asks of them
# where the other operand of a product has elements of another width.
PITCH_ELEMS = 128


@dataclass(frozen=True)
class MxFormat:
    """Elements of one type, and a scale of another for each `block` of them along a row.

    has_global_scale: one fp32 number besides, that multiplies the whole tensor.
    """

    name: str
    element_name: str
    scale_name: str
    block: int
    has_global_scale: bool = False

    @property
    def element(self) -> DType:
        return dtypes.dtype(self.element_name)

    @property
    def scale(self) -> DType:
        return dtypes.dtype(self.scale_name)

    @property
    def bits(self) -> int:
        """Of one element."""
        return self.element.bits

    @functools.cached_property
    def max_normal(self) -> float:
        """The largest element."""
        return float(ml_dtypes.finfo(self.element.numpy).max)

    @functools.cached_property
    def emax(self) -> int:
        """Exponent of the largest element: max_normal = 1.xx * 2^emax."""
        return math.frexp(self.max_normal)[1] - 1

    def pitch_elems(self, k: int) -> int:
        """Elements from one row of k to the next, as `quantize` lays them out."""
        return k if self.bits == 8 else -(-k // PITCH_ELEMS) * PITCH_ELEMS

    def num_blocks(self, k: int) -> int:
        """Of a row of k elements."""
        return -(-k // self.block)

    def scale_tiles(self, rows: int, k: int) -> tuple[int, int]:
        """Tiles of the 128x4 scale layout: along the rows, along K."""
        return -(-rows // SCALE_TILE_ROWS), -(-self.num_blocks(k) // SCALE_TILE_COLS)

    def memory_bytes(self, rows: int, k: int) -> tuple[int, int]:
        """Bytes of the elements and of the scales, padding not counted."""
        return rows * k * self.bits // 8, rows * self.num_blocks(k)


FORMATS: tuple[MxFormat, ...] = (
    MxFormat("mxfp8_e4m3", "fp8_e4m3", "e8m0", 32),
    MxFormat("mxfp8_e5m2", "fp8_e5m2", "e8m0", 32),
    MxFormat("mxfp6_e3m2", "fp6_e3m2", "e8m0", 32),
    MxFormat("mxfp6_e2m3", "fp6_e2m3", "e8m0", 32),
    MxFormat("mxfp4", "fp4_e2m1", "e8m0", 32),
    MxFormat("nvfp4", "fp4_e2m1", "ue4m3", 16, has_global_scale=True),
)

_BY_NAME = {row.name: row for row in FORMATS}


def mx_format(name: str | MxFormat, argument: str = "format") -> MxFormat:
    """The row of a name; a row as it is.

    Raises: ArgumentError naming `argument` when there is none.
    """
    row = name if isinstance(name, MxFormat) else _BY_NAME.get(name) if isinstance(name, str) else None
    if row is None:
        raise ArgumentError(argument, repr(name), "|".join(_BY_NAME))
    return row
