# SPDX-License-Identifier: Apache-2.0
"""mx_quantize against opdeck.core.mx.quantize, bit for bit: zeros, NaN, subnormals, numbers between two elements."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from opdeck.core import dtypes, mx, registry
from opdeck.core.devices import open_device
from opdeck.core.errors import ArgumentError, ArgumentTypeError
from opdeck.core.mx import FORMATS, MxTensor, mx_format
from opdeck.core.mx.quantize import SOURCE_DTYPES

POISON = 0xA5
SHAPE = (2, 130, 160)
SCHEDULES = ("eager", "lazy", "random:1")
QUICK = [
    ("sm_100a", "bf16", "mxfp8_e4m3"),
    ("sm_100a", "fp32", "nvfp4"),
    ("sm_100a", "fp16", "mxfp6_e3m2"),
    ("sm_103a", "bf16", "mxfp4"),
    ("sm_90a", "fp32", "mxfp8_e5m2"),
]
EVERY = [
    (arch, dtype, row.name)
    for arch, dtype, row in itertools.product(("sm_100a", "sm_103a", "sm_90a"), SOURCE_DTYPES, FORMATS)
    if row.bits == 8 or arch != "sm_90a"
]
RUNS = [*QUICK, *(pytest.param(*row, marks=pytest.mark.slow) for row in EVERY if row not in QUICK)]


def numbers(dtype: str) -> np.ndarray:
    """Rows of all magnitudes of a type, in a wider buffer that holds NaN besides."""
    rng, element = np.random.default_rng(1), dtypes.dtype(dtype).numpy
    low, high = {"fp16": (-20, 14)}.get(dtype, (-140, 120))
    values = rng.standard_normal(SHAPE) * np.exp2(rng.integers(low, high, (*SHAPE[:-1], 1)))
    values[0, 0], values[0, 1], values[0, 2, 40:] = 0.0, -0.0, 0.0
    values[1, 3, 5], values[1, 4, 100], values[1, 5] = np.nan, -np.inf, 2.0**-130
    values[1, 129, 64:96] = 1.0 + np.arange(32) / 16  # halves between elements
    wide = np.full((*SHAPE[:-1], SHAPE[-1] + 32), np.nan).astype(element)
    with np.errstate(over="ignore"):
        wide[..., : SHAPE[-1]] = values.astype(np.float32).astype(element)
    return wide[..., : SHAPE[-1]]


def poisoned(format_name: str) -> MxTensor:
    row = mx_format(format_name)
    tensor = MxTensor.empty(np.empty(0), row, (*SHAPE[:-1], SHAPE[-1] + 256))
    tensor.data.view(np.uint8)[...] = POISON
    scales = np.full((*SHAPE[:-2], *row.scale_tiles(*SHAPE[-2:]), 512), POISON, np.uint8)
    return MxTensor(row, tensor.data, scales.view(row.scale.numpy), SHAPE)


def assert_same(got: MxTensor, want: MxTensor) -> None:
    assert got.global_scale == want.global_scale
    assert np.array_equal(got.elements().view(np.uint8), want.elements().view(np.uint8))
    assert np.array_equal(got.scales.view(np.uint8), want.scales.view(np.uint8))


@pytest.mark.parametrize(("arch", "dtype", "format_name"), RUNS)
def test_emulator(arch: str, dtype: str, format_name: str) -> None:
    x, operator = numbers(dtype), registry.get("mx_quantize")
    unit = 2.0**-40 / 3 if format_name == "nvfp4" else None
    for schedule in SCHEDULES:
        device, out = open_device(f"emulator:{arch}", schedule=schedule, hazards="strict"), poisoned(format_name)
        got = operator(x, format_name, unit, out, device=device)
        assert operator.last_launch.variant.arch == arch
        assert_same(got, mx.quantize(x, format_name, global_scale=unit))
        assert (out.data.view(np.uint8)[..., SHAPE[-1] * got.format.bits // 8 :] == POISON).all()
    assert_same(operator(x[0], format_name, device=f"emulator:{arch}"), mx.quantize(x[0], format_name))


@pytest.mark.parametrize("row", FORMATS, ids=lambda row: row.name)
def test_reference(row: mx.MxFormat) -> None:
    x = numbers("bf16")
    assert_same(
        registry.get("mx_quantize")(x, row, out=poisoned(row.name), device="cpu"),
        mx.quantize(x, row, global_scale=1.0 if row.has_global_scale else None),
    )


def test_refusals() -> None:
    x, operator = np.zeros((4, 64), np.float32), registry.get("mx_quantize")
    with pytest.raises(ArgumentError, match=r"format: got 'mxfp5', want mxfp8_e4m3\|"):
        operator(x, "mxfp5")
    with pytest.raises(ArgumentTypeError, match=r"x: got dtype int32, want fp32\|fp16\|bf16$"):
        operator(x.astype(np.int32), "mxfp4", device="cpu")
    with pytest.raises(ArgumentTypeError, match=r"x: got dtype <U1, want fp32\|fp16\|bf16$"):
        operator(x.astype("U1"), "nvfp4", device="cpu")
    with pytest.raises(ArgumentError, match=r"x: got shape \(4, 48\), want .* K a multiple of 32"):
        operator(x[:, :48], "mxfp4")
    with pytest.raises(ArgumentError, match=r"x: got a stride of 2 elements in dim k, want 1"):
        operator(np.zeros((4, 128), np.float32)[:, ::2], "mxfp4", device="cpu")
    with pytest.raises(ArgumentError, match=r"global_scale: got 2.0, want None: mxfp4 has none"):
        operator(x, "mxfp4", 2.0)
    with pytest.raises(ArgumentError, match=r"global_scale: got 0.0, want a positive normal number of fp32"):
        operator(x, "nvfp4", 0.0)
    with pytest.raises(ArgumentError, match=r"out: got mxfp4 \(4, 64\), want an MxTensor of nvfp4 \(4, 64\)"):
        operator(x, "nvfp4", out=mx.quantize(x, "mxfp4"))
    with pytest.raises(ArgumentTypeError, match="scale: got an argument that mx_quantize does not have, want global_s"):
        operator(x, "nvfp4", scale=1.0)
