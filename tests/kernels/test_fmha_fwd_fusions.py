# SPDX-License-Identifier: Apache-2.0
"""The built-in fusions with run-time arguments, in the kernels, each compiled at its first call.

Ragged lengths, packed sequences, shared key heads, rows that see no key. The multiply-accumulates must be those of the
tiles that the fusion visits with the values of this call.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np
import pytest

from opdeck.core import dtypes, registry
from opdeck.core.devices import Device, open_device
from opdeck.core.errors import ArgumentError, Unsupported
from opdeck.core.fusion import (
    Alibi,
    Bias,
    Causal,
    Document,
    Extent,
    Fusion,
    LeafKind,
    PrefixLM,
    Sink,
    Softcap,
    Window,
    mask_mod,
    score_mod,
)
from opdeck.core.fusion.scores import padded_rows
from opdeck.core.verify import compare
from opdeck.plugins.fmha_fwd import cases, reference
from opdeck.plugins.fmha_fwd.cases import Case, Lengths, Shape

LEAF = LeafKind.TENSOR  # `sample` puts a value in its place


@dataclass(frozen=True)
class Kernel:
    """One compiled kernel and the values to try on it, all on one problem. shape: ragged, of two tiles each way."""

    arch: str
    shape: Shape
    dtype: str
    fusions: tuple[Fusion, ...]
    lengths: Lengths = field(default_factory=Lengths)

    @property
    def case(self) -> Case:
        return Case(self.shape, None, self.dtype, lengths=self.lengths)

    @property
    def extent(self) -> Extent:
        sequences = self.case.sequences()
        return Extent(len(sequences), self.shape.hq, *(max(rows) for rows in zip(*sequences, strict=True)))


FP16, BF16 = Shape(2, 4, 2, 200, 300, 64), Shape(2, 2, 1, 300, 190, 128)
SLOPES = np.array([0.0, 0.01, 1.0, 30.0], np.float32)
SINKS = np.array([0.5, 100.0], np.float32)
PACKED_LENGTHS = Lengths(q=(130, 0, 200, 1), k=(257, 70, 0, 140))
PACKED = Shape(1, 2, 1, 340, 470, 64)


TABLE = np.random.default_rng(4).standard_normal((4, 600)).astype(np.float32)
LONG = Shape(1, 1, 1, 256, 1000, 64)
# The second query tile's first K tile is one that comes behind the first one's last.
FAR_APART = np.repeat(np.array([[[0, 400], [600, 1000]]], np.int32), 128, axis=1)


def biases(dtype: str, shape: Shape) -> list[np.ndarray]:
    """Values of each broadcasting, among them -inf, for a whole row too."""
    b, h, sq, sk = shape.b, shape.hq, shape.sq, shape.sk
    rng, made = np.random.default_rng(2), []
    for extents in ((b, h, sq, sk), (1, h, 1, sk), (b, 1, sq, sk), (1, 1, 1, sk)):
        values = 3.0 * rng.standard_normal(extents)
        values[..., 5:9] = -np.inf
        values[0, 0, 0, : sk // 2] = -np.inf
        if extents[2] > 1:
            values[0, -1, 17] = -np.inf
        made.append(padded_rows(values, dtype))
    return made


SCORES_IN_ORDER = tuple(Alibi(slopes) & Softcap(2.0) & Window(60, 90) & Sink(LEAF) for slopes in (LEAF, SLOPES[None]))
KERNELS = {
    "window": Kernel("sm_100a", FP16, "fp16", (Window(40, 10), Window(0, 0), Window(2**31 - 1, 2**31 - 1))),
    "window_of_one_side": Kernel("sm_103a", BF16, "bf16", (Window(None, 30) & Sink(SINKS),)),
    "prefix_lm": Kernel("sm_100a", FP16, "fp16", (PrefixLM(LEAF), PrefixLM(np.array([-5, 10000], np.int32)))),
    "prefix_lm_and_alibi": Kernel("sm_103a", BF16, "bf16", (Alibi(LEAF) & PrefixLM(LEAF),)),
    "document": Kernel("sm_100a", FP16, "fp16", (Document(LEAF), Document(np.zeros((1, 200, 2), np.int32)))),
    "documents_far_apart": Kernel("sm_103a", LONG, "fp16", (Document(FAR_APART),)),
    "document_and_softcap": Kernel("sm_103a", BF16, "bf16", (Softcap(3.0) & Document(LEAF) & Causal(),)),
    "scores_in_order": Kernel("sm_100a", FP16, "fp16", SCORES_IN_ORDER),
    "score_mod": Kernel(
        "sm_103a",
        FP16,
        "fp16",
        tuple(
            score_mod(lambda score, at, table, gain: score + gain * table[at.head, at.q - at.k + at.sk], (TABLE, gain))
            for gain in (0.5, -1.0)
        ),
    ),
    "mask_mod": Kernel(
        "sm_100a",
        BF16,
        "bf16",
        tuple(
            mask_mod(lambda at, width: (at.q + at.head + at.sk - at.k) % 4 < width, (width,)) & Sink(LEAF)
            for width in (3, 0)
        ),
    ),
    "bias": Kernel("sm_100a", BF16, "bf16", tuple(Bias(values) & Causal() for values in biases("fp32", BF16))),
    "bias_among_scores": Kernel(
        "sm_103a",
        FP16,
        "fp16",
        tuple(Softcap(4.0) & Bias(values) & Causal() for values in biases("fp16", FP16)),
    ),
    "many_scores": Kernel(
        "sm_103a", FP16, "fp16", (Softcap(4.0) & Bias(LEAF, "fp32") & Alibi(LEAF) & Document(LEAF) & Sink(LEAF),)
    ),
    "packed_bias": Kernel(
        "sm_100a", PACKED, "bf16", (Alibi(LEAF) & Bias(LEAF, "bf16") & Window(40, 30),), PACKED_LENGTHS
    ),
    "packed_document": Kernel("sm_103a", PACKED, "fp16", (Document(LEAF) & Causal() & Softcap(3.0),), PACKED_LENGTHS),
    "packed_prefix_lm": Kernel("sm_100a", PACKED, "fp16", (PrefixLM(LEAF) & Sink(LEAF),), PACKED_LENGTHS),
}


def check(fusion: Fusion, kernel: Kernel, device: Device) -> str:
    """Runs one fusion, compares with the oracle; the id of the variant."""
    shape, operator = kernel.shape, registry.get("fmha_fwd")
    inputs = cases.make_inputs(kernel.case, seed=5)
    operator(**inputs.arguments(), mask=fusion, device=device)
    scale = shape.d**-0.5
    want_o, want_lse = reference.forward(inputs.q, inputs.k, inputs.v, fusion, scale, inputs.lengths)
    tolerance = dtypes.dtype(kernel.dtype).tolerance
    assert tolerance is not None
    is_used = ~np.isnan(want_lse)
    assert np.isnan(inputs.lse[~is_used]).all()
    o, want_o = (array.swapaxes(1, 2) for array in (inputs.o, want_o))
    assert compare(o[is_used], want_o[is_used]).within(tolerance)
    assert compare(inputs.lse[is_used], want_lse[is_used]).within(replace(tolerance, relative=inf))
    assert np.array_equal(np.isneginf(inputs.lse), np.isneginf(want_lse))
    assert (o[np.isneginf(want_lse)] == 0).all()
    launch, report = operator.last_launch, device.last_report()
    assert launch is not None
    assert report is not None
    assert report.mma_macs == cases.expected_macs(kernel.case, replace(launch.variant, fusion=fusion))
    return launch.variant.id


def sampled(kernel: Kernel) -> list[Fusion]:
    rng = np.random.default_rng(11)
    return [fusion.sample(kernel.extent, rng) for fusion in kernel.fusions]


def check_all(kernel: Kernel, runs: Iterable[tuple[str, Fusion]]) -> None:
    """Runs fusions under schedules: one kernel serves them."""
    ids = {
        check(fusion, kernel, open_device(f"emulator:{kernel.arch}", schedule, "strict")) for schedule, fusion in runs
    }
    assert len(ids) == 1


@pytest.mark.parametrize("name", list(KERNELS))
def test_fusion(name: str) -> None:
    fusions = sampled(KERNELS[name])
    runs = [("random:3", fusion) for fusion in fusions] + [("eager", fusions[0]), ("lazy", fusions[-1])]
    check_all(KERNELS[name], runs)


@pytest.mark.full
@pytest.mark.parametrize(("name", "arch"), [*itertools.product(KERNELS, ("sm_100a", "sm_103a"))])
def test_fusion_on_both_archs_under_every_schedule(name: str, arch: str) -> None:
    kernel = replace(KERNELS[name], arch=arch)
    check_all(kernel, itertools.product(("eager", "lazy", "random:1", "random:2"), sampled(kernel)))


def test_a_sink_is_what_a_row_without_keys_sees() -> None:
    """O = 0 and LSE = the sink, 100 included (reported: NaN), without keys, and in rows that a window hides."""
    device = open_device("emulator:sm_103a", hazards="strict")
    window = Window(None, 30)
    for num_keys in (0, 60):
        inputs = cases.make_inputs(Case(Shape(1, 2, 1, 300, num_keys, 128)), seed=0)
        o, lse = registry.get("fmha_fwd")(
            inputs.q, inputs.k, inputs.v, mask=window & Sink(SINKS), return_lse=True, device=device
        )
        visible = window.visible_interval(np.arange(300), 300, num_keys)
        hidden = np.broadcast_to(visible[0] >= visible[1], 300)
        assert hidden.any()
        assert (o.swapaxes(1, 2)[0][:, hidden] == 0).all()
        assert np.allclose(lse[0][:, hidden], SINKS[:, None], rtol=1e-6)
        assert np.allclose(lse[0, 1], 100.0)


def test_hopper_says_that_it_has_no_score_functions() -> None:
    inputs = cases.make_inputs(Case(FP16, None, "fp16"), seed=5)
    with pytest.raises(Unsupported, match=r"fmha_fwd on sm_90a fusion=softcap .*: none of"):
        registry.get("fmha_fwd")(inputs.q, inputs.k, inputs.v, mask=Softcap(), device="emulator:sm_90a")


def test_two_biases_are_refused() -> None:
    inputs = cases.make_inputs(Case(FP16, None, "fp16"), seed=5)
    bias = Bias(np.zeros((1, 1, 1, FP16.sk), np.float32))
    with pytest.raises(Unsupported, match=r"fmha_fwd on sm_100a fusion=bias.*: none of"):
        registry.get("fmha_fwd")(inputs.q, inputs.k, inputs.v, mask=bias & bias, device="emulator:sm_100a")


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        (np.zeros((1, 1, 1, 301), np.float32), r"bias\.bias: got 301 in dim 3 of shape"),
        (np.zeros((1, 1, 200, 302), np.float32)[..., :300], r"bias\.bias: got a stride of 302 elements in dim sq\|1"),
        (np.zeros((1, 1, 300, 200), np.float32).swapaxes(2, 3), r"bias\.bias: got a stride of 1 elements in dim sq\|1"),
        (np.broadcast_to(np.float32(0), (2, 1, 200, 300)), r"bias\.bias: got a stride of 0 elements in dim batch\|1"),
        (np.zeros((1, 1, 1, 304), np.float32)[..., 1:301], r"bias\.bias: got data at address 0x\w+, want 16-byte"),
    ],
)
def test_a_bias_that_tma_cannot_load_is_refused(values: np.ndarray, wrong: str) -> None:
    inputs = cases.make_inputs(Case(FP16, None, "fp16"), seed=5)
    with pytest.raises(ArgumentError, match=wrong):
        registry.get("fmha_fwd")(inputs.q, inputs.k, inputs.v, mask=Bias(values), device="emulator:sm_100a")
