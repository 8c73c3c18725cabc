# SPDX-License-Identifier: Apache-2.0
"""reference.py: attention forward in float64, the oracle of fmha_fwd.

Who calls it: the tests and `opdeck run` (forward), the CPU device (make).
Source: O = softmax(mask(Q K^T * softmax_scale)) V and LSE = ln(sum(exp(...))), row by row, no online rescaling.
Limits: a block of rows at a time, so that S never takes more than MAX_SCORE_ELEMS elements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from opdeck.core.fusion import AttentionFusion, Coords, Residual
from opdeck.core.variant import Variant
from opdeck.plugins.fmha_fwd.variants import SCALES

MAX_SCORE_ELEMS = 1 << 22

Array = npt.NDArray[Any]


class Sequence(NamedTuple):
    """Where one sequence lies: rows q of the entry `batch` of Q, O and LSE, rows k of the entry `batch_k` of K, V."""

    batch: int
    q: slice
    batch_k: int
    k: slice


def sequences(q: Array, k: Array, lengths: Mapping[str, Array]) -> list[Sequence]:
    """The sequences of q (B, Sq, ..) and k (B, Sk, ..), which is in no pages. lengths: those of cu_seqlens_q,
    cu_seqlens_k (N + 1,), seqused_q, seqused_k (N,) that were given."""
    is_packed = "cu_seqlens_q" in lengths
    num_seqs = len(lengths["cu_seqlens_q"]) - 1 if is_packed else len(q)

    def rows(tensor: Array, name: str, seq: int) -> slice:
        offsets, used = lengths.get(f"cu_seqlens_{name}"), lengths.get(f"seqused_{name}")
        begin, end = (0, tensor.shape[1]) if offsets is None else (int(offsets[seq]), int(offsets[seq + 1]))
        return slice(begin, end if used is None else min(end, begin + max(0, int(used[seq]))))

    def batch(name: str, seq: int) -> int:
        return 0 if f"cu_seqlens_{name}" in lengths else seq

    return [Sequence(batch("q", seq), rows(q, "q", seq), batch("k", seq), rows(k, "k", seq)) for seq in range(num_seqs)]


def gathered(pages: Array, block_table: Array) -> Array:
    """The rows (N, M * page, H, D) of sequences in pages (num_pages, page, H, D) that block_table (N, M) lists."""
    (num_seqs, num_listed), (num_pages, *_) = block_table.shape, pages.shape
    if num_pages == 0:  # no sequence has a key
        return np.empty((num_seqs, 0, *pages.shape[2:]), pages.dtype)
    listed = pages[np.clip(block_table, 0, num_pages - 1)]
    rows: Array = listed.reshape(num_seqs, num_listed * pages.shape[1], *pages.shape[2:])
    return rows


def forward(
    q: Array,
    k: Array,
    v: Array,
    fusion: AttentionFusion | None,
    softmax_scale: float,
    options: Mapping[str, Any] | None = None,
) -> tuple[Array, Array]:
    """O (B, Sq, Hq, Dv) and LSE (B, Hq, Sq), both float64, of q (B, Sq, Hq, D), k (B, Sk, Hk, D), v (B, Sk, Hk, Dv).

    A row without a visible key has O = 0 and LSE = -inf, or that of its sink; one that is in no sequence has NaN.
    options: arguments of the call besides: lengths as in sequences, and the block_table of k and v that are pages;
    q_scale, k_scale, v_scale, numbers or arrays that broadcast to (N, Hk); out_scale.
    """
    options = options or {}
    if "block_table" in options:
        k, v = (gathered(tensor, options["block_table"]) for tensor in (k, v))
    batch, num_q, num_q_heads, _ = q.shape
    o = np.full((batch, num_q, num_q_heads, v.shape[3]), np.nan)
    lse = np.full((batch, num_q_heads, num_q), np.nan)
    mask = Residual() if fusion is None else fusion
    all_sequences = sequences(q, k, options)
    shape = (len(all_sequences), k.shape[2])
    scales = {name: np.broadcast_to(np.float64(options.get(name, 1.0)), shape) for name in SCALES}
    for seq, at in enumerate(all_sequences):
        for h in range(num_q_heads):
            head = h // (num_q_heads // v.shape[2])
            q_scale, k_scale, v_scale = (scales[name][seq, head] for name in SCALES)
            queries = q[at.batch, at.q, h].astype(np.float64) * (softmax_scale * q_scale * k_scale)
            keys, values = (tensor[at.batch_k, at.k, head].astype(np.float64) for tensor in (k, v))
            values = values * (v_scale * options.get("out_scale", 1.0))
            o[at.batch, at.q, h], lse[at.batch, h, at.q] = _head(queries, keys, values, (mask, seq, h))
    return o, lse


def _head(queries: Array, keys: Array, values: Array, where: tuple[AttentionFusion, int, int]) -> tuple[Array, Array]:
    """O and LSE of one head of one sequence; where: the fusion, and the sequence and the head that it is told."""
    (num_q, num_k), (fusion, seq, head) = (len(queries), len(keys)), where
    part = fusion.at(seq, head)
    sink = next((float(sink.logit) for sink in part.sinks), -np.inf)
    o, lse = np.zeros((num_q, values.shape[1])), np.full(num_q, -np.inf)
    rows_per_block = max(1, MAX_SCORE_ELEMS // max(1, num_k))
    for begin in range(0, num_q, rows_per_block):
        rows = slice(begin, min(begin + rows_per_block, num_q))
        q_idx = np.arange(rows.start, rows.stop)[:, None]
        coords = Coords(seq, head, q_idx, np.arange(num_k)[None, :], num_q, num_k)
        o[rows], lse[rows] = softmax_times(part.reference(queries[rows] @ keys.T, coords), values, sink)
    return o, lse


def softmax_times(scores: Array, values: Array, sink: float = -np.inf) -> tuple[Array, Array]:
    """softmax(scores) @ values and the log-sum-exp of each row; a row of -inf gives 0 and -inf.

    sink: a logit that every row has besides, with a value of zeros.
    """
    row_max = scores.max(axis=1, keepdims=True, initial=sink)
    shift = np.where(np.isneginf(row_max), 0.0, row_max)
    weights = np.exp(scores - shift)
    row_sum = weights.sum(axis=1, keepdims=True) + np.exp(sink - shift)
    with np.errstate(divide="ignore"):  # ln(0) = -inf is what a row of no key gets
        lse = shift + np.log(row_sum)
    return weights @ values / np.where(row_sum == 0.0, 1.0, row_sum), lse[:, 0]


def saturated(values: Array, element: Any) -> Array:
    """The values rounded to an element type; to an fp8, as kernels do, those beyond its range to its largest number."""
    if np.dtype(element).itemsize == 1:
        largest = float(ml_dtypes.finfo(element).max)
        values = np.clip(values, -largest, largest)
    rounded: Array = values.astype(element)
    return rounded


def make(variant: Variant) -> Callable[..., None]:
    """The factory of the reference rows: an entry that the CPU device calls with numpy views of the arguments."""
    return _run


def _run(tensors: Mapping[str, Array], scalars: Mapping[str, float], fusion: AttentionFusion | None) -> None:
    """Writes tensors["o"] and, where wanted, tensors["lse"], rounded to their types."""
    q, k, v = tensors["q"], tensors["k"], tensors["v"]
    options: dict[str, Any] = {**tensors, "out_scale": scalars["out_scale"]}
    o, lse = forward(q, k, v, fusion, scalars["softmax_scale"], options)
    for at in sequences(q, k, options):
        tensors["o"][at.batch, at.q] = saturated(o[at.batch, at.q], tensors["o"].dtype)
        if "lse" in tensors:
            tensors["lse"][at.batch, :, at.q] = lse[at.batch, :, at.q]
