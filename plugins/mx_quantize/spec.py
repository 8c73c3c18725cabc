# SPDX-License-Identifier: Apache-2.0
"""spec.py: the arguments of mx_quantize and the public call.

Who calls it: the plugin.py of mx_gemm, whose operands mx_quantize makes. The rows of SCHEMA are checked in Python
(opdeck.core.problem) and in C (abi/src/bind.c) alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opdeck.core import arrays
from opdeck.core.errors import ArgumentError, ArgumentTypeError
from opdeck.core.family import Request
from opdeck.core.mx import FORMATS, MxTensor, global_scale_of, mx_format
from opdeck.core.mx.formats import SCALE_TILE_BYTES, SCALE_TILE_ROWS, MxFormat
from opdeck.core.mx.quantize import SOURCE_DTYPES, checked_unit
from opdeck.core.mx.tensor import K_MULTIPLE
from opdeck.core.schema import ArgSpec, FamilySchema, Rule
from opdeck.plugins.mx_gemm.spec import ALIGN_BYTES, ORDERS, block_scaled_outputs, k_tiles_rules

_ELEMENTS = tuple(dict.fromkeys(row.element_name for row in FORMATS))
_SCALES = tuple(dict.fromkeys(row.scale_name for row in FORMATS))
_TILES = ("l", "m_tiles", "k_tiles", "tile")

SCHEMA = FamilySchema(
    name="mx_quantize",
    args=(
        ArgSpec("x", "tensor", "read", ("l", "m", "k"), "X", SOURCE_DTYPES, False, ALIGN_BYTES, True),
        ArgSpec("d", "tensor", "write", ("l", "m", "k"), "D", _ELEMENTS, False, ALIGN_BYTES, True),
        ArgSpec("d_block_scale", "tensor", "write", _TILES, "S", _SCALES, False, ALIGN_BYTES, True),
        ArgSpec("d_scale", "f32", optional=True, default=("one", "")),
    ),
    checks=(
        Rule("k", "ge", (K_MULTIPLE,)),
        Rule("k", "multiple_of", (K_MULTIPLE,)),
        Rule("m_tiles", "eq", rhs_field="m", rhs_divisor=SCALE_TILE_ROWS),
        *k_tiles_rules(),
        Rule("tile", "eq", (SCALE_TILE_BYTES,)),
        Rule("d_scale", "gt", (0,)),
    ),
    empty=(Rule("l", "eq", (0,)), Rule("m", "eq", (0,))),
)

# What other libraries call our arguments.
_ALIASES: Mapping[str, str] = {"input": "x", "scale": "global_scale", "dtype": "format"}


def call(
    x: Any, format: str | MxFormat, global_scale: float | None = None, out: MxTensor | None = None, **unknown: Any
) -> Request:
    """The block-scaled tensor nearest to x, bit for bit that of opdeck.core.mx.quantize, made where x is.

    x: (M, K) or (L, M, K) of fp32, fp16 or bf16, K a multiple of 32, rows multiples of 16 bytes apart.
    format: "mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp4" or "nvfp4".
    global_scale: of nvfp4, a positive normal number of fp32. None: that of `out`; else that of x, as mx.global_scale_of
    finds it, which waits for x.
    out: an MxTensor of that format and x's shape, or None for a new one of the library of x.
    device: "cuda:N", "emulator:sm_100a", "cpu", a Device, or None: OPDECK_DEVICE, else where x is.
    stream: a CUstream address or an object with `cuda_stream` or `__cuda_stream__`; None is the current one.

    Block scales are rounded down to a power of two, or to the nearest e4m3 number (nvfp4); what pads their tiles is
    zero. Returns the MxTensor.
    Raises: ArgumentError, ArgumentTypeError (naming argument, got, wanted), Unsupported (a reason a variant).
    """
    for name in unknown:
        want = _ALIASES.get(name, "one that it has")
        raise ArgumentTypeError(name, "an argument that mx_quantize does not have", want)
    row, view = mx_format(format), arrays.view(x, "x")
    if view.dtype not in SOURCE_DTYPES:
        raise ArgumentTypeError("x", f"dtype {view.dtype}", "|".join(SOURCE_DTYPES))
    if len(view.shape) not in ORDERS or view.shape[-1] == 0 or view.shape[-1] % K_MULTIPLE:
        raise ArgumentError("x", f"shape {view.shape}", f"(M, K) or (L, M, K), K a multiple of {K_MULTIPLE}")
    if global_scale is not None and not row.has_global_scale:
        raise ArgumentError("global_scale", global_scale, f"None: {row.name} has none")
    if out is not None and (not isinstance(out, MxTensor) or (out.format, out.shape) != (row, view.shape)):
        got = f"{out.format.name} {out.shape}" if isinstance(out, MxTensor) else type(out).__qualname__
        raise ArgumentError("out", got, f"an MxTensor of {row.name} {view.shape}")
    unit = 1.0
    if row.has_global_scale:
        known = out.global_scale if out is not None and global_scale is None else global_scale
        unit = global_scale_of(x) if known is None else checked_unit(known)
    if out is None:
        out = MxTensor.empty(x, row, view.shape, unit)
    order = ORDERS[len(view.shape)]
    outputs = block_scaled_outputs(out.with_global_scale(unit), order)
    return Request({"x": view.permuted(order)}, outputs, ("d",), {"d_scale": unit}, None)
