# SPDX-License-Identifier: Apache-2.0
"""The oracle of fmha_fwd against loops over single elements, and what the case table promises."""

from __future__ import annotations

import math

import numpy as np
import pytest

from opdeck.core.fusion import Causal, Mask
from opdeck.plugins.fmha_fwd import case_table, cases, reference
from opdeck.plugins.fmha_fwd.cases import Case, Shape, Values, View


def one_row(q: np.ndarray, k: np.ndarray, v: np.ndarray, seen: range, scale: float) -> tuple[list[float], float]:
    """O and LSE of one query by the definition, in Python floats."""
    weights = [math.exp(scale * math.fsum(float(a) * float(b) for a, b in zip(q, k[j], strict=True))) for j in seen]
    if not weights:
        return [0.0] * v.shape[1], -math.inf
    total = math.fsum(weights)
    o = [math.fsum(w * float(v[j, d]) for w, j in zip(weights, seen, strict=True)) / total for d in range(v.shape[1])]
    return o, math.log(total)


@pytest.mark.parametrize("mask", [None, Causal(), Causal(align="top_left")], ids=str)
@pytest.mark.parametrize(("sq", "sk"), [(5, 7), (7, 5), (3, 3), (4, 0)])
def test_oracle_is_the_definition(mask: Mask | None, sq: int, sk: int) -> None:
    rng = np.random.default_rng(1)
    q = rng.normal(size=(2, sq, 4, 8))
    k, v = rng.normal(size=(2, 2, sk, 2, 8))
    o, lse = reference.forward(q, k, v, mask, 0.3)
    offset = {None: sk, "bottom_right": sk - sq, "top_left": 0}[None if mask is None else mask.align.value]
    for b, i, h in np.ndindex(2, sq, 4):
        seen = range(min(sk, max(0, i + offset + 1)))
        want_o, want_lse = one_row(q[b, i, h], k[b, :, h // 2], v[b, :, h // 2], seen, 0.3)
        assert o[b, i, h] == pytest.approx(want_o, abs=1e-12)
        assert lse[b, h, i] == pytest.approx(want_lse, abs=1e-12)


def test_oracle_does_not_depend_on_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = cases.make_inputs(Case(Shape(1, 2, 1, 50, 40, 16), Causal()), seed=0)
    whole = reference.forward(inputs.q, inputs.k, inputs.v, Causal(), 0.25)
    monkeypatch.setattr(reference, "MAX_SCORE_ELEMS", 7 * 40)
    blocks = reference.forward(inputs.q, inputs.k, inputs.v, Causal(), 0.25)
    for a, b in zip(whole, blocks, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("mask", [None, Causal()], ids=str)
def test_oracle_of_sequences_is_that_of_each_by_itself(mask: Mask | None) -> None:
    rng = np.random.default_rng(2)
    q, (k, v) = rng.normal(size=(1, 12, 2, 4)), rng.normal(size=(2, 1, 14, 1, 4))
    offsets = {"cu_seqlens_q": np.array([1, 6, 6, 10]), "cu_seqlens_k": np.array([0, 3, 9, 13])}
    used = {"seqused_q": np.array([5, 3, -1]), "seqused_k": np.array([2, 99, 4])}
    o, lse = reference.forward(q, k, v, mask, 0.3, offsets | used)
    want_o, want_lse = reference.forward(q[:, 1:6], k[:, :2], v[:, :2], mask, 0.3)
    np.testing.assert_allclose(o[:, 1:6], want_o, rtol=1e-12)
    np.testing.assert_allclose(lse[:, :, 1:6], want_lse, rtol=1e-12)
    for unused in (slice(0, 1), slice(6, 12)):
        assert np.isnan(o[:, unused]).all()
        assert np.isnan(lse[:, :, unused]).all()


def test_oracle_of_no_pages() -> None:
    q, pages = np.ones((1, 3, 2, 8)), np.ones((0, 128, 2, 8))
    options = {"block_table": np.full((1, 2), -1), "seqused_k": np.array([0])}
    o, lse = reference.forward(q, pages, pages, None, 1.0, options)
    assert (o == 0).all()
    assert np.isneginf(lse).all()


def test_oracle_survives_huge_logits() -> None:
    q = np.full((1, 1, 1, 2), 1e4)
    k = np.stack([np.full((1, 1, 2), 1e4), np.full((1, 1, 2), -1e4)], axis=1)
    v = np.array([1.0, 2.0]).reshape(1, 2, 1, 1)
    o, lse = reference.forward(q, k, v, None, 1.0)
    assert o.item() == 1.0
    assert lse.item() == 2e8


def test_case_ids_are_unique_and_each_kind_is_there() -> None:
    table = list(case_table.cases())
    assert len({case.id for case in table}) == len(table)
    assert {case.values for case in table} == set(Values)
    assert {case.view for case in table} == set(View)
    assert {case.shape.d for case in table} == {64, 128}


@pytest.mark.parametrize("view", list(View))
@pytest.mark.parametrize("values", list(Values))
def test_views_hold_the_same_values(view: View, values: Values) -> None:
    shape = Shape(2, 4, 2, 9, 9, 64)
    compact = cases.make_inputs(Case(shape, values=values), seed=3)
    placed = cases.make_inputs(Case(shape, values=values, view=view), seed=3)
    for name in ("q", "k", "v"):
        assert np.array_equal(getattr(placed, name), getattr(compact, name))
    assert np.isnan(placed.o.astype(np.float32)).all()
    assert np.isnan(placed.lse).all()
    assert (placed.q.strides == compact.q.strides) == (view is View.COMPACT)
