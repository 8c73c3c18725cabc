# SPDX-License-Identifier: Apache-2.0
"""values.py: whether what tensors of lengths and pages say lies within Q, K and V, and scales are ones.

Who calls it: plugin.py names check_values, which operators call where the host can read the tensors. On a GPU nobody
reads them before the kernel, which limits rows to those that Q, K, V and O have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from opdeck.core.arrays import TensorView, as_numpy
from opdeck.core.errors import ArgumentError
from opdeck.plugins.fmha_fwd.variants import LENGTHS, SCALES

Array = npt.NDArray[Any]


def check_values(tensors: Mapping[str, TensorView]) -> None:
    """tensors: all of a call, in host memory, by their names in the schema.

    Raises: ArgumentError naming the first value that is out of range.
    """
    _check_lengths(tensors)
    for name in SCALES:
        if name in tensors:
            _check_scales(name, as_numpy(tensors[name]))


def _check_lengths(tensors: Mapping[str, TensorView]) -> None:
    given = {name: as_numpy(tensors[name]).astype(np.int64) for name in LENGTHS if name in tensors}
    table = given.get("block_table")
    for name in "qk":
        num_rows = tensors[name].shape[1]
        offsets, used = given.get(f"cu_seqlens_{name}"), given.get(f"seqused_{name}")
        if offsets is not None:
            _check_offsets(f"cu_seqlens_{name}", offsets, num_rows)
        if used is not None:
            num_pages = 1 if table is None or name == "q" else table.shape[1]
            capacity = np.full(len(used), num_rows * num_pages) if offsets is None else np.diff(offsets)
            _check_range(f"seqused_{name}", used, capacity)
    if table is not None:
        num_pages, page_rows = tensors["k"].shape[:2]
        _check_pages(table, -(-given["seqused_k"] // page_rows), num_pages)


def _check_offsets(name: str, offsets: Array, num_rows: int) -> None:
    falls = np.flatnonzero(np.diff(offsets) < 0)
    if falls.size:
        seq = int(falls[0])
        got = f"{offsets[seq + 1]} behind {offsets[seq]}, as the end of sequence {seq}"
        raise ArgumentError(name, got, "offsets that never decrease")
    if offsets[0] < 0 or offsets[-1] > num_rows:
        raise ArgumentError(name, f"{offsets[0]} .. {offsets[-1]}", f"within 0 .. {num_rows}, the rows of {name[-1]}")


def _check_range(name: str, used: Array, capacity: Array) -> None:
    wrong = np.flatnonzero((used < 0) | (used > capacity))
    if wrong.size:
        seq = int(wrong[0])
        raise ArgumentError(name, f"{used[seq]} for sequence {seq}", f"0 .. {capacity[seq]}, the rows that it has")


def _check_pages(table: Array, num_used: Array, num_pages: int) -> None:
    """num_used: pages of each sequence whose rows count."""
    is_used = np.arange(table.shape[1]) < num_used[:, None]
    wrong = np.argwhere(is_used & ((table < 0) | (table >= num_pages)))
    if wrong.size:
        seq, page = wrong[0]
        got = f"page {table[seq, page]} at {page} of sequence {seq}"
        raise ArgumentError("block_table", got, f"less than {num_pages}, the pages of k, and at least 0")


def _check_scales(name: str, scales: Array) -> None:
    """Those of q and k as softmax_scale, into which they are multiplied, must be; that of v as out_scale."""
    is_positive = name != "v_scale"
    wrong = np.argwhere(~np.isfinite(scales) | (is_positive & ~(scales > 0)))
    if len(wrong):
        index = wrong[0].tolist()
        want = "finite numbers > 0" if is_positive else "finite numbers"
        raise ArgumentError(name, f"{scales[tuple(index)]} at {index}", want)
