# SPDX-License-Identifier: Apache-2.0
"""spec.py: the arguments of mx_gemm and the public call.

Who calls it: plugin.py. The rows of SCHEMA are checked in Python (opdeck.core.problem) and in C (abi/src/bind.c) alike.
Extents and strides are those of elements, also where they take 4 or 6 bits: K is the K of the product.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opdeck.core import arrays
from opdeck.core.arrays import TensorView
from opdeck.core.errors import ArgumentError, ArgumentTypeError
from opdeck.core.family import OutputSpec, Request
from opdeck.core.fusion import Activation
from opdeck.core.mx import FORMATS, MxTensor
from opdeck.core.mx.formats import SCALE_TILE_BYTES, SCALE_TILE_COLS, SCALE_TILE_ROWS, mx_format
from opdeck.core.mx.quantize import checked_unit
from opdeck.core.mx.tensor import K_MULTIPLE
from opdeck.core.scalars import fp32_number
from opdeck.core.schema import ArgSpec, FamilySchema, Rule

OUTPUT_DTYPES = ("fp16", "bf16", "fp32")
BLOCK_SCALED_OUTPUTS = ("mxfp8_e4m3", "mxfp8_e5m2", "mxfp4", "nvfp4")

_ELEMENTS = tuple(dict.fromkeys(row.element_name for row in FORMATS))
_SCALES = tuple(dict.fromkeys(row.scale_name for row in FORMATS))
_OUTPUT_ELEMENTS = tuple(dict.fromkeys(mx_format(name).element_name for name in BLOCK_SCALED_OUTPUTS))
ALIGN_BYTES = 16


def _tensor(name: str, dims: tuple[str, ...], symbol: str, dtypes: tuple[str, ...], **more: Any) -> ArgSpec:
    return ArgSpec(
        name,
        "tensor",
        dims=dims,
        dtype_symbol=symbol,
        dtypes=dtypes,
        align_bytes=ALIGN_BYTES,
        contiguous_last=True,
        **more,
    )


def k_tiles_rules() -> tuple[Rule, ...]:
    """Tiles of scales along K, for scales of each type."""
    blocks = {row.scale: row.block for row in FORMATS}
    return tuple(
        Rule("k_tiles", "eq", rhs_field="k", rhs_divisor=block * SCALE_TILE_COLS, when=("dtype.S", scale.number))
        for scale, block in blocks.items()
    )


SCHEMA = FamilySchema(
    name="mx_gemm",
    args=(
        _tensor("a", ("l", "m", "k"), "A", _ELEMENTS, transposable=True),
        _tensor("b", ("l", "n", "k"), "B", _ELEMENTS, transposable=True),
        # Tiles of 128 rows by 4 blocks, 512 bytes each: opdeck.core.mx.scale_layout.
        _tensor("a_scale", ("l", "m_tiles", "k_tiles", "tile"), "S", _SCALES),
        _tensor("b_scale", ("l", "n_tiles", "k_tiles", "tile"), "S", _SCALES),
        _tensor("c", ("l", "m", "n"), "C", OUTPUT_DTYPES, optional=True),
        _tensor("bias", ("n",), "C", OUTPUT_DTYPES, optional=True),
        _tensor("d", ("l", "m", "n_out"), "D", (*OUTPUT_DTYPES, *_OUTPUT_ELEMENTS), access="write"),
        _tensor("d_block_scale", ("l", "m_tiles", "n_out_tiles", "tile"), "DS", _SCALES, access="write", optional=True),
        ArgSpec("amax", "tensor", "write", ("one",), "X", ("fp32",), optional=True, align_bytes=4),
        ArgSpec("alpha", "f32", optional=True, default=("one", "")),
        ArgSpec("beta", "f32", optional=True, default=("zero", "")),
        ArgSpec("max_ctas", "i32", optional=True, default=("num_sms", "")),
        ArgSpec("d_scale", "f32", optional=True, default=("one", "")),
    ),
    checks=(
        Rule("k", "ge", (K_MULTIPLE,)),
        Rule("k", "multiple_of", (K_MULTIPLE,)),
        Rule("pitch.a", "ge", rhs_field="k", when=("transposed.a", 0)),
        Rule("pitch.b", "ge", rhs_field="k", when=("transposed.b", 0)),
        Rule("pitch.a", "ge", rhs_field="m", when=("transposed.a", 1)),
        Rule("pitch.b", "ge", rhs_field="n", when=("transposed.b", 1)),
        Rule("m_tiles", "eq", rhs_field="m", rhs_divisor=SCALE_TILE_ROWS),
        Rule("n_tiles", "eq", rhs_field="n", rhs_divisor=SCALE_TILE_ROWS),
        *k_tiles_rules(),
        Rule("tile", "eq", (SCALE_TILE_BYTES,)),
        Rule("max_ctas", "ge", (1,)),
        Rule("one", "eq", (1,), when=("has.amax", 1)),
        Rule("dtype.C", "eq", rhs_field="dtype.D", when=("has.d_block_scale", 0)),
        Rule("d_scale", "gt", (0,)),
    ),
    empty=(Rule("l", "eq", (0,)), Rule("m", "eq", (0,)), Rule("n", "eq", (0,))),
)

# What other libraries call our arguments.
_ALIASES: Mapping[str, str] = {
    "mat_a": "a",
    "mat_b": "b",
    "scale_a": "a, an opdeck.core.mx.MxTensor of elements and scales",
    "scale_b": "b, an opdeck.core.mx.MxTensor of elements and scales",
    "out_dtype": "d_format",
    "output": "out",
    "m_offsets": "one product of each batch: m_offsets is kept for grouped products, which no kernel computes yet",
}

# Dims of a schema's (l, m, n) among those of an array with and without a batch.
ORDERS: Mapping[int, tuple[int | None, ...]] = {2: (None, 0, 1), 3: (0, 1, 2)}


def call(
    a: MxTensor,
    b: MxTensor,
    c: Any = None,
    bias: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    d_format: str = "bf16",
    activation: Activation | None = None,
    out: Any = None,
    max_ctas: int | None = None,
    d_scale: float | None = None,
    return_amax: bool = False,
    amax: Any = None,
    **unknown: Any,
) -> Request:
    """Block-scaled GEMM: D = activation(alpha * A B^T + beta * C + bias).

    a: MxTensor (M, K) or (L, M, K). b: MxTensor (N, K) or (L, N, K). L products, each of the matrices of one index. Any
    M and N, K a multiple of 32. Formats may differ where both have blocks of 32.
    c: (M, N) or (L, M, N) of D's type; wanted where beta is not 0, and read where it is 0 too, NaN and all.
    bias: (N,) of D's type. Both bf16 where D is block-scaled.
    d_format: of D: "fp16", "bf16", "fp32", or block-scaled, N a multiple of 32: "mxfp8_e4m3", "mxfp8_e5m2", "mxfp4" or
    "nvfp4", the fp32 numbers quantised as `opdeck.core.mx.quantize` does; that of `out` where it is given.
    activation: None or an Activation such as Relu(). A gated one makes a column of D of two: D is (M, N / 2).
    out: (M, N) or (L, M, N), an MxTensor where D is block-scaled, or None for a new array of the library of a's data.
    The rows of c and out begin multiples of 16 bytes apart (32 for elements of 4 bits); those of a new array do, and so
    it may be a view of a wider one.
    max_ctas: CTAs that the product may take at a time, whole clusters of them and at least one; None is one for each SM
    of the device. Fewer leave SMs to other work.
    d_scale: the global scale of an nvfp4 D, a positive normal number of fp32; that of `out`, else 1.
    amax: (1,) fp32, the largest |D| before it is rounded or quantised; given or with return_amax=True.
    device: "cuda:N", "emulator:sm_100a", "cpu", a Device, or None: OPDECK_DEVICE, else where the arrays are.
    stream: a CUstream address or an object with `cuda_stream` or `__cuda_stream__`; None is the current one.

    Sums are in fp32. Returns D, or (D, amax) with return_amax.
    Raises: ArgumentError, ArgumentTypeError (naming argument, got, wanted), Unsupported (a reason a variant).
    """
    for name in unknown:
        raise ArgumentTypeError(name, "an argument that mx_gemm does not have", _ALIASES.get(name, "one that it has"))
    for name, operand in (("a", a), ("b", b)):
        if not isinstance(operand, MxTensor):
            raise ArgumentTypeError(name, type(operand).__qualname__, "an MxTensor", "opdeck.core.mx.quantize")
    _check_operands(a, b)
    if activation is not None and not isinstance(activation, Activation):
        raise ArgumentTypeError("activation", repr(activation), "None or an Activation", "such as Relu()")
    columns = 1 if activation is None else activation.num_columns
    if b.shape[-2] % columns:
        raise ArgumentError("b", f"N = {b.shape[-2]} in shape {b.shape}", f"a multiple of {columns}, for {activation}")
    alpha, beta = fp32_number("alpha", alpha), fp32_number("beta", beta)
    if c is None and beta != 0:
        raise ArgumentError("beta", beta, "0 where there is no c")
    shape = (*a.shape[:-1], b.shape[-2] // columns)
    order = ORDERS[len(shape)]
    out = _checked_out(out, a.data, shape, d_format, d_scale)
    inputs = {
        "a": a.elements_view("a").permuted(order),
        "b": b.elements_view("b").permuted(order),
        "a_scale": _tiles(a.scales_view("a.scales")),
        "b_scale": _tiles(b.scales_view("b.scales")),
    }
    if c is not None:
        inputs["c"] = arrays.view(c, "c").permuted(order)
    if bias is not None:
        inputs["bias"] = arrays.view(bias, "bias")
    scalars = {"alpha": alpha * a.global_scale * b.global_scale, "beta": beta}
    outputs = _d_outputs(out, order)
    if isinstance(out, MxTensor):
        scalars["d_scale"] = out.global_scale
    if max_ctas is not None:
        scalars["max_ctas"] = max_ctas
    if return_amax or amax is not None:
        if amax is None:
            amax = arrays.allocate(a.data, (1,), "fp32")
        outputs["amax"] = OutputSpec(amax, a.data, "amax", (0,), empty_value=0.0)
    return Request(inputs, outputs, ("d", "amax") if return_amax else ("d",), scalars, activation)


def _checked_out(out: Any, like: Any, shape: tuple[int, ...], d_format: str, d_scale: float | None) -> Any:
    """The given output, or a new one in the library of `like`: an array, or an MxTensor where D is block-scaled."""
    if isinstance(out, MxTensor):
        d_format = out.format.name
    elif out is not None and d_format in BLOCK_SCALED_OUTPUTS:
        raise ArgumentTypeError("out", type(out).__qualname__, f"an MxTensor, for {d_format}")
    elif d_format not in (*OUTPUT_DTYPES, *BLOCK_SCALED_OUTPUTS):
        raise ArgumentError("d_format", repr(d_format), "|".join((*OUTPUT_DTYPES, *BLOCK_SCALED_OUTPUTS)))
    if d_scale is not None and d_format != "nvfp4":
        raise ArgumentError("d_scale", d_scale, f"None: {d_format} has no scale of the tensor")
    if d_format in BLOCK_SCALED_OUTPUTS and (shape[-1] == 0 or shape[-1] % K_MULTIPLE):
        raise ArgumentError("b", f"{shape[-1]} columns of D", f"a multiple of {K_MULTIPLE}, for {d_format}")
    unit = None if d_scale is None else checked_unit(d_scale, "d_scale")
    if out is None and d_format in BLOCK_SCALED_OUTPUTS:
        return MxTensor.empty(like, mx_format(d_format), shape, 1.0 if unit is None else unit)
    if out is None:
        return arrays.allocate(like, shape, d_format, ALIGN_BYTES)
    got = out.shape if isinstance(out, MxTensor) else arrays.view(out, "out").shape
    if got != shape:
        raise ArgumentError("out", f"shape {got}", f"{shape}")
    return out if unit is None else out.with_global_scale(unit)


def _d_outputs(out: Any, order: tuple[int | None, ...]) -> dict[str, OutputSpec]:
    return block_scaled_outputs(out, order) if isinstance(out, MxTensor) else {"d": OutputSpec(out, out, "out", order)}


def block_scaled_outputs(out: MxTensor, order: tuple[int | None, ...]) -> dict[str, OutputSpec]:
    """Elements and block scales of an output, as "d" and "d_block_scale"."""
    tiles_order = (0, 1, 2, 3) if len(out.shape) == 3 else (None, 0, 1, 2)
    scales = out.scales_view("out.scales")
    return {
        "d": OutputSpec(out, out.data, "out", order, out.elements_view("out")),
        "d_block_scale": OutputSpec(out.scales, out.data, "out.scales", tiles_order, scales),
    }


def _check_operands(a: MxTensor, b: MxTensor) -> None:
    """What the schema would say of fields that only it knows, said of a and b."""
    if a.format.scale != b.format.scale:
        raise ArgumentError(
            "b", b.format.name, f"a format with the scales of a's {a.format.name}, {a.format.scale.name}"
        )
    if len(a.shape) != len(b.shape) or a.shape[:-2] != b.shape[:-2]:
        raise ArgumentError("b", f"shape {b.shape}", f"the batch of a's {a.shape}")
    if a.shape[-1] != b.shape[-1]:
        raise ArgumentError("b", f"K = {b.shape[-1]} in shape {b.shape}", f"K = {a.shape[-1]}, as a has")


def _tiles(view: TensorView) -> TensorView:
    return view if len(view.shape) == 4 else view.permuted((None, 0, 1, 2))
