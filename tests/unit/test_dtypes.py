# SPDX-License-Identifier: Apache-2.0
"""The table of element types against the C headers, numpy and ml_dtypes."""

from __future__ import annotations

import re

import numpy as np
import pytest

from opdeck import abi
from opdeck.core import dtypes
from opdeck.core.dtypes import DTYPES, DType
from opdeck.core.errors import ArgumentError


def test_numbers_are_those_of_the_pack_header() -> None:
    header = next(path for path in abi.shim_sources() if path.name == "pack.h").read_text()
    numbers = {name.lower(): int(number) for name, number in re.findall(r"OPDECK_DT_(\w+) = (\d+)", header)}
    assert numbers == {row.name: row.number for row in DTYPES}


@pytest.mark.parametrize("row", DTYPES, ids=lambda row: row.name)
def test_dlpack_codes_are_those_of_the_public_header(row: DType) -> None:
    _ffi, lib = abi.lib()
    kinds = {"fp16": "FLOAT", "fp32": "FLOAT", "bf16": "BFLOAT", "int32": "INT", "int64": "INT", "uint8": "UINT"}
    kind = kinds.get(row.name, row.name.removeprefix("u").upper())
    kind = {"E4M3": "FP8_E4M3"}.get(kind, kind)
    assert row.dlpack_code == getattr(lib, f"OPDECK_CODE_{kind}")


@pytest.mark.parametrize("row", DTYPES, ids=lambda row: row.name)
def test_numpy_has_it(row: DType) -> None:
    assert np.dtype(row.numpy).name == row.numpy_name
    assert np.dtype(row.numpy).itemsize == row.size_bytes


def test_lookups() -> None:
    assert dtypes.dtype("fp8").name == "fp8_e4m3"
    found = dtypes.by_numpy_name("float8_e4m3fn")
    assert found is not None
    assert found.name == "fp8_e4m3"
    assert dtypes.by_dlpack(4, 16) == dtypes.dtype("bf16")
    assert dtypes.by_torch_name("complex64") is None
    with pytest.raises(ArgumentError, match=r"--dtype: got 'int4', want fp16\|bf16\|"):
        dtypes.dtype("int4", "--dtype")
