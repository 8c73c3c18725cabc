# SPDX-License-Identifier: Apache-2.0
"""floatmath.py: functions that mean the same on numpy arrays and on the DSL's traced numbers.

Who calls it: score functions and activations. +, -, * and comparisons need no help. Nor does / of what is the same for
all logits; for others take `reciprocal`, since an exact division has a slow path that costs registers at every logit.
Limits: traced, tanh, exp, log, sigmoid and reciprocal are the GPU's approximations (PTX ISA: tanh.approx has a relative
error of 2^-11, ex2.approx and lg2.approx of about 2^-22, rcp.approx of 2^-23). The DSL is imported only when an operand
is neither a number nor a numpy value.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_HOST_TYPES = (int, float, np.generic, np.ndarray)


def to_float(x: Any) -> Any:
    """An integer or a narrower float as the type that scores have: float64 on the host, fp32 in a kernel."""
    if isinstance(x, _HOST_TYPES):
        return np.asarray(x).astype(np.float64)
    import cutlass

    return cutlass.Float32(x)


def abs_(x: Any) -> Any:
    """The absolute value of a float."""
    if isinstance(x, _HOST_TYPES):
        return np.abs(x)
    import cutlass

    return cutlass.Float32(cutlass.select_(x < 0.0, -x, x))


def select(condition: Any, if_true: Any, if_false: Any) -> Any:
    """if_true where the condition holds, else if_false."""
    if isinstance(condition, bool):
        return if_true if condition else if_false
    if isinstance(condition, (np.generic, np.ndarray)):
        return np.where(condition, if_true, if_false)
    import cutlass

    return cutlass.Float32(cutlass.select_(condition, cutlass.Float32(if_true), cutlass.Float32(if_false)))


def reciprocal(x: Any) -> Any:
    """1 / x, for x that is not 0."""
    if isinstance(x, _HOST_TYPES):
        return np.divide(1.0, x)
    from cutlass import cute

    return cute.arch.rcp_approx(x)


def sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x)."""
    negated = -x
    if isinstance(negated, _HOST_TYPES):
        return 1.0 / (1.0 + np.exp(negated))
    from cutlass import cute

    return cute.arch.rcp_approx(1.0 + cute.arch.exp2(negated * math.log2(math.e)))


def tanh(x: Any) -> Any:
    return _function("tanh", x)


def exp(x: Any) -> Any:
    return _function("exp", x)


def log(x: Any) -> Any:
    """The natural logarithm."""
    return _function("log", x)


def _function(name: str, x: Any) -> Any:
    if isinstance(x, _HOST_TYPES):
        return getattr(np, name)(x)
    from cutlass import cute

    return getattr(cute.math, name)(x, fastmath=True)
