# SPDX-License-Identifier: Apache-2.0
"""The arguments of mx_gemm on their way to a kernel: what it gets of elements under a byte, and who refuses what."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opdeck.core import mx, registry
from opdeck.core.arrays import TensorView
from opdeck.core.devices import LaunchArgs, open_device
from opdeck.core.devices.native import NativeDevice, _Frame
from opdeck.core.errors import ArgumentError, ArgumentTypeError, HazardError, OpdeckError, Unsupported
from opdeck.core.operator import Operator
from opdeck.core.problem import bind
from opdeck.core.variant import Variant
from opdeck.plugins.mx_gemm import plugin, spec, variants

FORMATS = ("mxfp6_e3m2", "mxfp4")
NUM_COLS = 12


def probe(byte_idx: int, formats: tuple[str, str] = FORMATS, transposed: tuple[str, ...] = ()) -> Variant:
    """A row of mx_gemm whose kernel tells what it got."""
    kernel = variants.Kernel(
        factory="layout_probe.kernel:make",
        archs=("sm_100a",),
        formats=(formats,),
        d_formats=("fp32",),
        tile=variants.Tile("_".join(("probe", *transposed, str(byte_idx))), {"byte_idx": byte_idx}),
        transposed=transposed,
    )
    return variants._compiled_row(kernel, "sm_100a", formats, "fp32", None)


MN_MAJOR = probe(0, ("mxfp8_e4m3", "mxfp4"), ("a",))


@pytest.fixture(scope="module")
def device() -> NativeDevice:
    """libopdeck with one kernel of the family and no driver."""
    device = NativeDevice("offline:sm_100a", memory="cpu")
    for row in (probe(0), MN_MAJOR):
        device.launcher(spec.SCHEMA, row)
    return device


def launch(a: mx.MxTensor, b: mx.MxTensor, byte_idx: int) -> np.ndarray:
    row = probe(byte_idx)
    operator = Operator(dataclasses.replace(plugin.MX_GEMM, rows=lambda fusions: (row,)))
    out: np.ndarray = operator(a, b, alpha=3.0, d_format="fp32", device=open_device("emulator:sm_100a"))
    return out


@pytest.mark.parametrize("m", [1, 3])
def test_a_kernel_gets_logical_extents_and_pitches(m: int) -> None:
    x, y = np.ones((m, 160), np.float32), np.ones((NUM_COLS, 160), np.float32)
    a, b = mx.quantize(x, FORMATS[0]), mx.quantize(y, FORMATS[1])
    got = launch(a, b, byte_idx=0)[0, :9].tolist()
    assert got == [160, 256, 1, 2, 256, 3.0, 0.0, 0, a.data[0, 0]]


def test_the_padding_of_a_row_is_the_tensors_and_no_more() -> None:
    x, y = np.ones((1, 160), np.float32), np.ones((NUM_COLS, 160), np.float32)
    a, b = mx.quantize(x, FORMATS[0]), mx.quantize(y, FORMATS[1])
    assert launch(a, b, byte_idx=256 * 6 // 8 - 1)[0, 8] == 0
    with pytest.raises(HazardError, match=r"behind the end of .a."):
        launch(a, b, byte_idx=256 * 6 // 8)


def test_a_kernel_gets_the_pitch_of_columns() -> None:
    a, b = operand(3, 160), operand(NUM_COLS, 160, "mxfp4")
    data = np.zeros((160, 32), a.data.dtype)
    a = dataclasses.replace(a, data=data.T[:3])
    call = Operator(dataclasses.replace(plugin.MX_GEMM, rows=lambda fusions: (MN_MAJOR,)))
    got = call(a, b, d_format="fp32", device=open_device("emulator:sm_100a"))[0, :2].tolist()
    assert got == [160, 32]


_TILES = {"m_tiles": 2, "n_tiles": 1, "k_tiles": 2, "n_out_tiles": 1, "tile": 512}
RIGHT = {"l": 2, "m": 130, "n": 20, "n_out": 20, "k": 160, **_TILES, "one": 1}
DTYPES = {"A": "fp6_e3m2", "B": "fp4_e2m1", "S": "e8m0", "C": "fp32", "D": "fp32", "DS": "e8m0", "X": "fp32"}
MN_MAJOR_DTYPES = DTYPES | {"A": "fp8_e4m3"}
Verdict = type[OpdeckError] | None


@st.composite
def tensors(draw: st.DrawFn, dtypes: Mapping[str, str]) -> dict[str, TensorView]:
    """Tensors of a right problem, each with up to one thing changed: an extent, strides, the type, the rank."""
    dims = dict(RIGHT)
    for name in draw(st.lists(st.sampled_from(list(RIGHT)), max_size=2)):
        dims[name] = draw(st.sampled_from([0, 1, 2, 3, 20, 32, 96, 128, 160, 512]))
    views: dict[str, TensorView] = {}
    for arg in spec.SCHEMA.args:
        if arg.kind != "tensor" or (arg.optional and draw(st.booleans())):
            continue
        shape = [dims[name] for name in arg.dims]
        strides = padded_strides(shape)
        dtype = dtypes[arg.dtype_symbol or ""]
        if arg.transposable and draw(st.booleans()):
            strides = transposed_strides(shape)
        change = draw(st.sampled_from(["none"] * 8 + ["extent", "stride", "dtype", "rank"]))
        dim = draw(st.integers(0, len(shape) - 1))
        if change == "extent":
            shape[dim] = draw(st.sampled_from([0, 1, 2, 32, 64, 128]))
        elif change == "stride":
            strides[dim] = draw(st.sampled_from([0, 1, -1, 8, 32, 64, 128, 160, 192, 384, 512, 4096]))
        elif change == "dtype":
            # Views of scales alone are ever of ue4m3, and never of fp8_e4m3, which is the same to C.
            e4m3 = "ue4m3" if arg.dtype_symbol in ("S", "DS") else "fp8_e4m3"
            dtype = draw(st.sampled_from(["bf16", "fp32", "fp4_e2m1", "fp6_e2m3", "e8m0", e4m3]))
        elif change == "rank":
            shape, strides = shape[1:], strides[1:]
        address = (1 + len(views)) << 24
        views[arg.name] = TensorView(arg.name, address, tuple(shape), tuple(strides), dtype, "cpu", False, None)
    return views


def padded_strides(shape: list[int]) -> list[int]:
    """Row-major, with rows that begin multiples of 128 elements apart."""
    pitch = max(-(-shape[-1] // 128), 1) * 128
    steps = [1, *itertools.accumulate([pitch, *(max(extent, 1) for extent in shape[-2:0:-1])], lambda a, b: a * b)]
    return steps[: len(shape)][::-1]


def transposed_strides(shape: list[int]) -> list[int]:
    """The same with the last dim but one side by side."""
    *batch, columns, rows = padded_strides([*shape[:-2], shape[-1], shape[-2]])
    return [*batch, rows, columns]


def verdict_of_python(views: Mapping[str, TensorView], variant: Variant, device: NativeDevice) -> Verdict:
    try:
        problem = bind(spec.SCHEMA, views, None, device.target)
    except (ArgumentError, ArgumentTypeError):
        return ArgumentError
    return Unsupported if variant.refusals(problem) else None


def verdict_of_c(views: Mapping[str, TensorView], variant: Variant, device: NativeDevice) -> Verdict:
    args = LaunchArgs(views, {"alpha": 1.0, "beta": 0.0, "max_ctas": 1}, None, (), None)
    frame = _Frame(device._ffi, spec.SCHEMA, variant, args)
    plan: Any = device._ffi.new("opdeck_plan **")
    try:
        device.check(device._lib.opdeck_plan_create(device._ctx, frame.problem, plan))
    except (ArgumentError, Unsupported) as error:
        return type(error)
    device._lib.opdeck_plan_destroy(plan[0])
    return None


@pytest.mark.parametrize(("row", "dtypes"), [(probe(0), DTYPES), (MN_MAJOR, MN_MAJOR_DTYPES)], ids=["k", "mn"])
@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_python_and_c_agree(row: Variant, dtypes: Mapping[str, str], data: st.DataObject, device: NativeDevice) -> None:
    views = data.draw(tensors(dtypes))
    assert verdict_of_python(views, row, device) == verdict_of_c(views, row, device)


def views_of(dims: Mapping[str, int], **pitches: int) -> dict[str, TensorView]:
    views = {}
    for arg in (arg for arg in spec.SCHEMA.args if arg.kind == "tensor" and not arg.optional):
        shape = [dims[name] for name in arg.dims]
        strides = padded_strides(shape)
        if arg.name in pitches:
            strides[-2] = pitches[arg.name]
        dtype = DTYPES[arg.dtype_symbol or ""]
        views[arg.name] = TensorView(arg.name, 1 << 24, tuple(shape), tuple(strides), dtype, "cpu", False, None)
    return views


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, None),
        ({"m": 1, "m_tiles": 1}, None),
        ({"pitch_a": 192}, ArgumentError),  # 144 bytes are no multiple of 32
        ({"pitch_b": 192}, Unsupported),  # 96 bytes are, but 192 is none of 128
        ({"m": 1, "m_tiles": 1, "pitch_b": 192}, Unsupported),
        ({"m": 1, "m_tiles": 1, "pitch_a": 128}, ArgumentError),  # less than K
        ({"k": 176}, ArgumentError),
        ({"m_tiles": 3}, ArgumentError),
        ({"k_tiles": 1}, ArgumentError),
    ],
)
def test_what_is_refused(changes: dict[str, int], verdict: Verdict, device: NativeDevice) -> None:
    pitches = {name: changes[f"pitch_{name}"] for name in ("a", "b") if f"pitch_{name}" in changes}
    dims = {**RIGHT, **{name: value for name, value in changes.items() if name in RIGHT}}
    views = views_of(dims, **pitches)
    assert verdict_of_python(views, probe(0), device) == verdict
    assert verdict_of_c(views, probe(0), device) == verdict


@pytest.mark.parametrize(
    ("strides", "verdict"),
    [
        ((16384, 1, 144), None),
        ((16384, 1, 136), ArgumentError),  # columns begin multiples of 16 bytes apart
        ((16384, 1, 128), ArgumentError),  # less than M
        ((16384, 2, 288), ArgumentError),
        ((32768, 160, 1), Unsupported),  # K-major
    ],
)
def test_which_columns_are_refused(strides: tuple[int, ...], verdict: Verdict, device: NativeDevice) -> None:
    views = views_of(RIGHT)
    views["a"] = views["a"]._replace(dtype="fp8_e4m3", strides=strides)
    assert verdict_of_python(views, MN_MAJOR, device) == verdict
    assert verdict_of_c(views, MN_MAJOR, device) == verdict


def operand(rows: int, k: int = 64, name: str = "mxfp8_e4m3", *batch: int) -> mx.MxTensor:
    return mx.quantize(np.zeros((*batch, rows, k), np.float32), name)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"a": np.zeros((4, 64))}, ArgumentTypeError, "a: got ndarray, want an MxTensor (opdeck.core.mx.quantize)"),
        ({"b": operand(4, 96)}, ArgumentError, "b: got K = 96 in shape (4, 96), want K = 64, as a has"),
        (
            {"b": operand(4, 64, "mxfp8_e4m3", 2)},
            ArgumentError,
            "b: got shape (2, 4, 64), want the batch of a's (5, 64)",
        ),
        (
            {"b": operand(4, 64, "nvfp4")},
            ArgumentError,
            "b: got nvfp4, want a format with the scales of a's mxfp8_e4m3",
        ),
        ({"beta": 2.0}, ArgumentError, "beta: got 2.0, want 0 where there is no c"),
        (
            {"c": np.zeros((5, 8), np.float32)[:, :4]},
            ArgumentError,
            "c: got dtype.C = fp32, want dtype.D = bf16",
        ),
        ({"d_format": "fp8"}, ArgumentError, "d_format: got 'fp8', want fp16|bf16|fp32"),
        ({"bias": np.zeros(5, np.float32), "d_format": "fp32"}, ArgumentError, "bias: got n = 5"),
        ({"out": np.zeros((5, 5), np.float16)}, ArgumentError, "out: got shape (5, 5), want (5, 4)"),
        ({"out": np.zeros((5, 4), np.float16)}, ArgumentError, "out: got a stride of 4 elements in dim m"),
        ({"out": np.zeros((5, 4))}, ArgumentTypeError, "out: got dtype float64, want fp16|bf16|fp32"),
        ({"bias": np.zeros(4)}, ArgumentTypeError, "bias: got dtype float64, want fp16|bf16|fp32"),
        ({"alpha": float("nan")}, ArgumentError, "alpha: got nan, want a finite number"),
        ({"alpha": "2"}, ArgumentTypeError, "alpha: got '2', want a number"),
        ({"beta": None}, ArgumentTypeError, "beta: got None, want a number"),
        (
            {"d_format": "nvfp4", "d_scale": "2", "b": operand(32, 64)},
            ArgumentTypeError,
            "d_scale: got '2', want a number",
        ),
        ({"max_ctas": 0}, ArgumentError, "max_ctas: got 0, want >= 1"),
        ({"max_ctas": 1.5}, ArgumentTypeError, "max_ctas: got 1.5, want an int"),
        ({"m_offsets": [0, 5]}, ArgumentTypeError, "m_offsets: got an argument that mx_gemm does not have, want one"),
        ({"d_scale": 2.0}, ArgumentError, "d_scale: got 2.0, want None: bf16 has no scale of the tensor"),
        (
            {"b": operand(32), "d_format": "nvfp4", "d_scale": 2.0**-140},
            ArgumentError,
            "want a positive normal number of fp32",
        ),
        ({"d_format": "mxfp4"}, ArgumentError, "b: got 4 columns of D, want a multiple of 32, for mxfp4"),
        (
            {"b": operand(32), "d_format": "mxfp4", "out": np.zeros((5, 16), np.uint8)},
            ArgumentTypeError,
            "out: got ndarray, want an MxTensor, for mxfp4",
        ),
        ({"b": operand(32), "out": operand(5, 32, "mxfp6_e3m2")}, ArgumentTypeError, "out: got dtype fp6_e3m2, want"),
        ({"amax": np.zeros(2, np.float32)}, ArgumentError, "amax: got one = 2, want 1"),
        ({"scale_a": 1}, ArgumentTypeError, "want a, an opdeck.core.mx.MxTensor of elements and scales"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], error: type[OpdeckError], message: str) -> None:
    with pytest.raises(error) as raised:
        registry.get("mx_gemm")(**{"a": operand(5), "b": operand(4), "device": "cpu", **arguments})
    assert message in str(raised.value)


def test_results_are_rows_that_tma_can_store() -> None:
    d = registry.get("mx_gemm")(operand(5), operand(3), device="cpu")
    assert d.shape == (5, 3)
    assert d.strides[0] % 16 == 0
    assert not d.any()
