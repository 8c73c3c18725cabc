# SPDX-License-Identifier: Apache-2.0
"""plan.py: which variants a pack will have.

Who calls it: the CLI and build scripts. The plan is the registry's rows, narrowed; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opdeck.core.arch import arch
from opdeck.core.errors import ArgumentError
from opdeck.core.variant import Variant

if TYPE_CHECKING:
    from opdeck.core.registry import Registry


@dataclass(frozen=True)
class Selection:
    """What to keep of the rows; an empty tuple keeps all. fusions: canonical names, "none" without one."""

    families: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    fusions: tuple[str, ...] = ()


def plan(registry: Registry, selection: Selection) -> tuple[Variant, ...]:
    """The variants to compile, in priority order. Rows of references, which are not compiled, are left out.

    Raises: ArgumentError naming the selection that nothing matches.
    """
    families = selection.families or registry.families()
    rows = [row for family in families for row in registry.variants(family) if arch(row.arch).is_gpu]
    rows = _keep(rows, "arch", selection.archs)
    rows = _keep(rows, "dtype", selection.dtypes)
    return tuple(_keep(rows, "fusion_name", selection.fusions))


def _keep(rows: Iterable[Variant], attribute: str, wanted: Collection[str]) -> list[Variant]:
    rows = list(rows)
    if not wanted:
        return rows
    known = {getattr(row, attribute) for row in rows}
    for name in wanted:
        if name not in known:
            raise ArgumentError(attribute.removesuffix("_name"), repr(name), "|".join(sorted(known)))
    return [row for row in rows if getattr(row, attribute) in wanted]
