# SPDX-License-Identifier: Apache-2.0
"""What mx_gemm can write but plain numbers: block-scaled D, bit for bit its own fp32 D quantised, and amax.

Ragged, with rows of zeros and of NaN, into poisoned rows of a wider buffer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from opdeck.core import mx, registry
from opdeck.core.devices import Device, open_device
from opdeck.core.fusion import Activation, GatedSilu, Silu
from opdeck.core.mx import MxTensor, mx_format
from opdeck.plugins.mx_gemm.cases import Shape

POISON = 0xA5


@dataclass(frozen=True)
class Case:
    """One row. schedules: on the emulator."""

    arch: str
    schedules: tuple[str, ...]
    formats: tuple[str, str]
    d_format: str
    shape: Shape
    activation: Activation | None = None

    @property
    def id(self) -> str:
        name = "none" if self.activation is None else self.activation.name
        return "-".join((self.arch, *self.formats, self.d_format, str(self.shape), name))


_MXFP8, _NVFP4 = ("mxfp8_e4m3",) * 2, ("nvfp4",) * 2
CASES = [
    Case("sm_100a", ("eager", "random:1"), _MXFP8, "mxfp8_e4m3", Shape(200, 288, 160, 2)),
    Case("sm_100a", ("lazy",), _NVFP4, "nvfp4", Shape(130, 160, 96)),
    # Two tiles of D share a tile of scales, and the last is alone in one.
    Case("sm_103a", ("random:2",), _NVFP4, "mxfp8_e5m2", Shape(70, 320, 160), GatedSilu()),
]
SLOW_CASES = [
    Case("sm_103a", ("eager", "lazy"), ("mxfp8_e4m3", "mxfp4"), "mxfp4", Shape(129, 96, 64, 2), Silu()),
    Case("sm_100a", ("eager", "random:3"), ("mxfp4", "mxfp4"), "nvfp4", Shape(200, 448, 96), GatedSilu()),
    Case("sm_100a", ("random:1",), _MXFP8, "mxfp4", Shape(2050, 2080, 192)),
    Case("sm_100a", ("lazy",), _NVFP4, "nvfp4", Shape(2050, 2112, 192), GatedSilu()),
    Case("sm_103a", ("random:1",), _NVFP4, "mxfp8_e4m3", Shape(2050, 2080, 192), Silu()),
]


def operand(shape: tuple[int, ...], format_name: str, rng: np.random.Generator) -> MxTensor:
    """Rows of magnitudes from 2^-20 to 2^20, the third of zeros."""
    numbers = rng.standard_normal(shape) * np.exp2(rng.integers(-20, 21, (*shape[:-1], 1)))
    numbers[..., 2, :] = 0.0
    return mx.quantize(numbers.astype(np.float32), format_name)


def with_nan_row(tensor: MxTensor) -> MxTensor:
    """The same with a scale of the second row that is NaN."""
    scales = np.array(tensor.linear_scales)
    scales.view(np.uint8)[..., 1, 0] = 0xFF if tensor.format.scale_name == "e8m0" else 0x7F
    return replace(tensor, scales=mx.tile_scales(scales))


def poisoned(shape: tuple[int, ...], format_name: str) -> MxTensor:
    """A tensor in rows of a wider buffer."""
    row = mx_format(format_name)
    tensor = MxTensor.empty(np.empty(0), row, (*shape[:-1], shape[-1] + 256))
    for part in (tensor.data, tensor.scales):
        part.view(np.uint8)[...] = POISON
    scales = np.full((*shape[:-2], *row.scale_tiles(*shape[-2:]), 512), POISON, np.uint8).view(row.scale.numpy)
    return MxTensor(row, tensor.data, scales, shape)


def assert_right(case: Case, device: Device) -> None:
    rng, shape, gemm = np.random.default_rng(3), case.shape, registry.get("mx_gemm")
    a, b = (
        operand((shape.num_batches, rows, shape.k), name, rng)
        for rows, name in ((shape.m, case.formats[0]), (shape.n, case.formats[1]))
    )
    bias, c = rng.standard_normal(shape.n), rng.standard_normal((shape.num_batches, shape.m, shape.n))
    for alpha, has_terms in ((1.0, False), (0.75, False), (0.75, True)):
        terms = {"bias": bias.astype(ml_dtypes.bfloat16), "c": c.astype(ml_dtypes.bfloat16)} if has_terms else {}
        more: dict[str, Any] = {"alpha": alpha, "activation": case.activation, "device": device}
        more |= {"beta": -0.5} if has_terms else {}
        plain_terms = {name: term.astype(np.float32) for name, term in terms.items()}
        finite, amax = gemm(a, b, d_format="fp32", return_amax=True, **plain_terms, **more)
        assert amax == np.abs(finite).max()
        plain = gemm(with_nan_row(a), b, d_format="fp32", **plain_terms, **more)
        assert np.isnan(plain[:, 1]).all()
        unit = float(np.float32(mx.global_scale_of(plain) / 3)) if case.d_format == "nvfp4" else None
        out = poisoned(plain.shape, case.d_format)
        found = gemm(with_nan_row(a), b, d_scale=unit, out=out, **terms, **more)
        want = mx.quantize(plain, case.d_format, global_scale=unit)
        assert found.global_scale == want.global_scale
        assert np.array_equal(found.elements().view(np.uint8), want.elements().view(np.uint8))
        assert np.array_equal(found.scales.view(np.uint8), want.scales.view(np.uint8))
        row_bytes = plain.shape[-1] * found.format.bits // 8
        assert (out.data.view(np.uint8)[..., row_bytes:] == POISON).all()


@pytest.mark.parametrize("case", [*CASES, *SLOW_CASES[:2]], ids=lambda case: case.id)
def test_reference(case: Case) -> None:
    assert_right(case, open_device("cpu"))


@pytest.mark.parametrize(
    "case",
    [*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW_CASES)],
    ids=lambda case: case.id,
)
def test_emulator(case: Case) -> None:
    for schedule in case.schedules:
        assert_right(case, open_device(f"emulator:{case.arch}", schedule=schedule, hazards="strict"))
        launch = registry.get("mx_gemm").last_launch
        assert launch.variant.arch == case.arch


def test_amax_of_nan_and_of_nothing() -> None:
    rng = np.random.default_rng(0)
    a, b = (operand((rows, 64), "mxfp8_e4m3", rng) for rows in (5, 7))
    gemm, amax = registry.get("mx_gemm"), np.full(1, -3.0, np.float32)
    for device in ("cpu", "emulator:sm_100a"):
        d = gemm(with_nan_row(a), b, d_format="fp32", amax=amax, device=device)
        assert isinstance(d, np.ndarray)
        assert np.isnan(amax[0])
    empty = mx.quantize(np.zeros((0, 64), np.float32), "mxfp8_e4m3")
    assert gemm(empty, b, return_amax=True, device="cpu")[1] == [0.0]
    stale = np.full(1, 7.0, np.float32)
    gemm.prepare(empty, b, amax=stale, device="cpu")
    assert stale == [7.0]
    gemm(empty, b, amax=stale, device="cpu")
    assert stale == [0.0]
