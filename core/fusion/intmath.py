# SPDX-License-Identifier: Apache-2.0
"""intmath.py: integer arithmetic that means the same on Python ints, numpy arrays and the DSL's traced integers.

Who calls it: the tile ranges and visible intervals of fusions, on the host and while a kernel is traced.
Limits: divisors are positive. The DSL is imported only when an operand is neither an int nor a numpy value.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# An int, a numpy integer or array, or an integer of the DSL: it has +, -, *, // and comparisons.
IntLike = Any

_HOST_TYPES = (int, np.integer, np.ndarray)


def min_(a: IntLike, b: IntLike) -> IntLike:
    """The smaller of a and b, elementwise on arrays."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    if isinstance(a, _HOST_TYPES) and isinstance(b, _HOST_TYPES):
        return np.minimum(a, b)
    import cutlass

    return cutlass.min(a, b)


def max_(a: IntLike, b: IntLike) -> IntLike:
    """The larger of a and b, elementwise on arrays."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    if isinstance(a, _HOST_TYPES) and isinstance(b, _HOST_TYPES):
        return np.maximum(a, b)
    import cutlass

    return cutlass.max(a, b)


def clamp(x: IntLike, low: IntLike, high: IntLike) -> IntLike:
    """x limited to [low, high]; low where high < low."""
    return max_(low, min_(x, high))


def floor_div(a: IntLike, b: IntLike) -> IntLike:
    """floor(a / b) for any a and a positive b. A shift where b is an int and a power of two: one instruction."""
    return a >> (b.bit_length() - 1) if _is_power_of_two(b) else a // b


def ceil_div(a: IntLike, b: IntLike) -> IntLike:
    """ceil(a / b) for any a and a positive b."""
    return floor_div(a + (b - 1), b)


def floor_mod(a: IntLike, b: IntLike) -> IntLike:
    """a - b * floor(a / b), in [0, b), for any a and a positive b."""
    return a & (b - 1) if _is_power_of_two(b) else a - floor_div(a, b) * b


def _is_power_of_two(b: IntLike) -> bool:
    """False for what is not known while a kernel is traced, such as a leaf."""
    return isinstance(b, int) and b & (b - 1) == 0


def is_static_zero(value: IntLike) -> bool:
    """True for the Python int 0, known while a kernel is traced."""
    return isinstance(value, int) and value == 0


def at_most(value: IntLike, extent: IntLike) -> IntLike:
    """The smaller of value and a tensor's extent, which kernels have in 64 bits."""
    if isinstance(extent, int):
        return min_(value, extent)
    import cutlass

    return cutlass.min(cutlass.Int32(value), cutlass.Int32(extent))


def broadcast_index(index: IntLike, extent: IntLike) -> IntLike:
    """index in a dim of `extent` entries, or of one for all: 0 there. An index past the end gives the last entry."""
    return at_most(index, extent - 1)
