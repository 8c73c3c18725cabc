# SPDX-License-Identifier: Apache-2.0
"""The two readers of one schema, opdeck.core.problem and libopdeck, refuse and accept the same problems.

No device and no memory are needed: planning looks at types, shapes and strides alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opdeck.core import registry
from opdeck.core.arrays import TensorView, compact_strides
from opdeck.core.devices import LaunchArgs
from opdeck.core.devices.native import NativeDevice, _Frame
from opdeck.core.errors import ArgumentError, ArgumentTypeError, OpdeckError, Unsupported
from opdeck.core.fusion import Causal
from opdeck.core.problem import bind, check_leaf
from opdeck.core.variant import Variant

SCHEMA = registry.schema("fmha_fwd")
ALIGNED_ADDRESS = 1 << 20
RIGHT = {"b": 2, "b_kv": 2, "sq": 16, "sk": 24, "hq": 4, "hk": 2, "dqk": 64, "dv": 64, "num_offsets": 3, "num_seqs": 2}
RIGHT |= {"max_pages": 3}


@pytest.fixture(scope="module")
def variant() -> Variant:
    rows = registry.variants("fmha_fwd", arch="sm_90a", fusion="causal[align=bottom_right]")
    return next(row for row in rows if row.dtype == "bf16" and row.config["d_qk"] == 64)


@pytest.fixture(scope="module")
def device(variant: Variant) -> NativeDevice:
    """libopdeck with one kernel of the family and no driver."""
    device = NativeDevice("offline:sm_90a", memory="cpu")
    device.launcher(SCHEMA, variant)
    return device


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, TensorView]:
    """Tensors of a right problem, each with up to one thing changed: an extent, a stride, the type, the rank."""
    dims = dict(RIGHT)
    for name in draw(st.lists(st.sampled_from(list(RIGHT)), max_size=2)):
        dims[name] = draw(st.sampled_from([0, 1, 2, 3, 4, 16, 64, 96, 128]))
    views = {}
    for arg in SCHEMA.args:
        # Lengths are given seldom: no kernel of the variant's arch takes them.
        if arg.kind != "tensor" or (arg.optional and draw(st.integers(0, 1 if arg.name == "lse" else 3)) > 0):
            continue
        shape = [dims[name] for name in arg.dims]
        strides = list(compact_strides(shape))
        dtype = arg.dtypes[0] if len(arg.dtypes) == 1 else "bf16"
        change = draw(st.sampled_from(["none"] * 6 + ["extent", "stride", "dtype", "rank"]))
        dim = draw(st.integers(0, len(shape) - 1))
        if change == "extent":
            shape[dim] = draw(st.sampled_from([0, 1, 2, 3, 5, 64]))
        elif change == "stride":
            strides[dim] = draw(st.sampled_from([0, 1, -1, 2, 8, 12, 64, 520, 4096, 8200, -4096]))
        elif change == "dtype":
            dtype = draw(st.sampled_from(["fp16", "bf16", "fp32", "fp8_e4m3", "int32"]))
        elif change == "rank":
            shape, strides = shape[1:], strides[1:]
        views[arg.name] = TensorView(
            arg.name, ALIGNED_ADDRESS * (1 + len(views)), tuple(shape), tuple(strides), dtype, "cpu", False, None
        )
    return views


Verdict = type[OpdeckError] | None


def verdict_of_python(views: Mapping[str, TensorView], variant: Variant, device: NativeDevice) -> Verdict:
    try:
        problem = bind(SCHEMA, views, variant.fusion, device.target)
    except (ArgumentError, ArgumentTypeError):
        return ArgumentError
    return Unsupported if variant.refusals(problem) else None


def refusal_of_c(args: LaunchArgs, variant: Variant, device: NativeDevice) -> OpdeckError | None:
    frame = _Frame(device._ffi, SCHEMA, variant, args)
    frame.problem.variant = device._ffi.NULL
    plan = device._ffi.new("opdeck_plan **")
    try:
        device.check(device._lib.opdeck_plan_create(device._ctx, frame.problem, plan))
    except (ArgumentError, Unsupported) as error:
        return error
    device._lib.opdeck_plan_destroy(plan[0])
    return None


def verdict_of_c(views: Mapping[str, TensorView], variant: Variant, device: NativeDevice) -> Verdict:
    refusal = refusal_of_c(LaunchArgs(views, {"softmax_scale": 1.0}, variant.fusion, (), None), variant, device)
    return None if refusal is None else type(refusal)


@settings(deadline=None, max_examples=600, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(views=tensors())
def test_python_and_c_agree(views: dict[str, TensorView], variant: Variant, device: NativeDevice) -> None:
    assert verdict_of_python(views, variant, device) == verdict_of_c(views, variant, device)


def view(name: str, shape: tuple[int, ...], dtype: str) -> TensorView:
    return TensorView(name, ALIGNED_ADDRESS, shape, compact_strides(shape), dtype, "cpu", False, None)


def right_views() -> dict[str, TensorView]:
    shapes = {arg.name: tuple(RIGHT[name] for name in arg.dims) for arg in SCHEMA.args[:4]}
    return {name: view(name, shape, "bf16") for name, shape in shapes.items()}


def test_the_right_problem_is_accepted_by_both(variant: Variant, device: NativeDevice) -> None:
    assert variant.fusion == Causal()
    views = right_views()
    assert verdict_of_python(views, variant, device) is None
    assert verdict_of_c(views, variant, device) is None


@pytest.fixture(scope="module")
def of_documents(device: NativeDevice) -> Variant:
    """Whose fusion has a tensor, (B or 1, Sq, 2)."""
    rows = registry.variants("fmha_fwd", arch="sm_90a", fusion="document")
    row = next(row for row in rows if row.dtype == "bf16" and row.config["d_qk"] == 64)
    device.launcher(SCHEMA, row)
    return row


@pytest.mark.parametrize("shape", [(2, 16, 2), (1, 16, 2), (3, 16, 2), (2, 15, 2), (1, 16, 3), (0, 16, 2)], ids=str)
def test_extents_of_leaves_are_told_alike(shape: tuple[int, ...], of_documents: Variant, device: NativeDevice) -> None:
    assert of_documents.fusion is not None
    (leaf,), spans, views = of_documents.fusion.leaves(), view("document.spans", shape, "int32"), right_views()
    problem = bind(SCHEMA, views, of_documents.fusion, device.target)
    of_python = None
    try:
        check_leaf(leaf, spans, SCHEMA.extents(problem.field_values))
    except ArgumentError as error:
        of_python = str(error)
    of_c = refusal_of_c(LaunchArgs(views, {}, of_documents.fusion, (spans,), None), of_documents, device)
    assert of_python == (None if of_c is None else str(of_c))
    assert (of_python is None) == (shape in ((2, 16, 2), (1, 16, 2)))


LENGTHS_OF_TWO = {"cu_seqlens_q": (3,), "cu_seqlens_k": (3,), "seqused_q": (2,), "seqused_k": (2,)}


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (LENGTHS_OF_TWO | {"seqused_q": (3,)}, "seqused_q: got num_seqs = 3, want num_offsets - 1 = 2"),
        (LENGTHS_OF_TWO | {"cu_seqlens_q": (0,), "cu_seqlens_k": (0,)}, "cu_seqlens_q: got num_offsets = 0, want >= 1"),
        ({"cu_seqlens_q": (3,), "seqused_k": (1,), "block_table": (2, 1)}, "seqused_k: got num_seqs = 1, want num_"),
        ({"seqused_q": (1,), "seqused_k": (2,)}, "seqused_q: got num_seqs = 1, want b = 2"),
        ({"seqused_k": (2,), "block_table": (2, 0)}, "block_table: got max_pages = 0, want >= 1"),
    ],
)
def test_wrong_lengths_are_told_alike(
    lengths: dict[str, tuple[int, ...]], message: str, variant: Variant, device: NativeDevice
) -> None:
    shapes = {arg.name: [RIGHT[name] for name in arg.dims] for arg in SCHEMA.args[:4]}
    for name in shapes:
        shapes[name][0] = 1 if "cu_seqlens_q" in lengths else 2
    views = {name: view(name, tuple(shape), "bf16") for name, shape in shapes.items()}
    views |= {name: view(name, shape, "int32") for name, shape in lengths.items()}
    with pytest.raises(ArgumentError) as caught:
        bind(SCHEMA, views, variant.fusion, device.target)
    assert str(caught.value).startswith(message)
    assert str(refusal_of_c(LaunchArgs(views, {}, variant.fusion, (), None), variant, device)) == str(caught.value)
