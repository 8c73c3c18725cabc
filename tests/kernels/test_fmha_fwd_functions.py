# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of users' functions: // and % of negative numbers are in kernels what they are in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdeck.core import registry
from opdeck.core.fusion import Coords, score_mod
from opdeck.core.fusion.floatmath import select, to_float
from opdeck.core.fusion.intmath import floor_mod

NUM_HEADS, NUM_ROWS = 4, 128


def of_head(at: Coords, numbers: tuple[Any, ...]) -> Any:
    """The number of each head."""
    chosen = to_float(numbers[0])
    for head, number in enumerate(numbers[1:], 1):
        chosen = select(at.head == head, to_float(number), chosen)
    return chosen


def by_divisors(score: Any, at: Coords, shift: Any, divisor: Any) -> Any:
    x = at.q - at.k + shift
    return score + of_head(at, (x % divisor, x % 3, 77 % divisor, to_float(x) % 2.5))


def by_others(score: Any, at: Coords, shift: Any, divisor: Any) -> Any:
    x = at.q - at.k + shift
    return score + of_head(at, (x // divisor, x % 4, x % -5, at.q % 7))


def by_constants_that_round(score: Any, at: Coords, shift: Any, divisor: Any) -> Any:
    x = at.q - at.k + shift
    return score + of_head(at, (x // 3, x // -5, floor_mod(x, 6), divisor % -3))


@pytest.mark.parametrize(
    "fn",
    [
        by_others,
        pytest.param(by_divisors, marks=pytest.mark.full),
        pytest.param(by_constants_that_round, marks=pytest.mark.full),
    ],
)
def test_divisions_round_down(fn: Callable[..., Any]) -> None:
    """With one key, LSE is its logit."""
    q, k = (np.zeros((1, rows, NUM_HEADS, 64), np.float16) for rows in (NUM_ROWS, 1))
    operator = registry.get("fmha_fwd")

    @settings(deadline=None, max_examples=30, database=None)
    @given(st.integers(-300, 300), st.integers(-9, 9).filter(bool))
    def check(shift: int, divisor: int) -> None:
        mask = score_mod(fn, (shift, divisor))
        _, got = operator(q, k, k, mask=mask, return_lse=True, device="emulator:sm_100a")
        rows = np.arange(NUM_ROWS)
        for head in range(NUM_HEADS):
            assert np.allclose(got[0, head], fn(0.0, Coords(0, head, rows, 0, NUM_ROWS, 1), shift, divisor), atol=1e-3)

    check()
