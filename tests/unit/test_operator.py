# SPDX-License-Identifier: Apache-2.0
"""Operators: what a call returns, what it keeps for the next call, and which variant it takes."""

from __future__ import annotations

import inspect
import threading
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest

from opdeck.core import arrays, registry
from opdeck.core.devices.cpu import CpuDevice
from opdeck.core.errors import ArgumentError, ArgumentTypeError, Unsupported
from opdeck.core.family import Family
from opdeck.core.fusion import (
    Causal,
    Coords,
    Extent,
    Fusion,
    Int32Leaf,
    Mask,
    Softcap,
    TensorLeaf,
    Window,
    block_sparse,
    mask_mod,
    score_mod,
    tensor_leaf,
)
from opdeck.core.operator import Operator
from opdeck.plugins.fmha_fwd import cases, reference, spec, variants
from opdeck.plugins.fmha_fwd.cases import Case, Shape, View

SHAPE = Shape(2, 4, 2, 24, 40, 64)


@pytest.fixture
def operator() -> Operator:
    """fmha_fwd without plans of other tests."""
    return Operator(
        Family(schema=spec.SCHEMA, call=spec.call, rows=variants.rows, fusions=variants.FUSIONS, fusion_type=Mask)
    )


@pytest.fixture
def inputs() -> cases.Inputs:
    return cases.make_inputs(Case(SHAPE), seed=0)


def oracle(inputs: cases.Inputs, mask: Mask | None = None, scale: float = 0.125) -> tuple[Any, Any]:
    o, lse = reference.forward(inputs.q, inputs.k, inputs.v, mask, scale)
    return o.astype(inputs.q.dtype), lse.astype(np.float32)


def test_returns_out_or_out_and_lse(operator: Operator, inputs: cases.Inputs) -> None:
    o, lse = oracle(inputs)
    alone = operator(inputs.q, inputs.k, inputs.v)
    both = operator(inputs.q, inputs.k, inputs.v, return_lse=True)
    assert np.array_equal(alone, o)
    assert np.array_equal(both[0], o)
    assert np.array_equal(both[1], lse)


def test_buffers_that_are_given_are_written_and_returned(operator: Operator, inputs: cases.Inputs) -> None:
    o, lse = oracle(inputs)
    returned = operator(inputs.q, inputs.k, inputs.v, out=inputs.o, lse=inputs.lse)
    assert returned is inputs.o
    assert np.array_equal(inputs.o, o)
    assert np.array_equal(inputs.lse, lse)


def test_mask_and_scale_reach_the_kernel(operator: Operator, inputs: cases.Inputs) -> None:
    got = operator(inputs.q, inputs.k, inputs.v, mask=Causal(), softmax_scale=np.float32(0.5), return_lse=True)
    for ours, theirs in zip(got, oracle(inputs, Causal(), 0.5), strict=True):
        assert np.array_equal(ours, theirs)


def test_bhsd_is_the_transposed_call(operator: Operator, inputs: cases.Inputs) -> None:
    q, k, v = (np.ascontiguousarray(array.swapaxes(1, 2)) for array in (inputs.q, inputs.k, inputs.v))
    o, lse = operator(q, k, v, layout="bhsd", return_lse=True)
    want_o, want_lse = oracle(inputs)
    assert o.flags.c_contiguous
    assert np.array_equal(o, want_o.swapaxes(1, 2))
    assert np.array_equal(lse, want_lse)


@pytest.mark.parametrize("view", list(View)[1:])
def test_strided_views_are_read_and_written_in_place(operator: Operator, view: View) -> None:
    inputs = cases.make_inputs(Case(Shape(2, 4, 2, 24, 24, 64), view=view), seed=0)
    operator(inputs.q, inputs.k, inputs.v, out=inputs.o)
    assert np.array_equal(inputs.o, oracle(inputs)[0])


def test_second_call_of_the_same_shapes_plans_nothing(
    operator: Operator, inputs: cases.Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = operator(inputs.q, inputs.k, inputs.v, mask=Causal(), softmax_scale=0.125)

    def no_plan(*_args: Any) -> None:
        raise AssertionError("a second plan")

    monkeypatch.setattr(operator, "_new_plan", no_plan)
    again = operator(inputs.q.copy(), inputs.k.copy(), inputs.v.copy(), mask=Causal(), softmax_scale=0.125)
    assert np.array_equal(first, again)
    # A scalar is no part of a plan.
    operator(inputs.q, inputs.k, inputs.v, mask=Causal(), softmax_scale=0.5)
    for changes in ({"mask": None}, {"return_lse": True}, {"layout": "bhsd"}):
        with pytest.raises(AssertionError, match="a second plan"):
            operator(inputs.q, inputs.k, inputs.v, **{"mask": Causal(), **changes})


def test_plans_are_bounded(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opdeck.core.operator.MAX_PLANS", 4)
    for num_q in range(1, 9):
        small = cases.make_inputs(Case(Shape(1, 1, 1, num_q, 4, 64)), seed=0)
        operator(small.q, small.k, small.v)
    assert len(operator._plans) == 4


def test_threads_share_an_operator(operator: Operator) -> None:
    wrong = []

    def work(seed: int) -> None:
        inputs = cases.make_inputs(Case(SHAPE), seed)
        for _ in range(5):
            if not np.array_equal(operator(inputs.q, inputs.k, inputs.v), oracle(inputs)[0]):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("shape", [Shape(0, 2, 1, 4, 4, 64), Shape(1, 2, 1, 0, 4, 64)])
def test_nothing_is_launched_when_there_is_nothing_to_compute(operator: Operator, shape: Shape) -> None:
    inputs = cases.make_inputs(Case(shape), seed=0)
    o, lse = operator(inputs.q, inputs.k, inputs.v, return_lse=True)
    assert o.shape == (shape.b, shape.sq, shape.hq, shape.d)
    assert lse.shape == (shape.b, shape.hq, shape.sq)
    assert operator.last_launch is None


def test_last_launch_names_the_variant(operator: Operator, inputs: cases.Inputs) -> None:
    operator(inputs.q, inputs.k, inputs.v, mask=Causal())
    assert operator.last_launch is not None
    assert operator.last_launch.variant.id == "fmha_fwd_cpu_bf16_causal_bottom_right"
    assert operator.last_launch.device.name == "cpu"


def test_device_argument_beats_environment_beats_arrays(
    operator: Operator, inputs: cases.Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPDECK_DEVICE", "abacus")
    with pytest.raises(ArgumentError, match=r"device: got 'abacus', want cuda:N\|emulator:sm_100a\|"):
        operator(inputs.q, inputs.k, inputs.v)
    operator(inputs.q, inputs.k, inputs.v, device="cpu")
    monkeypatch.setenv("OPDECK_DEVICE", "")
    operator(inputs.q, inputs.k, inputs.v)
    with pytest.raises(ArgumentTypeError, match="device: got 3, want a device string or a Device"):
        operator(inputs.q, inputs.k, inputs.v, device=3)


def test_arrays_on_two_devices_are_refused(
    operator: Operator, inputs: cases.Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_view = arrays.view

    def view(array: Any, argument: str) -> arrays.TensorView:
        tensor = real_view(array, argument)
        return tensor if argument != "k" else tensor._replace(device="cuda:1")

    monkeypatch.setattr(arrays, "view", view)
    with pytest.raises(ArgumentError, match="k: got an array on cuda:1, want one on cpu, as q is"):
        operator(inputs.q, inputs.k, inputs.v)
    with pytest.raises(ArgumentError, match="k: got an array on cuda:1, want one on cpu, for device cpu"):
        operator(inputs.q, inputs.k, inputs.v, device="cpu")


def test_unsupported_gives_each_reason_and_the_nearest_variant(operator: Operator, inputs: cases.Inputs) -> None:
    problem = operator.problem(inputs.q, inputs.k, inputs.v, mask=Causal(), device="cpu")
    compiled = tuple(row for row in variants.rows(variants.FUSIONS) if row.arch != "cpu")
    compiled_only = Operator(Family(spec.SCHEMA, spec.call, lambda _: compiled, variants.FUSIONS))
    with pytest.raises(Unsupported) as caught:
        compiled_only.select(problem)
    by_arch = Counter(row.arch for row in compiled_only.variants())
    firsts = {row.arch: row.id for row in reversed(compiled_only.variants())}
    assert caught.value.reasons == tuple(
        f"arch: got cpu, want {arch} ({count} variants, such as {firsts[arch]})" for arch, count in by_arch.items()
    )
    summary = str(caught.value).splitlines()[0]
    assert summary.startswith("fmha_fwd on cpu fusion=causal[align=bottom_right] arch=0 b=2 b_kv=2 dqk=64 dtype.O=bf16")
    nearest = "fmha_fwd_sm100a_bf16_d64_causal_bottom_right (arch: got cpu, want sm_100a)"
    assert summary.endswith(f"none of {len(compiled)} variants accepts it; nearest: {nearest}")


def test_unsupported_pages_name_the_family_that_is_for_them() -> None:
    q, pages = np.ones((1, 8, 1, 64), np.float16), np.ones((4, 16, 1, 64), np.float16)
    keys = {"block_table": np.zeros((1, 2), np.int32), "seqused_k": np.full(1, 32, np.int32)}
    with pytest.raises(Unsupported, match=r"sk: got 16, want a multiple of 128 \(pages of other sizes: fmha_gen"):
        registry.get("fmha_fwd")(q, pages, pages, **keys, device="emulator:sm_100a")
    with pytest.raises(Unsupported) as caught:
        registry.get("fmha_fwd")(*[np.ones((1, 8, 1, 520), np.float16)] * 3, device="emulator:sm_100a")
    assert "fmha_gen" not in str(caught.value)


def test_without_a_compiler_the_first_accepting_row_that_is_loaded_wins(
    operator: Operator, inputs: cases.Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = operator.select(operator.problem(inputs.q, inputs.k, inputs.v, device="cpu"))
    better = replace(loaded, id="better")
    rows = Operator(Family(spec.SCHEMA, spec.call, lambda fusions: (better, loaded), variants.FUSIONS))
    monkeypatch.setattr(CpuDevice, "can_launch", lambda device, variant: variant.id != "better")
    rows(inputs.q, inputs.k, inputs.v, device="cpu")
    assert rows.last_launch.variant == loaded
    rows(inputs.q, inputs.k, inputs.v, device="cpu", variant="better")
    assert rows.last_launch.variant == better


def test_first_accepting_row_wins(operator: Operator, inputs: cases.Inputs) -> None:
    problem = operator.problem(inputs.q, inputs.k, inputs.v, device="cpu")
    accepting = [row.variant for row in operator.explain(problem) if not row.reasons]
    assert operator.select(problem) == accepting[0]
    assert [row.variant for row in operator.explain(problem)] == list(operator.variants())


@dataclass(frozen=True)
class Band(Mask):
    """A third party's mask: keys up to `left` before the query, and whatever a table of heads allows."""

    left: Int32Leaf
    allowed: TensorLeaf = tensor_leaf(rank=2)

    name: ClassVar[str] = "bands.band"

    def visible(self, coords: Coords) -> Any:
        table = self.allowed[coords.head, coords.k] > 0
        return table & (coords.k >= coords.q - self.left) & (coords.k < coords.sk)


def test_a_third_partys_mask_gets_rows_of_its_own(operator: Operator, inputs: cases.Inputs) -> None:
    table = (np.arange(4 * 40).reshape(4, 40) % 3 > 0).astype(np.float32)
    got = operator(inputs.q, inputs.k, inputs.v, mask=Band(5, table))
    assert np.array_equal(got, oracle(inputs, Band(5, table))[0])
    wider = operator(inputs.q, inputs.k, inputs.v, mask=Band(50, table))
    assert np.array_equal(wider, oracle(inputs, Band(50, table))[0])
    assert not np.array_equal(got, wider)
    ids = [row.id for row in operator.variants((Band(5, table),))]
    num_causal = sum(row.fusion == Causal() for row in operator.variants())
    assert len(set(ids)) == len(ids) == len(operator.variants()) + num_causal


def test_leaves_are_checked(operator: Operator, inputs: cases.Inputs) -> None:
    table = np.ones((4, 40), np.float32)
    for mask, message in (
        (Band(5, table.astype(np.float16)), r"bands\.band\.allowed: got dtype fp16, want fp32"),
        (Band(5, table[0]), r"bands\.band\.allowed: got 1 dims \(40,\), want 2 dims"),
        (Band("wide", table), r"bands\.band\.left: got 'wide', want a number"),
    ):
        with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
            operator(inputs.q, inputs.k, inputs.v, mask=mask)


@pytest.mark.parametrize(
    ("batch", "lengths", "mask", "schedule"),
    [
        *((148, lengths, mask, "individual") for lengths in ((), ("seqused_k",)) for mask in (None, Causal())),
        *((149, (), mask, "persistent") for mask in (None, Softcap(3.0))),
        *((149, (), mask, "dynamic") for mask in (Causal(), Softcap(3.0) & Causal(), Window(9, 9))),
        *((149, ("seqused_k",), mask, "dynamic") for mask in (None, Softcap(3.0), Causal())),
        (149, (), score_mod(lambda score, at: score - at.k), "individual"),
        (149, (), mask_mod(lambda at: at.q > at.k) & Causal(), "dynamic"),
        (149, (), Softcap(3.0) & block_sparse(mask_mod(lambda at: at.q > at.k), Extent(1, 1, 1, 1)), "dynamic"),
        (149, (), block_sparse(Causal(), Extent(1, 1, 1, 1)), "dynamic"),
    ],
    ids=lambda value: str(getattr(value, "slug", value)),
)
def test_kernels_whose_ctas_take_several_blocks_are_for_more_blocks_than_sms(
    batch: int, lengths: tuple[str, ...], mask: Fusion | None, schedule: str
) -> None:
    """Persistent ones where all are alike long, dynamic ones where a mask or lengths make some longer."""
    attention, q = registry.get("fmha_fwd"), np.zeros((batch, 1, 1, 64), np.float16)
    rows = {name: np.zeros(batch, np.int32) for name in lengths}
    problem = attention.problem(q, q, q, mask=mask, **rows, device="emulator:sm_100a")
    assert problem.field_values["q_blocks_of_256"] == batch
    assert problem.field_values["num_sms"] == 148
    assert attention.select(problem).config["schedule"] == schedule


@pytest.mark.parametrize(
    ("num_seqs", "num_heads", "num_rows", "num_blocks", "schedule"),
    [
        (74, 2, 9, 148, "individual"),
        (75, 2, 9, 150, "dynamic"),  # short ones, of a block each
        (1, 148, 9, 148, "individual"),
        (1, 149, 9, 149, "dynamic"),
        (2, 50, 600, 150, "dynamic"),
        (0, 200, 0, 0, "individual"),
    ],
)
def test_packed_sequences_have_a_block_each_at_least(
    num_seqs: int, num_heads: int, num_rows: int, num_blocks: int, schedule: str
) -> None:
    attention, q = registry.get("fmha_fwd"), np.zeros((num_rows, num_heads, 64), np.float16)
    offsets = np.full(num_seqs + 1, num_rows, np.int32)
    offsets[0] = 0
    problem = attention.problem(q, q, q, cu_seqlens_q=offsets, cu_seqlens_k=offsets, device="emulator:sm_100a")
    assert problem.field_values["q_blocks_of_256"] == num_blocks
    assert attention.select(problem).config["schedule"] == schedule


@pytest.mark.parametrize(
    ("sq", "sk", "d", "dtype", "schedule"),
    [
        (2048, 2048, 128, np.float16, "pair"),
        (2047, 2048, 128, np.float16, "persistent"),
        (2048, 2047, 128, np.float16, "persistent"),
        (2048, 2048, 64, np.float16, "persistent"),
        (2048, 2048, 96, np.float16, "persistent"),  # whose kernel is preferred to pairs of 128
        (2048, 2048, 128, ml_dtypes.float8_e4m3fn, "persistent"),
    ],
)
def test_pairs_are_for_long_problems_of_large_heads(sq: int, sk: int, d: int, dtype: Any, schedule: str) -> None:
    attention = registry.get("fmha_fwd")
    q, k = np.zeros((1, sq, 19, d), dtype), np.zeros((1, sk, 1, d), dtype)
    problem = attention.problem(q, k, k, device="emulator:sm_100a")
    assert attention.select(problem).config["schedule"] == schedule
    causal = attention.problem(q, k, k, mask=Causal(), device="emulator:sm_100a")
    assert not any(row.variant.config.get("schedule") == "pair" for row in attention.explain(causal) if not row.reasons)


def test_help_shows_the_public_arguments() -> None:
    names = list(inspect.signature(registry.get("fmha_fwd")).parameters)
    assert names == [
        *("q", "k", "v", "mask", "softmax_scale", "return_lse", "out", "lse", "layout"),
        *("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "block_table", "max_ctas"),
        *("q_scale", "k_scale", "v_scale", "out_scale", "out_dtype"),
        *("device", "stream", "variant"),
    ]
    assert "Returns out" in (registry.get("fmha_fwd").__doc__ or "")


def test_prepare_does_all_but_the_launch(
    operator: Operator, inputs: cases.Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator.prepare(inputs.q, inputs.k, inputs.v, out=inputs.o, lse=inputs.lse)
    assert np.isnan(inputs.o.astype(np.float32)).all()
    assert operator.last_launch is None
    monkeypatch.setattr(operator, "_new_plan", None)
    operator(inputs.q, inputs.k, inputs.v, out=inputs.o, lse=inputs.lse)
    assert np.array_equal(inputs.o, oracle(inputs)[0])
