# SPDX-License-Identifier: Apache-2.0
"""A third party's activation, in a module that compiler processes can import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from opdeck.core.fusion import Activation, Float32Leaf
from opdeck.core.fusion.floatmath import select


@dataclass(frozen=True)
class Leaky(Activation):
    """max(x, 0) + slope * min(x, 0), with a slope given at run time."""

    slope: Float32Leaf = 0.1
    name: ClassVar[str] = "leaky_activation.leaky"

    def activate(self, *columns: Any) -> Any:
        x = columns[0]
        return select(x < 0.0, self.slope * x, x)
