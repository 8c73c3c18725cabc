# SPDX-License-Identifier: Apache-2.0
"""Errors in functions of score_mod and mask_mod, and in methods of others' fusions: file, line and cause are named, on
the host and in compilers alike."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faulty_fusions
import numpy as np
import pytest
from faulty_fusions import (
    Bounded,
    Branching,
    FromMath,
    NoMethod,
    NoResult,
    NoTruth,
    OneBound,
    OneIndex,
    RowInAt,
    RowOfTable,
)

from opdeck.core import registry
from opdeck.core.errors import ArgumentError, ArgumentTypeError, OpdeckError
from opdeck.core.fusion import AttentionFusion, Mask, mask_mod, score_mod

SLOPES, TABLE = np.ones(2, np.float32), np.ones((2, 16), np.float32)


def no_result(score: Any, at: Any) -> None:
    score * at.k


def two_lines(score: Any, at: Any) -> Any:
    distance = at.q - at.k
    return score if distance > 0 else -score


def first_line(function: Callable[..., Any]) -> int:
    return function.__code__.co_firstlineno


# Made by, what is raised, and what of the message is the same everywhere.
FUSIONS: dict[str, tuple[Callable[[], AttentionFusion], type[OpdeckError], str]] = {
    "if": (
        lambda: score_mod(two_lines),
        ArgumentError,
        f"two_lines ({__file__}:{first_line(two_lines)}), which fails in line {first_line(two_lines) + 2}: ",
    ),
    "and": (lambda: mask_mod(lambda at: at.q >= at.k and at.k > 3), ArgumentError, "which fails in line "),
    "not": (lambda: mask_mod(lambda at: not at.q < at.k), ArgumentError, "which fails in line "),
    "numpy": (lambda: score_mod(lambda score, at: np.linalg.norm(score, at.q)), ArgumentError, "which fails in line "),
    "math": (lambda: score_mod(lambda score, at: math.tanh(score)), ArgumentError, "which fails in line "),
    "coord": (
        lambda: score_mod(lambda score, at: score + at.row),
        ArgumentError,
        "'Coords' object has no attribute 'row'",
    ),
    "none": (
        lambda: score_mod(no_result),
        ArgumentTypeError,
        f"no_result ({__file__}:{first_line(no_result)}), which returns None, want a n",
    ),
    "tuple": (
        lambda: score_mod(lambda score, at: (score, at.k)),
        ArgumentTypeError,
        "which returns an object of <class 'tu",
    ),
    "truth": (lambda: score_mod(lambda score, at: at.q > at.k), ArgumentTypeError, "want a number, the new logit"),
    "number": (lambda: mask_mod(lambda at: at.q - at.k), ArgumentTypeError, "want a truth value, comparisons joined"),
    "int": (lambda: mask_mod(lambda at: 1), ArgumentTypeError, "<class 'int'>, want a truth value"),
    "one index": (
        lambda: score_mod(lambda score, at, table: score + table[at.head], (TABLE,)),
        ArgumentError,
        "IndexError: aux[0] has 2 dims, and got 1 indices",
    ),
    "two indices": (
        lambda: score_mod(lambda score, at, gain, slopes: score + gain * slopes[at.head, at.q], (2.0, SLOPES)),
        ArgumentError,
        "IndexError: aux[1] has 1 dims, and got 2 indices",
    ),
    "index of a float": (
        lambda: score_mod(lambda score, at, slopes: slopes[at.head * 0.5], (SLOPES,)),
        ArgumentError,
        "as index of dim 0, and takes integers",
    ),
    "index -1": (
        lambda: score_mod(lambda score, at, slopes: score + slopes[-1], (SLOPES,)),
        ArgumentError,
        "IndexError: aux[0] got -1 as index of dim 0, and none is less than 0",
    ),
}
DEVICES = [
    pytest.param(
        name, device, id=f"{name}-{device}", marks=[pytest.mark.full] if device != "cpu" and name != "if" else []
    )
    for name in FUSIONS
    for device in ("cpu", "emulator:sm_100a")
]


@pytest.mark.parametrize(("name", "device"), DEVICES)
def test_an_error_in_a_function_is_named(name: str, device: str) -> None:
    make, kind, message = FUSIONS[name]
    q = np.zeros((1, 16, 2, 64), np.float16)
    with pytest.raises(kind, match=r"^fn: got ") as caught:
        registry.get("fmha_fwd")(q, q, q, mask=make(), device=device)
    assert message in str(caught.value)
    assert f"({__file__}:" in str(caught.value)
    assert len(str(caught.value)) < 600
    if kind is ArgumentError or device != "cpu":
        assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: score_mod(lambda score: score), "a function of (score), want one of (score, coords) (too many"),
        (
            lambda: score_mod(two_lines, (1, 2.0)),
            "), a function of (score, at), want one of (score, coords, aux[0], aux[1]) (too many",
        ),
        (
            lambda: mask_mod(lambda at, width: at.q < width),
            "want one of (coords) (missing a required argument: 'width')",
        ),
        (lambda: score_mod(lambda score, at: score * TABLE[0, 0]), "fn's TABLE: got ndarray, want None, a bool, "),
        (lambda: score_mod(lambda score, at: score * TABLE[0, 0]), "(arrays go in aux; <lambda> ({file}:"),
    ],
)
def test_a_function_that_no_kernel_can_call_is_named(make: Callable[[], AttentionFusion], message: str) -> None:
    with pytest.raises(ArgumentTypeError, match=re.escape(message.format(file=__file__))):
        make()


def test_the_standard_library_may_be_taken() -> None:
    """Its modules have no sources to hash, some of them."""
    assert score_mod(lambda score, at: score * math.pi).score(2.0, None) == 2 * math.pi


# What is raised for a class's method, and the beginning of the message; {line}: of a text in the source.
METHODS: dict[str, tuple[AttentionFusion, type[OpdeckError], str, str]] = {
    "if": (Branching(), ArgumentError, "faulty.branching.visible: got Branching.visible", "if coords.q < 3"),
    "called": (
        Bounded(),
        ArgumentError,
        "faulty.bounded.visible_interval: got Bounded.visible_interval",
        "return sk if q > sk",
    ),
    "math": (FromMath(), ArgumentError, "faulty.from_math.score: got FromMath.score", "return self.cap * math.tanh"),
    "at": (
        OneIndex(SLOPES),
        ArgumentError,
        "faulty.one_index.at: got OneIndex.at",
        "return self.replace(table=self.tabel",
    ),
    "row": (
        RowOfTable(TABLE),
        ArgumentError,
        "faulty.row_of_table.score: got RowOfTable.score",
        "return score + self.table[coords.head]",
    ),
    "row in at": (RowInAt(TABLE), ArgumentError, "faulty.row_in_at.at: got RowInAt.at", "# a row"),
    "none": (NoResult(), ArgumentTypeError, "faulty.no_result.score: got NoResult.score", ""),
    "truth": (NoTruth(), ArgumentTypeError, "faulty.no_truth.visible: got NoTruth.visible", ""),
    "pair": (OneBound(), ArgumentTypeError, "faulty.one_bound.visible_interval: got OneBound.visible_interval", ""),
    "lacks": (NoMethod(), ArgumentTypeError, "NoMethod.visible_interval: got no such method, want one", ""),
}
METHOD_DEVICES = [
    pytest.param(
        name,
        device,
        id=f"{name}-{device}",
        marks=[] if device == "cpu" or name in ("if", "pair", "row") else [pytest.mark.full],
    )
    for name in METHODS
    for device in ("cpu", "emulator:sm_100a", "emulator:sm_90a")
    if device != "emulator:sm_90a" or isinstance(METHODS[name][0], Mask)
]


@pytest.mark.parametrize(("name", "device"), METHOD_DEVICES)
def test_an_error_in_a_method_is_named(name: str, device: str) -> None:
    """As one in a function is: by class, method, file and line."""
    fusion, kind, message, failing = METHODS[name]
    q = np.zeros((1, 16, 2, 64), np.float16)
    with pytest.raises(kind, match=f"^{re.escape(message)}") as caught:
        registry.get("fmha_fwd")(q, q, q, mask=fusion, device=device)
    text = str(caught.value)
    assert len(text) < 600
    assert "\n" not in text
    if name.startswith("row"):
        assert f"IndexError: {fusion.name}.table has 2 dims, and got 1 indices: index with all dims at once" in text
    if name != "lacks":
        assert f"({faulty_fusions.__file__}:" in text
    if failing:
        lines = Path(faulty_fusions.__file__).read_text().splitlines()
        (number,) = (idx for idx, line in enumerate(lines, 1) if failing in line)
        assert f"which fails in line {number}: " in text
    if failing or device != "cpu":
        assert caught.value.__cause__ is not None
