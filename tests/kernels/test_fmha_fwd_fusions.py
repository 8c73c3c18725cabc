# SPDX-License-Identifier: Apache-2.0
"""The built-in fusions with run-time arguments, in the kernels, each compiled at its first call.

Ragged lengths, shared key heads, rows that see no key. The multiply-accumulates must be those of the tiles that the
fusion visits with the values of this call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import numpy as np
import pytest

from opdeck.core import dtypes, registry
from opdeck.core.devices import Device, open_device
from opdeck.core.errors import Unsupported
from opdeck.core.fusion import Alibi, Bias, Causal, Document, Extent, Fusion, LeafKind, PrefixLM, Sink, Softcap, Window
from opdeck.core.verify import compare
from opdeck.plugins.fmha_fwd import cases, reference
from opdeck.plugins.fmha_fwd.cases import Case, Shape

LEAF = LeafKind.TENSOR  # `sample` puts a value in its place


@dataclass(frozen=True)
class Kernel:
    """One compiled kernel and the values to try on it. shape: ragged, of two tiles each way."""

    arch: str
    shape: Shape
    dtype: str
    fusions: tuple[Fusion, ...]


FP16, BF16 = Shape(2, 4, 2, 200, 300, 64), Shape(2, 2, 1, 300, 190, 128)
SLOPES = np.array([0.0, 0.01, 1.0, 30.0], np.float32)
SINKS = np.array([0.5, 100.0], np.float32)
SCORES_IN_ORDER = tuple(Alibi(slopes) & Softcap(2.0) & Window(60, 90) & Sink(LEAF) for slopes in (LEAF, SLOPES[None]))
KERNELS = {
    "window": Kernel("sm_100a", FP16, "fp16", (Window(40, 10), Window(0, 0), Window(2**31 - 1, 2**31 - 1))),
    "window_of_one_side": Kernel("sm_103a", BF16, "bf16", (Window(None, 30) & Sink(SINKS),)),
    "prefix_lm": Kernel("sm_100a", FP16, "fp16", (PrefixLM(LEAF), PrefixLM(np.array([-5, 10000], np.int32)))),
    "prefix_lm_and_alibi": Kernel("sm_103a", BF16, "bf16", (Alibi(LEAF) & PrefixLM(LEAF),)),
    "document": Kernel("sm_100a", FP16, "fp16", (Document(LEAF), Document(np.zeros((1, 200, 2), np.int32)))),
    "document_and_softcap": Kernel("sm_103a", BF16, "bf16", (Softcap(3.0) & Document(LEAF) & Causal(),)),
    "scores_in_order": Kernel("sm_100a", FP16, "fp16", SCORES_IN_ORDER),
}


def check(fusion: Fusion, kernel: Kernel, device: Device) -> str:
    """Runs one fusion, compares with the oracle; the id of the variant."""
    shape, operator = kernel.shape, registry.get("fmha_fwd")
    inputs = cases.make_inputs(Case(shape, None, kernel.dtype), seed=5)
    operator(inputs.q, inputs.k, inputs.v, mask=fusion, out=inputs.o, lse=inputs.lse, device=device)
    want_o, want_lse = reference.forward(inputs.q, inputs.k, inputs.v, fusion, softmax_scale=shape.d**-0.5)
    tolerance = dtypes.dtype(kernel.dtype).tolerance
    assert tolerance is not None
    assert compare(inputs.o, want_o).within(tolerance)
    assert compare(inputs.lse, want_lse).within(replace(tolerance, relative=inf))
    assert np.array_equal(np.isneginf(inputs.lse), np.isneginf(want_lse))
    launch, report = operator.last_launch, device.last_report()
    assert launch is not None
    assert report is not None
    assert report.mma_macs == cases.expected_macs(Case(shape), replace(launch.variant, fusion=fusion))
    return launch.variant.id


@pytest.mark.parametrize("name", list(KERNELS))
def test_fusion(name: str) -> None:
    kernel = KERNELS[name]
    shape = kernel.shape
    extent, rng = Extent(shape.b, shape.hq, shape.sq, shape.sk), np.random.default_rng(11)
    sampled = [fusion.sample(extent, rng) for fusion in kernel.fusions]
    runs = [("random:3", fusion) for fusion in sampled] + [("eager", sampled[0])]
    ids = {
        check(fusion, kernel, open_device(f"emulator:{kernel.arch}", schedule, "strict")) for schedule, fusion in runs
    }
    assert len(ids) == 1


def test_a_sink_is_what_a_row_without_keys_sees() -> None:
    """O = 0 and LSE = the sink, 100 included; so for a sequence of no keys, and for rows that the window hides."""
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


def test_a_bias_is_refused_and_not_compiled_to_a_kernel_that_spills() -> None:
    inputs = cases.make_inputs(Case(FP16, None, "fp16"), seed=5)
    bias = Bias(np.zeros((1, 1, 1, FP16.sk), np.float32))
    with pytest.raises(Unsupported, match=r"fmha_fwd on sm_100a fusion=bias.*: none of"):
        registry.get("fmha_fwd")(inputs.q, inputs.k, inputs.v, mask=bias & Causal(), device="emulator:sm_100a")
