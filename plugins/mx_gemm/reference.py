# SPDX-License-Identifier: Apache-2.0
"""reference.py: block-scaled GEMM in float64, the oracle of mx_gemm, and how far from it a result may be.

Who calls it: the tests and `opdeck run` (gemm, error_bounds), the CPU device (make).
Source: D = activation(alpha * A B^T + beta * C + bias), of the numbers that elements and scales stand for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from opdeck.core.fusion import Activation
from opdeck.core.mx.formats import FORMATS
from opdeck.core.mx.quantize import encoded, scaled
from opdeck.core.mx.scale_layout import tile_scales
from opdeck.core.variant import Variant

Array = npt.NDArray[Any]

# Of an activation's results: where e^-x passes fp32's range, x * e^x is lost.
UNDERFLOW = 2.0**-118


@dataclass(frozen=True)
class Epilogue:
    """What is done to the products: activation(alpha * A B^T + beta * C + bias). c: (L, M, N). bias: (N,)."""

    alpha: float = 1.0
    beta: float = 0.0
    c: Array | None = None
    bias: Array | None = None
    activation: Activation | None = None

    def sums(self, products: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """What the activation gets, in float64, of A B^T (L, M, N)."""
        d = self.alpha * products
        if self.c is not None:
            d = d + self.beta * self.c.astype(np.float64)
        return d if self.bias is None else d + self.bias.astype(np.float64)

    def activated(self, sums: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return sums if self.activation is None else self.activation.reference(sums)


def gemm(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64], epilogue: Epilogue) -> npt.NDArray[np.float64]:
    """D (L, M, N) in float64 of a (L, M, K) and b (L, N, K)."""
    return epilogue.activated(epilogue.sums(a @ b.swapaxes(-1, -2)))


def error_bounds(a: Array, b: Array, epilogue: Epilogue, d: Array) -> npt.NDArray[np.float64]:
    """How far from `gemm` each element of d (L, M, N) may be: an fp32 sum of K products, and the output's rounding.

    K * 2^-24 * sum |a b|, times |alpha|, and the same 2^-24 for each further term and product of the epilogue; what
    that makes of an activation's result, which has a relative error of its own; and half an ulp of d's type.
    """
    exact = epilogue.sums(a @ b.swapaxes(-1, -2))
    magnitudes = abs(epilogue.alpha) * (np.abs(a) @ np.abs(b).swapaxes(-1, -2))
    further = np.zeros_like(exact)
    if epilogue.c is not None:
        further = further + np.abs(epilogue.beta * epilogue.c.astype(np.float64))
    if epilogue.bias is not None:
        further = further + np.abs(epilogue.bias.astype(np.float64))
    in_fp32 = 2.0**-24 * (a.shape[-1] * magnitudes + 4 * (magnitudes + further))
    activated, in_fp32 = _through_activation(epilogue.activation, exact, in_fp32)
    bounds: npt.NDArray[np.float64] = in_fp32 + half_ulp(np.abs(activated) + in_fp32, d.dtype)
    return bounds


def _through_activation(
    activation: Activation | None, sums: npt.NDArray[np.float64], errors: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The activation's results of sums, and how far they may be off where the sums are by `errors`."""
    if activation is None:
        return sums, errors
    activated = activation.reference(sums)
    moved = np.zeros_like(activated)
    column = np.arange(sums.shape[-1]) % activation.num_columns
    for signs in itertools.product((-1.0, 1.0), repeat=activation.num_columns):
        moved = np.maximum(moved, np.abs(activation.reference(sums + np.array(signs)[column] * errors) - activated))
    return activated, moved + activation.relative_error * np.abs(activated) + UNDERFLOW


def half_ulp(magnitudes: npt.NDArray[np.float64], dtype: npt.DTypeLike) -> npt.NDArray[np.float64]:
    """Half the distance between neighbours of a float type at each magnitude."""
    info = ml_dtypes.finfo(dtype)
    exponents = np.maximum(np.frexp(magnitudes)[1] - 1, info.minexp)
    half: npt.NDArray[np.float64] = np.ldexp(0.5, exponents - info.nmant)
    return half


def make(variant: Variant) -> Callable[..., None]:
    """The factory of the reference rows: an entry that the CPU device calls with numpy views of the arguments."""
    block, d_scale_name = int(variant.config["block"]), variant.config.get("d_scale")

    def run(tensors: Mapping[str, Array], scalars: Mapping[str, float], fusion: Activation | None) -> None:
        """Writes tensors["d"], rounded to its type or quantised with tensors["d_block_scale"], and tensors["amax"]."""
        a, b = (scaled(tensors[name], tensors[f"{name}_scale"], block) for name in ("a", "b"))
        epilogue = Epilogue(scalars["alpha"], scalars["beta"], tensors.get("c"), tensors.get("bias"), fusion)
        with np.errstate(over="ignore", invalid="ignore"):  # NaN scales, and numbers beyond the output's range
            exact, d = gemm(a, b, epilogue), tensors["d"]
            if "amax" in tensors:
                tensors["amax"][...] = np.abs(exact.astype(np.float32)).max()
            if d_scale_name is None:
                d[...] = exact.astype(d.dtype)
                return
        row = next(row for row in FORMATS if row.element.numpy == d.dtype and row.scale_name == d_scale_name)
        elements, scales = encoded(exact.astype(np.float32), row, scalars["d_scale"])
        d[...], tensors["d_block_scale"][...] = elements, tile_scales(scales)

    return run
