# SPDX-License-Identifier: Apache-2.0
"""Activations: what they are in float64, that kernels agree, names, gates, and who may be one."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from leaky_activation import Leaky

from opdeck.core import mx, registry
from opdeck.core.devices import open_device
from opdeck.core.errors import ArgumentError, ArgumentTypeError
from opdeck.core.fusion import Activation, Causal, GatedSilu, Gelu, Relu, Silu
from opdeck.core.operator import Operator
from opdeck.plugins.mx_gemm import plugin, reference, variants

X = np.array([-90.0, -7.0, -1.5, -0.25, 0.0, 0.5, 2.0, 30.0])
BUILT_IN = [Relu(), Gelu(), Silu(), GatedSilu()]


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


def test_relu_and_silu() -> None:
    assert Relu().reference(X).tolist() == [max(x, 0.0) for x in X]
    assert Silu().reference(X) == pytest.approx([silu(x) for x in X], rel=1e-14)
    assert Gelu().reference(X) == pytest.approx([x * 0.5 * (1 + math.erf(x / math.sqrt(2))) for x in X], abs=1e-3)
    gated = GatedSilu().reference(X)
    assert gated == pytest.approx([silu(gate) * value for gate, value in zip(X[::2], X[1::2], strict=True)], rel=1e-14)
    assert np.isnan(Relu().reference(np.array([np.nan]))).all()


@pytest.mark.parametrize("activation", BUILT_IN, ids=lambda activation: activation.name)
def test_kernels_agree_with_the_reference(activation: Activation) -> None:
    sums = np.concatenate([X, np.random.default_rng(0).standard_normal(24) * 4]).astype(np.float32)
    kernel = variants.Kernel(
        factory="layout_probe.kernel:make_activation",
        archs=("sm_100a",),
        formats=(("mxfp8_e4m3", "mxfp8_e4m3"),),
        d_formats=("fp32",),
        tile=variants.Tile("activation", {"num_sums": len(sums)}),
    )
    row = variants._compiled_row(kernel, "sm_100a", kernel.formats[0], "fp32", activation)
    operator = Operator(dataclasses.replace(plugin.MX_GEMM, rows=lambda fusions: (row,)))
    a, b = (
        mx.quantize(np.zeros((1, 32), np.float32), "mxfp8_e4m3"),
        mx.quantize(np.zeros((32, 32), np.float32), "mxfp8_e4m3"),
    )
    got = operator(a, b, bias=sums, d_format="fp32", activation=activation, device=open_device("emulator:sm_100a"))
    epilogue = reference.Epilogue(bias=sums, activation=activation)
    operands = np.zeros((1, 1, 32)), np.zeros((1, 32, 32))
    errors = np.abs(got - reference.gemm(*operands, epilogue)[0])
    assert (errors <= reference.error_bounds(*operands, epilogue, got)[0]).all()


@pytest.mark.parametrize("activation", [None, *BUILT_IN], ids=lambda activation: getattr(activation, "name", "none"))
def test_the_reference_variant_applies_them(activation: Activation | None) -> None:
    rng = np.random.default_rng(1)
    a, b = (mx.quantize(rng.standard_normal(shape).astype(np.float32), "mxfp6_e2m3") for shape in ((5, 64), (6, 64)))
    d = registry.get("mx_gemm")(a, b, alpha=0.5, activation=activation, d_format="fp32", device="cpu")
    sums = 0.5 * mx.exact_values(a) @ mx.exact_values(b).T
    want = sums if activation is None else activation.reference(sums)
    assert np.allclose(d, want, rtol=1e-6)


def test_refusals() -> None:
    gemm = registry.get("mx_gemm")
    a, b = (mx.quantize(np.zeros((rows, 32), np.float32), "mxfp4") for rows in (4, 7))
    with pytest.raises(ArgumentError, match=r"b: got N = 7 in shape \(7, 32\), want a multiple of 2"):
        gemm(a, b, activation=GatedSilu())
    with pytest.raises(ArgumentTypeError, match="activation: got 'relu', want None or an Activation"):
        gemm(a, b, activation="relu")
    with pytest.raises(ArgumentTypeError, match=r"activation: .*want None or an Activation"):
        gemm(a, b, activation=Causal())


def test_a_third_party_has_leaves() -> None:
    a, b = (mx.quantize(np.full((2, 32), value, np.float32), "mxfp8_e4m3") for value in (1.0, -1.0))
    d = registry.get("mx_gemm")(a, b, activation=Leaky(0.25), d_format="fp32", device="cpu")
    assert (d == -8.0).all()
    assert Leaky(0.25).static_key == Leaky(0.5).static_key
