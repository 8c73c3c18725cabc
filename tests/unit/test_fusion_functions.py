# SPDX-License-Identifier: Apache-2.0
"""score_mod and mask_mod: what makes two functions one kernel, what they compute, how they travel."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from opdeck.core.errors import ArgumentTypeError
from opdeck.core.fusion import Causal, Coords, calls, mask_mod, score_mod
from opdeck.core.fusion.floatmath import tanh
from opdeck.core.fusion.identity import identity
from opdeck.core.fusion.intmath import floor_mod

SQ, SK = 5, 7
WIDTH = 3
UNNAMED = np.arange(4)


def coords() -> Coords:
    q, k = np.ogrid[:SQ, :SK]
    return Coords(1, 2, q, k, SQ, SK)


def made(source: str, **scope: Any) -> Callable[..., Any]:
    """A function that no module has, with globals of its own."""
    exec(source, scope)
    function: Callable[..., Any] = scope["fn"]
    return function


def test_score_mod_is_the_function() -> None:
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    fusion = score_mod(lambda score, at, t, gain: gain * score + t[at.head, at.batch] - at.k, (table, 2.0))
    scores = np.random.default_rng(0).standard_normal((SQ, SK))
    assert np.allclose(fusion.reference(scores, coords()), 2 * scores + table[2, 1] - np.arange(SK))
    assert [(leaf.name, leaf.dtype, leaf.rank) for leaf in fusion.leaves()] == [
        ("score_mod.aux0", "fp32", 2),
        ("score_mod.aux1", "fp32", 0),
    ]


def test_mask_mod_hides_keys_past_the_end_too() -> None:
    visible = mask_mod(lambda at: (at.q + at.k) % 2 == 0).visible(coords()._replace(k=np.arange(SK + 3)))
    assert not visible[:, SK:].any()
    assert np.array_equal(visible[:, :SK], (np.arange(SQ)[:, None] + np.arange(SK)) % 2 == 0)


def test_tensors_are_read_within_the_sequence() -> None:
    keys = np.arange(SK, dtype=np.int32)
    got = score_mod(lambda score, at, t: t[at.k], (keys,)).score(0.0, coords()._replace(k=np.arange(SK + 3)))
    assert got.tolist() == [*keys, SK - 1, SK - 1, SK - 1]


SOURCE = "def fn(score, at):\n    return score * limit + helper(at.k)\ndef helper(k):\n    return {constant}\n"


def key(constant: str = "k", **scope: Any) -> str:
    return score_mod(
        made(SOURCE.format(constant=constant) + "fn.__globals__['helper'] = helper", **scope)
    ).canonical_name


def test_kernels_are_told_apart_by_what_functions_do() -> None:
    same = key(limit=2)
    assert key(limit=2) == same  # another function object
    others = [key(limit=3), key(limit=2.0), key(limit=True), key("k + 1", limit=2)]
    assert len({same, *others}) == 5


def test_types_of_aux_are_part_of_the_name() -> None:
    def fn(score: Any, at: Coords, x: Any) -> Any:
        return score + x

    names = {score_mod(fn, (value,)).slug for value in (1, 1.0, np.zeros(3, np.float32), np.zeros((3, 3), np.float32))}
    assert len(names) == 4
    assert score_mod(fn, (1.0,)).static_key == score_mod(fn, (2.0,)).static_key


def closure(width: int) -> Callable[..., Any]:
    return lambda score, at: tanh(score) * width + WIDTH


@pytest.mark.parametrize("and_causal", [False, True])
def test_functions_travel_to_compiler_processes(and_causal: bool) -> None:
    fusion: Any = score_mod(closure(4))
    fusion = fusion & Causal() if and_causal else fusion
    name = fusion.static_key, fusion.canonical_name, identity(fusion)  # cached before it leaves
    sent = pickle.loads(pickle.dumps(fusion.without_values()))
    assert (sent.static_key, sent.canonical_name, identity(sent)) == name
    scores = np.random.default_rng(0).standard_normal((SQ, SK))
    assert np.array_equal(sent.reference(scores, coords()), fusion.reference(scores, coords()))


@pytest.mark.parametrize(
    ("fn", "wrong"),
    [
        (np.add, "fn: got <ufunc 'add'>, want a Python function"),
        (lambda score, at: score + UNNAMED[0], "fn's UNNAMED: got ndarray, want .*arrays go in aux"),
        (lambda score, at, x=[1]: score, "fn's default 00: got list"),
    ],
)
def test_what_has_no_identity_is_named(fn: Any, wrong: str) -> None:
    with pytest.raises(ArgumentTypeError, match=wrong):
        score_mod(fn)


def test_an_aux_that_is_no_array_is_named() -> None:
    with pytest.raises(ArgumentTypeError, match=r"aux\[1\]: got"):
        score_mod(lambda score, at, a, b: score, (1, object()))
    with pytest.raises(ArgumentTypeError, match=r"aux\[0\]: got dtype float64, want fp16\|bf16\|fp32\|"):
        score_mod(lambda score, at, table: score, (np.zeros(3),))


def test_aux_that_is_no_sequence_is_named() -> None:
    with pytest.raises(ArgumentTypeError, match="aux: got float, want a tuple of numbers and arrays"):
        score_mod(lambda score, at, x: score * x, 2.0)


def test_host_calls_leave_the_dsls_numbers_alone() -> None:
    """Threads may make them at once."""
    cutlass = pytest.importorskip("cutlass")
    seen = []

    def fn(score: Any, at: Coords) -> Any:
        seen.append(cutlass.Numeric.__mod__)
        return score

    calls.call(fn, 0.0, coords())
    assert seen == [cutlass.Numeric.__mod__]


def test_floor_mod_is_pythons_remainder() -> None:
    assert [floor_mod(a, b) for a in range(-9, 9) for b in (1, 3, 4)] == [
        a % b for a in range(-9, 9) for b in (1, 3, 4)
    ]


def test_a_score_function_may_be_constant() -> None:
    assert (score_mod(lambda score, at: 1.0).reference(np.zeros((SQ, SK)), coords()) == np.ones((SQ, SK))).all()
