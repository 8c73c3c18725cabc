# SPDX-License-Identifier: Apache-2.0
"""A plugin whose family "copy" has a row that is preferred for many rows of x, and whose kernel spills."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from copy_plugin import family, plugin
from copy_plugin.family import SCHEMA
from opdeck.core.family import Family
from opdeck.core.fusion import Fusion
from opdeck.core.hookspecs import hookimpl
from opdeck.core.schema import Rule
from opdeck.core.variant import Variant

FEW_ROWS = 4


def rows(fusions: Sequence[Fusion | None]) -> tuple[Variant, ...]:
    """Those of the family, and behind them the one that spills."""
    plain = family.rows(fusions)
    return (*plain, spilling(plain[0]))


def spilling(plain: Variant) -> Variant:
    """The row that is preferred to a plain one where there are more than FEW_ROWS."""
    return replace(
        plain,
        id=f"{plain.id}_many",
        factory="copy_plugin.misfits:make_spilling",
        prefer=(Rule("rows", "gt", (FEW_ROWS,)),),
        in_default_pack=False,
    )


@hookimpl
def opdeck_operators() -> Sequence[Family]:
    return [Family(SCHEMA, plugin.call, rows)]
