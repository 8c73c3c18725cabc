# SPDX-License-Identifier: Apache-2.0
"""Attention over split keys, merged, against attention over all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opdeck.core import dtypes, registry
from opdeck.core.errors import ArgumentError, ArgumentTypeError
from opdeck.core.verify import compare
from opdeck.plugins.fmha_fwd.states import merge_states

LIBRARIES = pytest.mark.parametrize("library", ["numpy", "torch"])


def of_library(library: str, *values: np.ndarray) -> list[Any]:
    return list(values) if library == "numpy" else [pytest.importorskip("torch").from_numpy(x) for x in values]


@LIBRARIES
@pytest.mark.parametrize("split", [0, 1, 37, 90])
def test_merged_states_are_those_of_all_keys(library: str, split: int) -> None:
    rng = np.random.default_rng(split)
    q, k, v = (rng.standard_normal((2, rows, 3, 64)).astype(np.float16) for rows in (5, 90, 90))
    k *= np.float16(3)  # so that one part may have nearly all the weight
    attention = registry.get("fmha_fwd")
    want_o, want_lse = attention(q, k, v, return_lse=True, device="cpu")
    parts = [attention(q, k[:, s], v[:, s], return_lse=True, device="cpu") for s in (slice(split), slice(split, None))]
    o, lse = merge_states(*of_library(library, *parts[0], *parts[1]))
    tolerance = dtypes.dtype("fp16").tolerance
    assert tolerance is not None
    assert compare(np.asarray(o), want_o).within(tolerance)
    np.testing.assert_allclose(np.asarray(lse), want_lse, atol=1e-5)
    assert o.dtype == of_library(library, q)[0].dtype


@LIBRARIES
def test_parts_without_keys_weigh_nothing(library: str) -> None:
    """Both empty (reported: NaN): O 0, LSE -inf. One empty: the other, whatever the O of the empty one holds."""
    o, zero = np.ones((1, 2, 1, 64), np.float16), np.zeros((1, 2, 1, 64), np.float16)
    zero[0, 1] = np.nan
    lse, none = np.array([[[-np.inf, 200]]], np.float32), np.full((1, 1, 2), -np.inf, np.float32)
    for states in ((zero, none, o, lse), (o, lse, zero, none)):
        merged_o, merged_lse = (np.asarray(x) for x in merge_states(*of_library(library, *states)))
        assert (merged_o[0, 0] == 0).all()
        assert (merged_o[0, 1] == 1).all()
        assert np.array_equal(merged_lse, lse)


def test_states_that_do_not_fit_are_refused() -> None:
    o, lse = np.zeros((7, 2, 64), np.float16), np.zeros((2, 7), np.float32)
    with pytest.raises(ArgumentError, match=r"lse_a: got shape \(7, 2\), want \(2, 7\), as o_a has it"):
        merge_states(o, lse.T, o, lse)
    with pytest.raises(ArgumentError, match=r"o_b: got shape \(7, 2, 32\), want \(7, 2, 64\)"):
        merge_states(o, lse, o[..., :32], lse)
    with pytest.raises(ArgumentError, match=r"o_a: got shape \(2, 64\), want \(B, Sq, Hq, Dv\) or \(T, Hq, Dv\)"):
        merge_states(o[0], lse, o, lse)
    with pytest.raises(ArgumentTypeError, match="lse_b: got list, want a numpy array or torch tensor"):
        merge_states(o, lse, o, [0.0])
