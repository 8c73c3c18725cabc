# SPDX-License-Identifier: Apache-2.0
"""scalars.py: run-time numbers, checked and rounded as kernels get them.

Who calls it: operator.py, for every scalar and leaf; fusions, families and opdeck.core.mx, before they use one.
"""

from __future__ import annotations

import ctypes
import math
import operator
from typing import Any

import numpy as np

from opdeck.core.errors import ArgumentError, ArgumentTypeError
from opdeck.core.schema import ArgKind


def scalar(argument: str, value: Any, kind: ArgKind) -> float | int:
    """A run-time number as the kernel gets it: an int32, or rounded to fp32.

    Raises: ArgumentError, ArgumentTypeError.
    """
    return int32_number(argument, value) if kind == "i32" else fp32_number(argument, value)


def int32_number(argument: str, value: Any) -> int:
    """The value as an int of 32 bits.

    Raises: ArgumentError, ArgumentTypeError.
    """
    _refuse_others(argument, value)
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentTypeError(argument, repr(value), "an int") from None
    if ctypes.c_int32(number).value != number:
        raise ArgumentError(argument, number, "an int of 32 bits")
    return number


def fp32_number(argument: str, value: Any) -> float:
    """The value rounded to fp32.

    Raises: ArgumentError where it is not finite then, ArgumentTypeError.
    """
    _refuse_others(argument, value)
    try:
        number = ctypes.c_float(float(value)).value
    except OverflowError:  # an int that no float holds
        raise ArgumentError(argument, "a larger one than floats are", "a finite number of fp32") from None
    except (TypeError, ValueError):
        raise ArgumentTypeError(argument, repr(value), "a number") from None
    if not math.isfinite(number):
        raise ArgumentError(argument, value, "a finite number of fp32")
    return number


def is_number(value: Any) -> bool:
    """Whether it is a number that the host can compare, an array without dims included."""
    return isinstance(value, (int, float, np.number)) or (isinstance(value, np.ndarray) and value.ndim == 0)


def _refuse_others(argument: str, value: Any) -> None:
    if isinstance(value, (bool, str, bytes)):  # float() takes these too
        raise ArgumentTypeError(argument, repr(value), "a number")
