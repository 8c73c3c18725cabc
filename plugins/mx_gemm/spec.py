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
from opdeck.core.mx.formats import SCALE_TILE_BYTES, SCALE_TILE_COLS, SCALE_TILE_ROWS
from opdeck.core.mx.tensor import K_MULTIPLE
from opdeck.core.schema import ArgSpec, FamilySchema, Rule

OUTPUT_DTYPES = ("fp16", "bf16", "fp32")

_ELEMENTS = tuple(dict.fromkeys(row.element_name for row in FORMATS))
_SCALES = tuple(dict.fromkeys(row.scale_name for row in FORMATS))
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


def _k_tiles_rules() -> tuple[Rule, ...]:
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
        _tensor("c", ("l", "m", "n"), "D", OUTPUT_DTYPES, optional=True),
        _tensor("bias", ("n",), "D", OUTPUT_DTYPES, optional=True),
        _tensor("d", ("l", "m", "n_out"), "D", OUTPUT_DTYPES, access="write"),
        ArgSpec("alpha", "f32", optional=True, default=("one", "")),
        ArgSpec("beta", "f32", optional=True, default=("zero", "")),
        ArgSpec("max_ctas", "i32", optional=True, default=("num_sms", "")),
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
        *_k_tiles_rules(),
        Rule("tile", "eq", (SCALE_TILE_BYTES,)),
        Rule("max_ctas", "ge", (1,)),
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

# Dims of the schema's (l, m, n) among those of an array with and without a batch.
_ORDERS: Mapping[int, tuple[int | None, ...]] = {2: (None, 0, 1), 3: (0, 1, 2)}


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
    **unknown: Any,
) -> Request:
    """Block-scaled GEMM: D = activation(alpha * A B^T + beta * C + bias).

    a: MxTensor (M, K) or (L, M, K). b: MxTensor (N, K) or (L, N, K). L products, each of the matrices of one index. Any
    M and N, K a multiple of 32. Formats may differ where both have blocks of 32.
    c: (M, N) or (L, M, N) of D's type; wanted where beta is not 0. bias: (N,) of D's type.
    d_format: type of D: "fp16", "bf16" or "fp32"; that of `out` where it is given.
    activation: None or an Activation such as Relu(). A gated one makes a column of D of two: D is (M, N / 2).
    out: (M, N) or (L, M, N), or None for a new array of the library of a's data. The rows of c and out begin multiples
    of 16 bytes apart; those of a new array do, and so it may be a view of a wider one.
    max_ctas: CTAs that the product may take at a time, whole clusters of them and at least one; None is one for each SM
    of the device. Fewer leave SMs to other work.
    device: "cuda:N", "emulator:sm_100a", "cpu", a Device, or None: OPDECK_DEVICE, else where the arrays are.
    stream: a CUstream address or an object with `cuda_stream` or `__cuda_stream__`; None is the current one.

    Sums are in fp32. Returns D.
    Raises: ArgumentError, ArgumentTypeError (naming argument, got, wanted), Unsupported (a reason a variant).
    """
    for name in unknown:
        raise ArgumentTypeError(name, "an argument that mx_gemm does not have", _ALIASES.get(name, "one that it has"))
    for name, operand in (("a", a), ("b", b)):
        if not isinstance(operand, MxTensor):
            raise ArgumentTypeError(name, type(operand).__qualname__, "an MxTensor", "opdeck.core.mx.quantize")
    _check_operands(a, b)
    if d_format not in OUTPUT_DTYPES:
        raise ArgumentError("d_format", repr(d_format), "|".join(OUTPUT_DTYPES))
    if activation is not None and not isinstance(activation, Activation):
        raise ArgumentTypeError("activation", repr(activation), "None or an Activation", "such as Relu()")
    columns = 1 if activation is None else activation.num_columns
    if b.shape[-2] % columns:
        raise ArgumentError("b", f"N = {b.shape[-2]} in shape {b.shape}", f"a multiple of {columns}, for {activation}")
    if c is None and beta != 0:
        raise ArgumentError("beta", beta, "0 where there is no c")
    shape = (*a.shape[:-1], b.shape[-2] // columns)
    order = _ORDERS[len(shape)]
    if out is None:
        out = arrays.allocate(a.data, shape, d_format, ALIGN_BYTES)
    elif arrays.view(out, "out").shape != shape:
        raise ArgumentError("out", f"shape {arrays.view(out, 'out').shape}", f"{shape}")
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
    return Request(
        inputs=inputs,
        outputs={"d": OutputSpec(out, a.data, "out", order)},
        returned=("d",),
        scalars=scalars if max_ctas is None else scalars | {"max_ctas": max_ctas},
        fusion=activation,
    )


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
