# SPDX-License-Identifier: Apache-2.0
"""quantize.py: numbers to block-scaled tensors and back.

Who calls it: users, the command line, the tests. The arithmetic is numpy's, whatever library the array is of: a tensor
on a GPU travels to the host and back; the operator mx_quantize leaves it there.
Source: OCP Microscaling specification 1.0, section 6.3, for formats with E8M0 scales; for NVFP4 the scale of the tensor
is amax / (6 * 448), that of a block the e4m3 nearest to its amax / 6 in units of it. Quotients are products with the
reciprocal, each rounded to fp32, as a GPU forms them: kernels that quantise agree with this bit for bit.
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
from opdeck.core.scalars import fp32_number

Array = npt.NDArray[Any]

ROUNDINGS = ("floor", "ceil")
SOURCE_DTYPES = ("fp32", "fp16", "bf16")
_E8M0_BIAS = 127
_E4M3_MAX = float(ml_dtypes.finfo(ml_dtypes.float8_e4m3fn).max)
_NVFP4_MAX = float(ml_dtypes.finfo(ml_dtypes.float4_e2m1fn).max) * _E4M3_MAX
_MIN_NORMAL = float(np.finfo(np.float32).tiny)


def quantize(x: Any, format: str | MxFormat, rounding: str = "floor", global_scale: float | None = None) -> MxTensor:
    """The block-scaled tensor nearest to x: (rows, K) or (batch, rows, K), K a multiple of 32.

    x: fp32, fp16 or bf16, of numpy or torch; the result is of the same library and device.
    rounding: of block scales. "floor" is the standards' own: a power of two scale is rounded down (OCP), so that the
    largest elements of a block may saturate, an e4m3 scale to nearest; "ceil" rounds scales up, so that none does.
    global_scale: of NVFP4, a positive normal number of fp32; None is that of x, as global_scale_of has it.
    Elements are rounded to nearest even and saturate. A block of zeros has the scale byte 0; one with a NaN or an
    infinity has a NaN scale and elements 0.

    Raises: ArgumentError, ArgumentTypeError.
    """
    row = mx_format(format)
    if rounding not in ROUNDINGS:
        raise ArgumentError("rounding", repr(rounding), "|".join(ROUNDINGS))
    view = arrays.view(x, "x")
    if view.dtype not in SOURCE_DTYPES:
        raise ArgumentTypeError("x", f"dtype {view.dtype}", "|".join(SOURCE_DTYPES))
    if len(view.shape) not in (2, 3) or view.shape[-1] == 0 or view.shape[-1] % K_MULTIPLE:
        raise ArgumentError("x", f"shape {view.shape}", f"(rows, K) or (batch, rows, K), K a multiple of {K_MULTIPLE}")
    values = transfer.to_numpy(x).astype(np.float32)
    if global_scale is not None and not row.has_global_scale:
        raise ArgumentError("global_scale", global_scale, f"None: {row.name} has none")
    unit = 1.0
    if row.has_global_scale:
        unit = global_scale_of(values) if global_scale is None else checked_unit(global_scale)
    elements, scales = encoded(values, row, unit, rounding)
    data = transfer.to_library(_in_rows(elements, row), x)
    return MxTensor(row, data, transfer.to_library(tile_scales(scales), x), values.shape, unit)


def global_scale_of(x: Any) -> float:
    """The fp32 number that NVFP4 multiplies the whole of x with: amax / (6 * 448), 1 where x is zero, never subnormal.

    x: an array of numpy or torch; what is not finite does not count. On a GPU it waits for x.
    """
    if arrays.is_torch(x):
        import torch

        magnitudes = torch.where(x.isfinite(), x.abs(), 0.0)
        return _scale_to(float(magnitudes.max()) if magnitudes.numel() else 0.0)
    magnitudes = np.abs(np.asarray(x).astype(np.float32))
    return _scale_to(float(magnitudes.max(where=np.isfinite(magnitudes), initial=0.0)))


def checked_unit(given: float, argument: str = "global_scale") -> float:
    """A global scale as fp32.

    Raises: ArgumentError, ArgumentTypeError.
    """
    unit = fp32_number(argument, given)
    if unit < _MIN_NORMAL:
        raise ArgumentError(argument, given, "a positive normal number of fp32")
    return unit


def encoded(
    values: npt.NDArray[np.float32], row: MxFormat, unit: float, rounding: str = "floor"
) -> tuple[Array, Array]:
    """Elements (..., rows, K), a byte each, and scales (..., rows, K / block) of fp32 values in units of `unit`."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        blocks = values * (np.float32(1.0) / np.float32(unit))
        blocks = blocks.reshape(*values.shape[:-1], values.shape[-1] // row.block, row.block)
        is_finite = np.isfinite(values).reshape(blocks.shape).all(axis=-1)
        amax = np.where(is_finite, np.abs(blocks).max(axis=-1), np.float32(0.0))
        codes, inverses = (_e4m3_scales if row.has_global_scale else _e8m0_scales)(amax, row, rounding)
        is_used = is_finite & (inverses > 0.0)
        scaled_blocks = np.where(is_used[..., None], blocks * inverses[..., None], np.float32(0.0))
    elements = np.clip(scaled_blocks, -row.max_normal, row.max_normal).astype(row.element.numpy)
    nan = np.array(np.nan).astype(row.scale.numpy).view(np.uint8) & (0xFF if row.scale_name == "e8m0" else 0x7F)
    scales = np.where(is_finite, codes, nan).astype(np.uint8).view(row.scale.numpy)
    return elements.reshape(values.shape), scales


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


def _scale_to(amax: float) -> float:
    return float(np.float32(max(amax / _NVFP4_MAX, _MIN_NORMAL))) if amax > 0.0 else 1.0


def _e8m0_scales(amax: Array, row: MxFormat, rounding: str) -> tuple[Array, Array]:
    """Scale bytes of blocks, and the reciprocals of their values, in fp32."""
    exponents = np.frexp(amax)[1] - 1 - row.emax
    if rounding == "ceil":
        exponents += amax.astype(np.float64) > np.ldexp(row.max_normal, exponents)
    exponents = np.where(amax > 0.0, np.clip(exponents, -_E8M0_BIAS, _E8M0_BIAS), -_E8M0_BIAS)
    return exponents + _E8M0_BIAS, np.ldexp(np.float32(1.0), -exponents)


def _e4m3_scales(amax: Array, row: MxFormat, rounding: str) -> tuple[Array, Array]:
    """The same of e4m3 scales, never negative; 0 in the place of 1 / 0."""
    wanted = np.minimum(amax * (np.float32(1.0) / np.float32(row.max_normal)), np.float32(_E4M3_MAX))
    codes = wanted.astype(row.scale.numpy).view(np.uint8)
    if rounding == "ceil":
        is_low = codes.view(row.scale.numpy).astype(np.float32) < wanted
        codes = codes + is_low.astype(np.uint8)  # positive codes are in the order of their values
    scales = codes.view(row.scale.numpy).astype(np.float32)
    return codes, np.divide(np.float32(1.0), scales, out=np.zeros_like(scales), where=scales > 0.0)


def _in_rows(elements: Array, row: MxFormat) -> Array:
    """Elements in memory: as they are, or packed in rows of the format's pitch, padded with zeros."""
    if row.bits == 8:
        return elements
    k = elements.shape[-1]
    padding = [(0, 0)] * (elements.ndim - 1) + [(0, row.pitch_elems(k) - k)]
    return arrays.aligned_copy(pack(np.pad(elements.view(np.uint8), padding), row.bits))
