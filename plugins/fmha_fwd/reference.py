# SPDX-License-Identifier: Apache-2.0
"""reference.py: attention forward in float64, the oracle of fmha_fwd.

Who calls it: the tests and `opdeck run` (forward), the CPU device (make).
Source: O = softmax(mask(Q K^T * softmax_scale)) V and LSE = ln(sum(exp(...))), row by row, no online rescaling.
Limits: a block of rows at a time, so that S never takes more than MAX_SCORE_ELEMS elements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from opdeck.core.fusion import AttentionFusion, Coords, Residual
from opdeck.core.variant import Variant

MAX_SCORE_ELEMS = 1 << 22

Array = npt.NDArray[Any]


def forward(q: Array, k: Array, v: Array, fusion: AttentionFusion | None, softmax_scale: float) -> tuple[Array, Array]:
    """O (B, Sq, Hq, Dv) and LSE (B, Hq, Sq), both float64, of q (B, Sq, Hq, D), k (B, Sk, Hk, D), v (B, Sk, Hk, Dv).

    A row without a visible key has O = 0 and LSE = -inf.
    """
    batch, num_q, num_q_heads, _ = q.shape
    num_k, num_k_heads, v_dim = v.shape[1:]
    o = np.zeros((batch, num_q, num_q_heads, v_dim))
    lse = np.full((batch, num_q_heads, num_q), -np.inf)
    if num_k == 0:
        return o, lse
    mask = Residual() if fusion is None else fusion
    rows_per_block = max(1, MAX_SCORE_ELEMS // num_k)
    for b, h in np.ndindex(batch, num_q_heads):
        head = h // (num_q_heads // num_k_heads)
        keys, values = (tensor[b, :, head].astype(np.float64) for tensor in (k, v))
        for begin in range(0, num_q, rows_per_block):
            rows = slice(begin, min(begin + rows_per_block, num_q))
            q_idx = np.arange(rows.start, rows.stop)[:, None]
            coords = Coords(b, h, q_idx, np.arange(num_k)[None, :], num_q, num_k)
            scores = mask.reference(q[b, rows, h].astype(np.float64) @ keys.T * softmax_scale, coords)
            o[b, rows, h], lse[b, h, rows] = softmax_times(scores, values)
    return o, lse


def softmax_times(scores: Array, values: Array) -> tuple[Array, Array]:
    """softmax(scores) @ values and the log-sum-exp of each row; a row of -inf gives 0 and -inf."""
    row_max = scores.max(axis=1, keepdims=True)
    shift = np.where(np.isneginf(row_max), 0.0, row_max)
    weights = np.exp(scores - shift)
    row_sum = weights.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):  # ln(0) = -inf is what a row of no key gets
        lse = shift + np.log(row_sum)
    return weights @ values / np.where(row_sum == 0.0, 1.0, row_sum), lse[:, 0]


def make(variant: Variant) -> Callable[..., None]:
    """The factory of the reference rows: an entry that the CPU device calls with numpy views of the arguments."""
    return _run


def _run(tensors: Mapping[str, Array], scalars: Mapping[str, float], fusion: AttentionFusion | None) -> None:
    """Writes tensors["o"] and, where wanted, tensors["lse"], rounded to their types."""
    o, lse = forward(tensors["q"], tensors["k"], tensors["v"], fusion, scalars["softmax_scale"])
    tensors["o"][...] = o.astype(tensors["o"].dtype)
    if "lse" in tensors:
        tensors["lse"][...] = lse
