# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of users' functions and classes: // and % of negative numbers are in kernels what they are in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dividing_fusions import Blocks, Divided, OneOfThree
from hypothesis import given, settings
from hypothesis import strategies as st

from opdeck.core import registry
from opdeck.core.fusion import AttentionFusion, Coords, check_tile_ranges, score_mod
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


def lse_of_one_key(fusion: AttentionFusion) -> np.ndarray:
    """The logit of each query of each head, after the fusion has changed it from 0."""
    q, k = (np.zeros((1, rows, NUM_HEADS, 64), np.float16) for rows in (NUM_ROWS, 1))
    _, lse = registry.get("fmha_fwd")(q, k, k, mask=fusion, return_lse=True, device="emulator:sm_100a")
    return lse[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "fn",
    [
        by_others,
        pytest.param(by_divisors, marks=pytest.mark.full),
        pytest.param(by_constants_that_round, marks=pytest.mark.full),
    ],
)
def test_divisions_round_down(fn: Callable[..., Any]) -> None:
    @settings(deadline=None, max_examples=30, database=None)
    @given(st.integers(-300, 300), st.integers(-9, 9).filter(bool))
    def check(shift: int, divisor: int) -> None:
        got, rows = lse_of_one_key(score_mod(fn, (shift, divisor))), np.arange(NUM_ROWS)
        for head in range(NUM_HEADS):
            assert np.allclose(got[head], fn(0.0, Coords(0, head, rows, 0, NUM_ROWS, 1), shift, divisor), atol=1e-3)

    check()


def test_a_remainder_of_a_class_has_the_divisors_sign() -> None:
    for shift in (-200, 5):
        rows = np.arange(NUM_ROWS)
        want = OneOfThree(shift).score(np.zeros(NUM_ROWS), Coords(0, 0, rows, 0, NUM_ROWS, 1))
        assert np.allclose(lse_of_one_key(OneOfThree(shift)), want, atol=1e-3)


@pytest.mark.parametrize("arch", ["sm_100a", pytest.param("sm_90a", marks=pytest.mark.full)])
def test_divisions_of_a_class_round_down(arch: str) -> None:
    """All scores are 0, so LSE is the logarithm of the number of keys that are seen."""
    q = np.zeros((1, NUM_ROWS, NUM_HEADS, 64), np.float16)
    for shift, divisors in ((0, (2, -3, 7)), (-300, (-5, 9, -8)), (70, (4, -1, 6))):
        mask = Divided(shift, np.array(divisors, np.int32))
        _, lse = registry.get("fmha_fwd")(q, q, q, mask=mask, return_lse=True, device=f"emulator:{arch}")
        rows, keys = np.ogrid[:NUM_ROWS, :NUM_ROWS]
        for head in range(NUM_HEADS):
            visible = mask.at(0, head).visible(Coords(0, head, rows, keys, NUM_ROWS, NUM_ROWS))
            assert np.allclose(np.exp(lse[0, head]), visible.sum(axis=1), atol=1e-2)


@pytest.mark.parametrize("arch", ["sm_100a", "sm_90a"])
def test_intervals_of_a_class_round_down(arch: str) -> None:
    q = np.zeros((1, 300, 1, 64), np.float16)
    for shift, length in ((0, 48), (250, 48), (1000, 70), (-7, 129)):
        mask = Blocks(shift, length)
        check_tile_ranges(mask, 300, 300)
        _, lse = registry.get("fmha_fwd")(q, q, q, mask=mask, return_lse=True, device=f"emulator:{arch}")
        begin, end = mask.visible_interval(np.arange(300), 300, 300)
        assert np.allclose(lse[0, 0], np.log(end - begin), atol=1e-3)
