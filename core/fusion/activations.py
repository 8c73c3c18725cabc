# SPDX-License-Identifier: Apache-2.0
"""activations.py: what a GEMM may do to its sums before they are stored, and the built-in ones.

Who calls it: users (`activation=Relu()`), variant rows, epilogues (`apply`), the reference (`reference`).
A gated activation makes one column of the result of two of the sums, columns 2j and 2j + 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from opdeck.core.fusion.base import Fusion, FusionT
from opdeck.core.fusion.floatmath import select, sigmoid

_GELU_SLOPE = 2.0 * math.sqrt(2.0 / math.pi)
_GELU_CUBIC = 0.044715


class Activation(Fusion):
    """A fusion that changes the fp32 sums of a GEMM, element by element or group by group of columns.

    num_columns: neighbouring columns of the sums that one of the result is made of: 1, 2 or 4.
    relative_error: of a kernel's result against float64, rounding of inputs and output apart.
    """

    extent_names: ClassVar[tuple[str, ...] | None] = ()
    num_columns: ClassVar[int] = 1
    relative_error: ClassVar[float] = 2.0**-20

    def activate(self, *columns: Any) -> Any:
        """The result of num_columns numbers: arithmetic that runs on numpy arrays and on traced fp32 numbers alike.

        floatmath has the functions for it.
        """
        raise self.lacks("activate")

    def sample(self: FusionT, rng: np.random.Generator) -> FusionT:
        """The same activation with leaf values to try, by default the fields' defaults: for `opdeck check-plugin` and
        `opdeck run --activation`."""
        return self.with_defaults()

    def reference(self, sums: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The results (..., N / num_columns) of sums (..., N), in numpy."""
        with np.errstate(over="ignore", invalid="ignore"):  # exp of a large number; inf * 0
            result: npt.NDArray[np.float64] = self.activate(
                *(sums[..., column :: self.num_columns] for column in range(self.num_columns))
            )
        return result

    def apply(self, sums: Any, results: Any) -> None:
        """Writes registers `results`, neighbouring columns of a row, of num_columns times as many `sums`, in a kernel.

        Both are rank-1 register tensors of fp32, which may be the same where num_columns is 1. A subclass may override
        this with something faster.
        """
        from cutlass import cute

        for idx in range(cute.size(results)):
            begin = idx * self.num_columns
            results[idx] = self.activate(*(sums[begin + column] for column in range(self.num_columns)))


@dataclass(frozen=True)
class Relu(Activation):
    """max(x, 0)."""

    name: ClassVar[str] = "relu"
    relative_error: ClassVar[float] = 0.0

    def activate(self, *columns: Any) -> Any:
        return select(columns[0] < 0.0, 0.0, columns[0])  # a NaN stays one


@dataclass(frozen=True)
class Silu(Activation):
    """x * sigmoid(x)."""

    name: ClassVar[str] = "silu"

    def activate(self, *columns: Any) -> Any:
        return columns[0] * sigmoid(columns[0])


@dataclass(frozen=True)
class Gelu(Activation):
    """x * Phi(x) in its form by tanh: x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2."""

    name: ClassVar[str] = "gelu"

    def activate(self, *columns: Any) -> Any:
        x = columns[0]
        return x * sigmoid(_GELU_SLOPE * (x + _GELU_CUBIC * x * x * x))


@dataclass(frozen=True)
class GatedSilu(Activation):
    """silu(gate) * value of the columns gate = 2j, value = 2j + 1."""

    name: ClassVar[str] = "gated_silu"
    num_columns: ClassVar[int] = 2

    def activate(self, *columns: Any) -> Any:
        gate, value = columns
        return gate * sigmoid(gate) * value
