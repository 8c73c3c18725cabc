# SPDX-License-Identifier: Apache-2.0
"""Activations in the kernels of mx_gemm, a third party's with a leaf among them, after alpha, C and bias.

Gated ones too, in tiles that D ends in, of a type that makes several boxes of C for one of D and of one that does not.
"""

from __future__ import annotations

import numpy as np
import pytest
from leaky_activation import Leaky

from opdeck.core import dtypes, mx, registry
from opdeck.core.devices import open_device
from opdeck.core.fusion import Activation, GatedSilu, Silu
from opdeck.plugins.mx_gemm import reference


@pytest.mark.parametrize(
    ("arch", "schedule", "activation", "formats", "d_format"),
    [
        ("sm_100a", "random:3", Silu(), ("mxfp8_e4m3", "mxfp8_e4m3"), "fp32"),
        ("sm_100a", "random:3", Leaky(0.25), ("mxfp8_e4m3", "mxfp8_e4m3"), "fp32"),
        ("sm_100a", "eager", GatedSilu(), ("mxfp8_e4m3", "mxfp4"), "bf16"),
        ("sm_100a", "random:1", GatedSilu(), ("mxfp8_e4m3", "mxfp4"), "bf16"),
        ("sm_103a", "lazy", GatedSilu(), ("nvfp4", "nvfp4"), "fp32"),
    ],
)
def test_emulator(arch: str, schedule: str, activation: Activation, formats: tuple[str, str], d_format: str) -> None:
    rng = np.random.default_rng(0)
    m, n, element = 135, 296, dtypes.dtype(d_format).numpy
    x, y = (rng.standard_normal((rows, 160)).astype(np.float32) for rows in (m, n))
    a, b = mx.quantize(x, formats[0]), mx.quantize(y, formats[1])
    c, bias = rng.standard_normal((m, n)).astype(element), rng.standard_normal(n).astype(element)
    out = np.full((m, 304 // activation.num_columns), np.nan).astype(element)[:, : n // activation.num_columns]
    gemm = registry.get("mx_gemm")
    device = open_device(f"emulator:{arch}", schedule=schedule, hazards="strict")
    gemm(a, b, c, bias, 0.5, -2.0, d_format, activation, out, device=device)
    epilogue = reference.Epilogue(0.5, -2.0, c, bias, activation)
    exact_a, exact_b = mx.exact_values(a), mx.exact_values(b)
    errors = np.abs(out.astype(np.float64) - reference.gemm(exact_a, exact_b, epilogue))
    assert (errors <= reference.error_bounds(exact_a, exact_b, epilogue, out)).all()
    assert gemm.last_launch.variant.arch == arch
