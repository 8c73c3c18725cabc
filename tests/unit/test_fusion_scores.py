# SPDX-License-Identifier: Apache-2.0
"""Score functions and the sink: what they mean, their order, their names and checks."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from opdeck.core.errors import ArgumentError, ArgumentTypeError
from opdeck.core.fusion import Alibi, Bias, Causal, Coords, Fusion, Residual, Sink, Softcap, Window
from opdeck.plugins.fmha_fwd import reference

SQ, SK = 3, 5
Q, K = np.ogrid[:SQ, :SK]
SLOPES = np.array([0.5, 2.0], np.float32)


def apply(fusion: Fusion, scores: Any, batch: int = 0, head: int = 0) -> Any:
    return fusion.at(batch, head).reference(scores, Coords(batch, head, Q, K, SQ, SK))


def logits() -> Any:
    return np.random.default_rng(0).standard_normal((SQ, SK))


def test_alibi_takes_the_distance_from_the_own_key() -> None:
    scores = logits()
    for head, slope in enumerate(SLOPES):
        want = scores - slope * abs(K - (Q + SK - SQ))
        assert np.array_equal(apply(Alibi(SLOPES), scores, head=head), want)
        assert np.array_equal(apply(Alibi(np.stack([0 * SLOPES, SLOPES])), scores, batch=1, head=head), want)
    assert np.array_equal(apply(Alibi(np.stack([0 * SLOPES, SLOPES])), scores), scores)


def test_softcap_bounds_logits() -> None:
    scores = 100 * logits()
    capped = apply(Softcap(5.0), scores)
    assert np.allclose(capped, 5 * np.tanh(scores / 5))
    assert (abs(capped) <= 5).all()
    for cap in (0, -1.0, np.array(-1.0), float("nan")):
        with pytest.raises(ArgumentError, match=r"Softcap\.cap: got .*, want a cap > 0"):
            Softcap(cap)


@pytest.mark.parametrize("shape", [(2, 2, SQ, SK), (1, 2, 1, SK), (2, 1, SQ, SK), (1, 1, 1, SK)])
@pytest.mark.parametrize("element", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_bias_is_added_and_broadcast(shape: tuple[int, ...], element: Any) -> None:
    bias = np.random.default_rng(1).standard_normal(shape).astype(element)
    full = np.broadcast_to(bias, (2, 2, SQ, SK)).astype(np.float64)
    scores = logits()
    for where in np.ndindex(2, 2):
        assert np.array_equal(apply(Bias(bias), scores, *where), scores + full[where])


def test_the_dtype_of_a_bias_is_part_of_its_kernel() -> None:
    biases = [Bias(np.zeros((1, 1, 1, 4), element)) for element in (np.float32, np.float16, ml_dtypes.bfloat16)]
    assert [bias.canonical_name for bias in biases] == ["bias[dtype=fp32]", "bias[dtype=fp16]", "bias[dtype=bf16]"]
    assert [bias.leaves()[0].dtype for bias in biases] == ["fp32", "fp16", "bf16"]
    with pytest.raises(ArgumentError, match=r"Bias\.dtype: got 'int32', want fp32\|fp16\|bf16"):
        Bias(np.zeros((1, 1, 1, 4), np.int32))
    with pytest.raises(ArgumentTypeError, match=r"bias\.bias: got dtype float64, want fp32\|fp16\|bf16"):
        Bias(np.zeros((1, 1, 1, 4)))
    with pytest.raises(ArgumentTypeError, match=r"bias\.bias: got list, want fp32\|fp16\|bf16"):
        Bias([0.0])


def test_scores_run_as_written_then_masks() -> None:
    scores, alibi, cap = logits(), Alibi(SLOPES), Softcap(1.0)
    for fusion, want in (
        (alibi & cap & Causal(), apply(cap, apply(alibi, scores))),
        (Causal() & cap & alibi, apply(alibi, apply(cap, scores))),
    ):
        assert np.array_equal(apply(fusion, scores), np.where(K <= Q + SK - SQ, want, -np.inf))


def test_pairs_have_one_order_and_so_one_kernel() -> None:
    alibi, cap, sink = Alibi(SLOPES), Softcap(1.0), Sink(SLOPES)
    want = "alibi&softcap&causal[align=bottom_right]&window[right=none]&sink"
    for fusion in (
        sink & alibi & (Causal() & cap) & Window(1, None),
        (alibi & Causal()) & (cap & Window(1, None)) & sink,
        alibi & cap & Causal() & sink & Window(1, None),
    ):
        assert fusion.canonical_name == want
        assert fusion.static_key == (alibi & cap & (Causal() & Window(1, None)) & sink).static_key
        assert [leaf.name for leaf in fusion.leaves()] == ["alibi.slopes", "softcap.cap", "window.left", "sink.logits"]
    assert (alibi & Residual()).canonical_name == "alibi"
    with pytest.raises(ArgumentError, match="fusion: got two sinks, want one at most"):
        sink & alibi & sink
    with pytest.raises(TypeError):
        alibi & "causal"  # type: ignore[operator]


def test_pairs_visit_the_tiles_of_their_mask() -> None:
    pair = Alibi(SLOPES) & Window(7, 1) & Sink(SLOPES)
    for q_block in range(4):
        assert pair.tile_ranges(q_block, (8, 4), 30, 40) == Window(7, 1).tile_ranges(q_block, (8, 4), 30, 40)
    assert Softcap().tile_ranges(0, (8, 4), 30, 41) == Residual().tile_ranges(0, (8, 4), 30, 41)


@pytest.mark.parametrize("sink", [-np.inf, -2.0, 0.0, 100.0])
@pytest.mark.parametrize("num_keys", [0, 4])
def test_a_sink_takes_weight_and_gives_none(sink: float, num_keys: int) -> None:
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal((1, n, 1, 8)) for n in (3, num_keys, num_keys))
    o, lse = reference.forward(q, k, v, Sink(np.array([sink])), 1.0)
    extra = np.concatenate([q[0, :, 0] @ k[0, :, 0].T, np.full((3, 1), sink)], axis=1)
    with np.errstate(divide="ignore"):
        want_lse = np.log(np.exp(extra).sum(axis=1))
    weights = np.exp(extra - np.where(np.isneginf(want_lse), 0.0, want_lse)[:, None])
    assert np.allclose(o[0, :, 0], weights[:, :-1] @ v[0, :, 0])
    assert np.allclose(lse[0, 0], want_lse)
