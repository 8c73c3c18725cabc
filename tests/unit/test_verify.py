# SPDX-License-Identifier: Apache-2.0
"""Errors against an oracle: what passes, and above all what must not."""

from __future__ import annotations

import numpy as np
import pytest

from opdeck.core.dtypes import Tolerance
from opdeck.core.verify import compare

TOLERANCE = Tolerance(max_abs=1e-2, mean_abs=1e-3, relative=1e-2)


def test_equal_arrays_have_no_error() -> None:
    want = np.array([0.0, -np.inf, 3.0])
    errors = compare(want, want)
    assert (errors.max_abs, errors.mean_abs, errors.relative) == (0.0, 0.0, 0.0)
    assert compare(np.zeros((0, 3)), np.zeros((0, 3))).within(TOLERANCE)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 1.5])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_wrong_element_fails(wrong: float, place: int) -> None:
    want = np.array([1.0, -np.inf, 2.0] + [0.5] * 5000)
    got = want.copy()
    got[place] = wrong if wrong != want[place] else np.nan
    assert not compare(got, want).within(TOLERANCE)


def test_errors_are_as_defined() -> None:
    errors = compare(np.array([3.0, 0.5]), np.array([4.0, 0.25]))
    assert errors.max_abs == 0.25
    assert errors.mean_abs == 0.625
    assert errors.relative == pytest.approx(np.hypot(1.0, 0.25) / np.hypot(4.0, 0.25))


def test_small_values_cannot_hide_behind_absolute_bounds() -> None:
    assert not compare(np.zeros(10), np.full(10, 1e-4)).within(TOLERANCE)


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match=r"got: shape \(2,\), want \(3,\)"):
        compare(np.zeros(2), np.zeros(3))
