# SPDX-License-Identifier: Apache-2.0
"""Hooks of the plugin: the entry point "copy_plugin" of a test names this module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from copy_plugin.family import NUM_COLS, SCHEMA, Affine, rows
from opdeck.core.arrays import view
from opdeck.core.family import Family, OutputSpec, Request
from opdeck.core.fusion import Fusion
from opdeck.core.hookspecs import hookimpl


def call(x: Any, factor: float | None = None, fusion: Fusion | None = None, out: Any = None) -> Request:
    """y = x * factor."""
    scalars = {} if factor is None else {"factor": factor}
    return Request({"x": view(x, "x")}, {"y": OutputSpec(out, x, "out", (0, 1))}, ("y",), scalars, fusion)


@hookimpl
def opdeck_operators() -> Sequence[Family]:
    return [Family(SCHEMA, call, rows, fusion_type=Affine)]


@hookimpl
def opdeck_fusions() -> Sequence[Fusion]:
    return [Affine(bias=np.zeros(NUM_COLS, np.float32))]
