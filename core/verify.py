# SPDX-License-Identifier: Apache-2.0
"""verify.py: how far a result is from the oracle.

Who calls it: the CLI (`opdeck run --verify`) and the tests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from opdeck.core.dtypes import Tolerance


@dataclass(frozen=True)
class Errors:
    """As in Tolerance. NaN when either side has a NaN."""

    max_abs: float
    mean_abs: float
    relative: float

    def within(self, tolerance: Tolerance) -> bool:
        return (
            self.max_abs <= tolerance.max_abs
            and self.mean_abs <= tolerance.mean_abs
            and self.relative <= tolerance.relative
        )

    def __str__(self) -> str:
        return f"max {self.max_abs:.3e}  mean {self.mean_abs:.3e}  relative {self.relative:.3e}"


def compare(got: npt.NDArray[Any], want: npt.NDArray[Any]) -> Errors:
    """Errors of got against want, both of any float type and the same shape. Equal infinities agree."""
    if got.shape != want.shape:
        raise ValueError(f"got: shape {got.shape}, want {want.shape}")
    exact, wanted = got.astype(np.float64), want.astype(np.float64)
    if exact.size == 0:
        return Errors(0.0, 0.0, 0.0)
    with np.errstate(invalid="ignore"):  # inf - inf where both agree
        difference = np.where(exact == wanted, 0.0, np.abs(exact - wanted))
    finite = np.where(np.isfinite(wanted), wanted, 0.0)
    norm, distance = float(np.linalg.norm(finite)), float(np.linalg.norm(difference))
    relative = distance / norm if norm > 0.0 else (0.0 if distance == 0.0 else math.inf)
    largest = float((difference / np.maximum(1.0, np.abs(finite))).max())
    return Errors(largest, float(difference.mean()), relative)
