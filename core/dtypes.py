# SPDX-License-Identifier: Apache-2.0
"""dtypes.py: the one table of element types.

Who calls it: all of opdeck; Python names, DLPack codes, the numbers of abi/src/pack.h and the CLI come from here.
Limits: ue4m3 (the scale of nvfp4) is stored as float8_e4m3fn by every array library, so an array is never found to be
ue4m3: an operator that takes one reads fp8_e4m3 as it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt

from opdeck.core.errors import ArgumentError


@dataclass(frozen=True)
class Tolerance:
    """How far a result x may be from the float64 oracle ref.

    max_abs: largest |x - ref| / max(1, |ref|): absolute up to 1, in proportion beyond, since rounding the output alone
    costs 2^-9 |ref| in bf16. mean_abs: mean |x - ref|. relative: ||x - ref|| / ||ref||.
    """

    max_abs: float
    mean_abs: float
    relative: float


@dataclass(frozen=True)
class DType:
    """One element type.

    number: opdeck_pack_dtype. dlpack_code, bits: of a DLDataType. numpy_name: the dtype's name in numpy or ml_dtypes.
    torch_name: the attribute of torch, "" where torch has none. aliases: other spellings that the CLI takes.
    """

    name: str
    number: int
    dlpack_code: int
    bits: int
    numpy_name: str
    torch_name: str
    aliases: tuple[str, ...] = ()
    tolerance: Tolerance | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of one element as array libraries store it: a byte at least."""
        return max(1, self.bits // 8)

    @functools.cached_property
    def numpy(self) -> npt.DTypeLike:
        """The numpy dtype, from ml_dtypes where numpy has none."""
        return np.dtype(getattr(ml_dtypes, self.numpy_name, self.numpy_name))


# Absolute bounds are those of CUTLASS example 77; the relative ones are opdeck's own.
_FP8 = Tolerance(max_abs=1e-1, mean_abs=1e-1, relative=5e-2)
_FP16 = Tolerance(max_abs=1e-2, mean_abs=1e-3, relative=2e-3)
_BF16 = Tolerance(max_abs=1e-2, mean_abs=1e-3, relative=1e-2)

DTYPES: tuple[DType, ...] = (
    DType("fp16", 1, 2, 16, "float16", "float16", ("float16", "half"), _FP16),
    DType("bf16", 2, 4, 16, "bfloat16", "bfloat16", ("bfloat16",), _BF16),
    DType("fp32", 3, 2, 32, "float32", "float32", ("float32", "float")),
    DType("fp8_e4m3", 4, 10, 8, "float8_e4m3fn", "float8_e4m3fn", ("fp8", "e4m3"), _FP8),
    DType("fp8_e5m2", 5, 12, 8, "float8_e5m2", "float8_e5m2", ("e5m2",), _FP8),
    DType("fp6_e3m2", 6, 16, 6, "float6_e3m2fn", ""),
    DType("fp6_e2m3", 7, 15, 6, "float6_e2m3fn", ""),
    DType("fp4_e2m1", 8, 17, 4, "float4_e2m1fn", ""),
    DType("e8m0", 9, 14, 8, "float8_e8m0fnu", "float8_e8m0fnu"),
    DType("ue4m3", 10, 10, 8, "float8_e4m3fn", "float8_e4m3fn"),
    DType("int32", 11, 0, 32, "int32", "int32"),
    DType("int64", 12, 0, 64, "int64", "int64"),
    DType("uint8", 13, 1, 8, "uint8", "uint8"),
)


def _first_by(keys: list[tuple[object, DType]]) -> dict[object, DType]:
    """A table in which the first row of a key counts: float8_e4m3fn is fp8_e4m3, not ue4m3."""
    table: dict[object, DType] = {}
    for key, row in keys:
        table.setdefault(key, row)
    return table


_BY_NAME = _first_by([(name, row) for row in DTYPES for name in (row.name, *row.aliases)])
_BY_NUMBER = _first_by([(row.number, row) for row in DTYPES])
_BY_NUMPY_NAME = _first_by([(row.numpy_name, row) for row in DTYPES])
_BY_TORCH_NAME = _first_by([(row.torch_name, row) for row in DTYPES if row.torch_name])
_BY_DLPACK = _first_by([((row.dlpack_code, row.bits), row) for row in DTYPES])


def dtype(name: str, argument: str = "dtype") -> DType:
    """The row of a canonical name or alias.

    Raises: ArgumentError naming `argument` when there is none.
    """
    row = _BY_NAME.get(name) if isinstance(name, str) else None
    if row is None:
        raise ArgumentError(argument, repr(name), "|".join(row.name for row in DTYPES))
    return row


def by_number(number: int) -> DType | None:
    return _BY_NUMBER.get(number)


def by_numpy_name(name: str) -> DType | None:
    return _BY_NUMPY_NAME.get(name)


def by_torch_name(name: str) -> DType | None:
    """`name` without its "torch."."""
    return _BY_TORCH_NAME.get(name)


def by_dlpack(code: int, bits: int) -> DType | None:
    return _BY_DLPACK.get((code, bits))
