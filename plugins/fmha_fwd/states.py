# SPDX-License-Identifier: Apache-2.0
"""states.py: attention over keys that were split among several calls, put together.

Who calls it: users who split K and V themselves.
Source: online softmax (Milakov and Gimelshein 2018): a part's weight is its sum of exponentials, e^LSE.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from opdeck.core import arrays
from opdeck.core.errors import ArgumentError, ArgumentTypeError


def merge_states(o_a: Any, lse_a: Any, o_b: Any, lse_b: Any) -> tuple[Any, Any]:
    """(O, LSE) over the keys of two calls with the same queries, from what each returned with return_lse=True.

    o_a, o_b: (B, Sq, Hq, Dv), or packed (T, Hq, Dv). lse_a, lse_b: (B, Hq, Sq) or (Hq, T), natural logarithms, -inf for
    queries that saw no key, whose O counts for nothing, NaN included. numpy arrays or torch tensors, all four alike. O
    is new, of o_a's type, and so is LSE, of lse_a's, in which the sums are; both are on their device.
    A query that sees no key in either gets O = 0 and LSE = -inf. With a sink, only one of the calls may have it.

    Raises: ArgumentTypeError unless all are of o_a's library; ArgumentError when shapes do not fit.
    """
    is_torch = arrays.is_torch(o_a)
    for name, array in (("o_a", o_a), ("lse_a", lse_a), ("o_b", o_b), ("lse_b", lse_b)):
        if arrays.is_torch(array) != is_torch or not (is_torch or isinstance(array, np.ndarray)):
            raise ArgumentTypeError(name, type(array).__name__, "a numpy array or torch tensor, all four alike")
    num_dims = len(o_a.shape)
    if num_dims not in (3, 4):
        raise ArgumentError("o_a", f"shape {tuple(o_a.shape)}", "(B, Sq, Hq, Dv) or (T, Hq, Dv)")
    *batch, num_rows, num_heads, _ = o_a.shape
    wanted = {"lse_a": (*batch, num_heads, num_rows), "o_b": o_a.shape, "lse_b": (*batch, num_heads, num_rows)}
    for (name, shape), array in zip(wanted.items(), (lse_a, o_b, lse_b), strict=True):
        if tuple(array.shape) != tuple(shape):
            raise ArgumentError(name, f"shape {tuple(array.shape)}", f"{tuple(shape)}, as o_a has it")
    return _merge(sys.modules["torch"] if is_torch else np, (o_a, o_b), (lse_a, lse_b))


def _merge(library: Any, parts: tuple[Any, Any], logs: tuple[Any, Any]) -> tuple[Any, Any]:
    largest = library.maximum(*logs)
    is_empty = largest == -np.inf
    shift = library.where(is_empty, library.zeros_like(largest), largest)
    weights = [library.exp(log - shift) for log in logs]
    total = library.where(is_empty, library.ones_like(largest), weights[0] + weights[1])
    o = sum(_weighted(library, o, weight / total) for o, weight in zip(parts, weights, strict=True))
    return _as_type(o, parts[0].dtype), library.where(is_empty, largest, shift + library.log(total))


def _weighted(library: Any, o: Any, weight: Any) -> Any:
    """O times weight (.., H, S), 0 where that is 0."""
    of_row = weight.swapaxes(-1, -2)[..., None]
    elements = _as_type(o, weight.dtype)
    return library.where(of_row == 0, library.zeros_like(elements), elements) * of_row


def _as_type(array: Any, dtype: Any) -> Any:
    return array.to(dtype) if arrays.is_torch(array) else array.astype(dtype)
