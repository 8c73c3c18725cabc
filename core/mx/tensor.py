# SPDX-License-Identifier: Apache-2.0
"""tensor.py: a block-scaled tensor: elements, block scales, format.

Who calls it: quantize makes one, users wrap the buffers of another library in one, mx_gemm takes them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from opdeck.core import arrays, transfer
from opdeck.core.arrays import TensorView
from opdeck.core.errors import ArgumentError, ArgumentTypeError
from opdeck.core.mx.formats import SCALE_TILE_BYTES, MxFormat, mx_format
from opdeck.core.mx.scale_layout import tile_scales, untile_scales
from opdeck.core.scalars import fp32_number, int32_number

K_MULTIPLE = 32
RANKS = (2, 3)
SCALE_LAYOUTS = ("128x4", "linear")


@dataclass(frozen=True, eq=False)
class MxTensor:
    """Numbers (rows, K) or (batch, rows, K), K a multiple of 32, as elements and block scales along K.

    data: elements, a row's side by side: of 8 bits as themselves, (..., rows, K), and a column's may lie side by side
    instead; of 6 and 4 bits packed in bytes, (..., rows, pitch_elems * bits / 8), FP4's first in the low nibble.
    scales: tiles (..., ceil(rows / 128), ceil(K / block / 4), 512); what pads them may hold anything.
    global_scale: fp32; what the numbers are multiplied with besides.

    Raises: ArgumentError, ArgumentTypeError naming the field, what it got and what it wants.
    """

    format: MxFormat
    data: Any
    scales: Any
    shape: tuple[int, ...]
    global_scale: float = 1.0

    def __post_init__(self) -> None:
        _check_shape("shape", self.shape)
        fp32_number("global_scale", self.global_scale)
        self._check_data()
        self._check_scales()

    @classmethod
    def from_parts(
        cls,
        data: Any,
        scales: Any,
        format: str | MxFormat,
        k: int | None = None,
        layout: str = "128x4",
        global_scale: float = 1.0,
    ) -> MxTensor:
        """The tensor of buffers that exist, of numpy or torch.

        data: as the class says. k: elements of a row that count; all of them by default.
        scales: contiguous, a byte each: "128x4" tiles in any shape, or "linear", (..., rows, K / block), which are
        copied into tiles.
        """
        row = mx_format(format)
        if layout not in SCALE_LAYOUTS:
            raise ArgumentError("layout", repr(layout), "|".join(SCALE_LAYOUTS))
        data = transfer.reinterpreted(data, row.element.name, "data")
        scales = transfer.reinterpreted(scales, row.scale.name, "scales")
        if len(data.shape) not in RANKS:
            raise ArgumentError("data", f"shape {tuple(data.shape)}", "(rows, K) or (batch, rows, K)")
        shape = (*data.shape[:-1], data.shape[-1] * 8 // row.bits if k is None else int32_number("k", k))
        _check_shape("data" if k is None else "k", shape)
        *batch, rows, k_elems = shape
        linear_shape = (*batch, rows, row.num_blocks(k_elems))
        tiles_shape = (*batch, *row.scale_tiles(rows, k_elems), SCALE_TILE_BYTES)
        wanted = linear_shape if layout == "linear" else tiles_shape
        if prod(scales.shape) != prod(wanted):
            want = f"{prod(wanted)} for {row.name} {shape} in layout {layout}, {wanted}"
            raise ArgumentError("scales", f"{prod(scales.shape)} bytes, shape {tuple(scales.shape)}", want)
        scales = scales.reshape(wanted)
        if layout == "linear":
            scales = transfer.to_library(tile_scales(transfer.to_numpy(scales)), scales)
        return cls(row, data, scales, shape, global_scale)

    @classmethod
    def empty(cls, like: Any, format: MxFormat, shape: tuple[int, ...], global_scale: float = 1.0) -> MxTensor:
        """A tensor to be written to, of the library and on the device of the array `like`. What pads rows is zero."""
        *batch, rows, k = shape
        if format.bits == 8:
            data = arrays.allocate(like, shape, format.element.name)
        else:
            bytes_shape = (*batch, rows, format.pitch_elems(k) * format.bits // 8)
            if isinstance(like, np.ndarray):
                data = arrays.aligned_copy(np.zeros(bytes_shape, np.uint8))
            else:
                data = arrays.allocate(like, bytes_shape, "uint8")
                data[...] = 0
        scales_shape = (*batch, *format.scale_tiles(rows, k), SCALE_TILE_BYTES)
        return cls(format, data, arrays.allocate(like, scales_shape, format.scale.name), shape, global_scale)

    def with_global_scale(self, global_scale: float) -> MxTensor:
        """The same elements and block scales, in other units."""
        return self if global_scale == self.global_scale else replace(self, global_scale=global_scale)

    @property
    def pitch_elems(self) -> int:
        """Elements from one row to the next; from one column to the next where a column's lie side by side."""
        return int(max(self.elements_view("data").strides[-2:]))

    @property
    def linear_scales(self) -> Any:
        """A copy of the scales as (..., rows, K / block)."""
        matrix = untile_scales(transfer.to_numpy(self.scales), self.shape[-2], self.format.num_blocks(self.shape[-1]))
        return transfer.to_library(matrix, self.scales)

    def elements(self) -> npt.NDArray[Any]:
        """The elements as an array of ml_dtypes, on the host, of this tensor's shape. A copy where they are packed."""
        host = transfer.to_numpy(self.data)
        view = _elements_view(arrays.view(host, "data"), self.shape, self.format)
        return arrays.as_numpy(view)

    def elements_view(self, argument: str) -> TensorView:
        """The elements as kernels see them: (..., rows, K) of the format's type."""
        return _elements_view(arrays.view(self.data, argument), self.shape, self.format)

    def scales_view(self, argument: str) -> TensorView:
        """The scales as kernels see them."""
        return arrays.view(self.scales, argument)._replace(dtype=self.format.scale.name)

    def _check_data(self) -> None:
        view, row = arrays.view(self.data, "data"), self.format
        wanted = "uint8" if row.bits < 8 else row.element.name
        if view.dtype != wanted:
            hint = f"packed elements of {row.bits} bits" if row.bits < 8 else ""
            raise ArgumentTypeError("data", f"dtype {view.dtype}", wanted, hint)
        row_bytes = -(-self.shape[-1] * row.bits // 8)
        if view.shape[:-1] != self.shape[:-1] or view.shape[-1] < row_bytes:
            raise ArgumentError("data", f"shape {view.shape}", f"{(*self.shape[:-1], row_bytes)}, or longer rows")
        if view.shape[-1] > 1 and view.strides[-1] != 1 and (row.bits < 8 or view.strides[-2] != 1):
            raise ArgumentError("data", f"a stride of {view.strides[-1]} in the last dim", "1")
        if any(stride * 8 % row.bits for stride in view.strides[:-1]):
            raise ArgumentError("data", f"strides of {view.strides} bytes", f"whole elements of {row.bits} bits")

    def _check_scales(self) -> None:
        view, row = arrays.view(self.scales, "scales"), self.format
        *batch, rows, k = self.shape
        if view.dtype != ("fp8_e4m3" if row.scale.name == "ue4m3" else row.scale.name):
            raise ArgumentTypeError("scales", f"dtype {view.dtype}", row.scale.name)
        wanted = (*batch, *row.scale_tiles(rows, k), SCALE_TILE_BYTES)
        if view.shape != wanted:
            raise ArgumentError(
                "scales", f"shape {view.shape}", f"{wanted}, the 128x4 tiles of {row.name} {self.shape}"
            )


def _check_shape(argument: str, shape: tuple[int, ...]) -> None:
    if len(shape) not in RANKS or shape[-1] <= 0 or shape[-1] % K_MULTIPLE:
        want = f"(rows, K) or (batch, rows, K), K a multiple of {K_MULTIPLE}"
        raise ArgumentError(argument, shape, want)


def _elements_view(bytes_view: TensorView, shape: tuple[int, ...], row: MxFormat) -> TensorView:
    strides = tuple(stride * 8 // row.bits for stride in bytes_view.strides[:-1])
    last = bytes_view.strides[-1] if row.bits == 8 else 1
    return bytes_view._replace(shape=shape, strides=(*strides, last), dtype=row.element.name)
