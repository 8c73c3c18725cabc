# SPDX-License-Identifier: Apache-2.0
"""Activations in the kernels of mx_gemm, a third party's with a leaf among them, after alpha, C and bias."""

from __future__ import annotations

import numpy as np
import pytest
from leaky_activation import Leaky

from opdeck.core import mx, registry
from opdeck.core.devices import open_device
from opdeck.core.fusion import Activation, Silu
from opdeck.plugins.mx_gemm import reference


@pytest.mark.parametrize("activation", [Silu(), Leaky(0.25)], ids=lambda activation: activation.name)
def test_emulator(activation: Activation) -> None:
    rng = np.random.default_rng(0)
    a, b = (mx.quantize(rng.standard_normal((rows, 160)).astype(np.float32), "mxfp8_e4m3") for rows in (70, 136))
    c, bias = rng.standard_normal((70, 136)).astype(np.float32), rng.standard_normal(136).astype(np.float32)
    gemm = registry.get("mx_gemm")
    device = open_device("emulator:sm_100a", schedule="random:3")
    d = gemm(a, b, c, bias, 0.5, -2.0, "fp32", activation, device=device)
    epilogue = reference.Epilogue(0.5, -2.0, c, bias, activation)
    x, y = mx.exact_values(a), mx.exact_values(b)
    assert (np.abs(d - reference.gemm(x, y, epilogue)) <= reference.error_bounds(x, y, epilogue, d)).all()
    assert gemm.last_launch.variant.arch == "sm_100a"
