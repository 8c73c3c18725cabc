# SPDX-License-Identifier: Apache-2.0
"""hookspecs.py: what a plugin may offer.

Who calls it: registry.py. A plugin is a module named by an entry point of the group "opdeck.plugins"; it marks its
hooks with `hookimpl` and imports no DSL, so that finding it is cheap.
"""

from __future__ import annotations

from collections.abc import Sequence

import pluggy

from opdeck.core.family import Family
from opdeck.core.fusion import Activation, Fusion

PROJECT = "opdeck"
ENTRY_POINT_GROUP = "opdeck.plugins"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def opdeck_operators() -> Sequence[Family]:  # type: ignore[empty-body]
    """The operator families of the plugin."""


@hookspec
def opdeck_fusions() -> Sequence[Fusion]:  # type: ignore[empty-body]
    """The fusions of the plugin, each named "PLUGIN.fusion" after its entry point: one instance for each combination of
    static values that packs shall hold. Leaf values do not matter, only which leaves are there."""


@hookspec
def opdeck_activations() -> Sequence[Activation]:  # type: ignore[empty-body]
    """The activations of the plugin: fusions of GEMM kernels, named and listed as those of opdeck_fusions are."""
