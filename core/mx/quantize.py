# SPDX-License-Identifier: Apache-2.0
"""quantize.py: numbers to block-scaled tensors and back.

Who calls it: users, the command line, the tests. The arithmetic is numpy's, in float64, whatever library the array is
of: a tensor on a GPU travels to the host and back.
Source: OCP Microscaling specification 1.0, section 6.3, for formats with E8M0 scales; for NVFP4 the scale of the tensor
is amax / (6 * 448), that of a block the e4m3 nearest to its amax / 6 in units of it.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from opdeck.core import arrays, transfer
from opdeck.core.errors import ArgumentError, ArgumentTypeError
from opdeck.core.mx.formats import MxFormat, mx_format
from opdeck.core.mx.scale_layout import tile_scales, untile_scales
from opdeck.core.mx.tensor import K_MULTIPLE, MxTensor
from opdeck.core.packing import pack

Array = npt.NDArray[Any]

ROUNDINGS = ("floor", "ceil")
_E8M0_BIAS = 127
_E8M0_NAN = 255
_E4M3_MAX = float(ml_dtypes.finfo(ml_dtypes.float8_e4m3fn).max)


def quantize(x: Any, format: str | MxFormat, rounding: str = "floor") -> MxTensor:
    """The block-scaled tensor nearest to x: (rows, K) or (batch, rows, K), K a multiple of 32.

    x: fp32, fp16 or bf16, of numpy or torch; the result is of the same library and device.
    rounding: of block scales. "floor" is the standards' own: a power of two scale is rounded down (OCP), so that the
    largest elements of a block may saturate, an e4m3 scale to nearest; "ceil" rounds scales up, so that none does.
    Elements are rounded to nearest even and saturate. A block of zeros has the scale byte 0; one with a NaN or an
    infinity has a NaN scale and elements 0.

    Raises: ArgumentError, ArgumentTypeError.
    """
    row = mx_format(format)
    if rounding not in ROUNDINGS:
        raise ArgumentError("rounding", repr(rounding), "|".join(ROUNDINGS))
    view = arrays.view(x, "x")
    if view.dtype not in ("fp32", "fp16", "bf16"):
        raise ArgumentTypeError("x", f"dtype {view.dtype}", "fp32|fp16|bf16")
    if len(view.shape) not in (2, 3) or view.shape[-1] == 0 or view.shape[-1] % K_MULTIPLE:
        raise ArgumentError("x", f"shape {view.shape}", f"(rows, K) or (batch, rows, K), K a multiple of {K_MULTIPLE}")
    values = transfer.to_numpy(x).astype(np.float64)
    blocks = values.reshape(*values.shape[:-1], -1, row.block)
    amax = np.abs(blocks).max(axis=-1)  # NaN or infinite where the block has one
    global_scale = _global_scale(amax) if row.has_global_scale else 1.0
    codes, scales = (_e4m3_scales if row.has_global_scale else _e8m0_scales)(amax / global_scale, row, rounding)
    elements = _elements(blocks, scales * global_scale, row).reshape(values.shape)
    data = transfer.to_library(_in_rows(elements, row), x)
    return MxTensor(row, data, transfer.to_library(tile_scales(codes), x), values.shape, global_scale)


def dequantize(tensor: MxTensor) -> Any:
    """The fp32 numbers of a tensor, as an array of its library; what passes fp32's range is infinite."""
    values = exact_values(tensor)
    with np.errstate(over="ignore"):
        return transfer.to_library(values.astype(np.float32), tensor.data)


def exact_values(tensor: MxTensor) -> npt.NDArray[np.float64]:
    """The numbers of a tensor in float64, which holds them exactly but for the rounding of a global scale."""
    return scaled(tensor.elements(), transfer.to_numpy(tensor.scales), tensor.format.block) * tensor.global_scale


def scaled(elements: Array, scale_tiles: Array, block: int) -> npt.NDArray[np.float64]:
    """elements (..., rows, K) times their block scales, tiles (..., row tiles, column tiles, 512), in float64."""
    *_, rows, k = elements.shape
    scales = untile_scales(scale_tiles, rows, -(-k // block)).astype(np.float64)
    values: npt.NDArray[np.float64] = elements.astype(np.float64) * np.repeat(scales, block, axis=-1)[..., :k]
    return values


def _global_scale(amax: Array) -> float:
    """The fp32 scale of a tensor, from the largest magnitudes of its blocks."""
    finite = amax[np.isfinite(amax)]
    largest = float(finite.max()) if finite.size else 0.0
    scale = float(np.float32(largest / (float(ml_dtypes.finfo(ml_dtypes.float4_e2m1fn).max) * _E4M3_MAX)))
    return scale if scale > 0.0 else 1.0


def _e8m0_scales(amax: Array, row: MxFormat, rounding: str) -> tuple[Array, Array]:
    """Scale bytes of blocks, as e8m0, and their values."""
    is_finite = np.isfinite(amax)
    known = np.where(is_finite, amax, 0.0)
    exponents = np.frexp(known)[1] - 1 - row.emax
    if rounding == "ceil":
        exponents += known > np.ldexp(row.max_normal, exponents)
    exponents = np.where(known > 0.0, np.clip(exponents, -_E8M0_BIAS, _E8M0_BIAS), -_E8M0_BIAS)
    codes = np.where(is_finite, exponents + _E8M0_BIAS, _E8M0_NAN).astype(np.uint8)
    return codes.view(row.scale.numpy), np.where(is_finite, np.ldexp(1.0, exponents), np.nan)


def _e4m3_scales(amax: Array, row: MxFormat, rounding: str) -> tuple[Array, Array]:
    """The same as e4m3, never negative; NaN where amax is not finite."""
    is_finite = np.isfinite(amax)
    wanted = np.where(is_finite, amax, 0.0) / row.max_normal
    codes = np.minimum(wanted, _E4M3_MAX).astype(row.scale.numpy).view(np.uint8)
    if rounding == "ceil":
        is_low = codes.view(row.scale.numpy).astype(np.float64) < np.minimum(wanted, _E4M3_MAX)
        codes = codes + is_low.astype(np.uint8)  # positive codes are in the order of their values
    nan = np.array(np.nan).astype(row.scale.numpy).view(np.uint8) & 0x7F
    scales = np.where(is_finite, codes, nan).astype(np.uint8).view(row.scale.numpy)
    return scales, scales.astype(np.float64)


def _elements(blocks: Array, scales: Array, row: MxFormat) -> Array:
    """blocks / scales, rounded to elements; 0 where a scale is 0 or NaN."""
    is_used = (scales > 0.0)[..., None]
    divisors = np.where(is_used, scales[..., None], 1.0)
    quotients = np.where(is_used, blocks, 0.0) / divisors
    return np.clip(quotients, -row.max_normal, row.max_normal).astype(row.element.numpy)


def _in_rows(elements: Array, row: MxFormat) -> Array:
    """Elements in memory: as they are, or packed in rows of the format's pitch, padded with zeros."""
    if row.bits == 8:
        return elements
    k = elements.shape[-1]
    padding = [(0, 0)] * (elements.ndim - 1) + [(0, row.pitch_elems(k) - k)]
    return arrays.aligned_copy(pack(np.pad(elements.view(np.uint8), padding), row.bits))
