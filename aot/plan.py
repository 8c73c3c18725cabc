# SPDX-License-Identifier: Apache-2.0
"""plan.py: which variants a pack will have.

Who calls it: the CLI and build scripts. The plan is the registry's rows, narrowed; nothing is decided here.
"""

from __future__ import annotations

import enum
import fnmatch
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opdeck.core.arch import arch
from opdeck.core.errors import ArgumentError
from opdeck.core.fusion import Fusion
from opdeck.core.variant import Variant

if TYPE_CHECKING:
    from opdeck.core.registry import Registry


class Rows(enum.Enum):
    """Which rows of a family a selection starts from."""

    DEFAULT = "default"  # those that their family puts into a pack unasked
    ALL = "all"


@dataclass(frozen=True)
class Selection:
    """What to keep of the rows; an empty tuple keeps all.

    fusions: canonical names, "none" without one. plugins: those whose families, or whose fusions, the rows are of.
    variants: shell patterns of ids.
    """

    families: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    fusions: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    rows: Rows = Rows.DEFAULT
    variants: tuple[str, ...] = ()


def plan(registry: Registry, selection: Selection) -> tuple[Variant, ...]:
    """The variants to compile, in priority order. Rows of references, which are not compiled, are left out.

    Raises: ArgumentError naming the selection that nothing matches.
    """
    offered = registry.variants()
    others = set(selection.fusions) - {row.fusion_name for row in offered}
    named = [row for name in sorted(others) for row in registry.variants(fusion=name)]
    rows = [row for row in (*offered, *named) if arch(row.arch).is_gpu]
    rows = [row for row in rows if row.in_default_pack or selection.rows is Rows.ALL]
    rows = _keep(rows, "family", selection.families, lambda row: {row.family})
    rows = _keep(rows, "plugin", selection.plugins, lambda row: _owners(registry, row))
    rows = _keep(rows, "arch", selection.archs, lambda row: {row.arch})
    rows = _keep(rows, "dtype", selection.dtypes, lambda row: {row.dtype})
    rows = _keep(rows, "fusion", selection.fusions, lambda row: {row.fusion_name})
    return tuple(_matching(rows, selection.variants))


def stand_ins(registry: Registry, variant: Variant) -> tuple[Variant, ...]:
    """The variants that serve all that one serves, in priority order; none for a row that its family itself puts into
    packs by default, which they may not lack."""
    operator = registry.get(variant.family)
    if variant.in_default_pack and variant in operator.variants():
        return ()
    rows = operator.variants((variant.fusion,))
    return tuple(row for row in rows if row != variant and row.stands_in_for(variant))


def _matching(rows: list[Variant], patterns: tuple[str, ...]) -> list[Variant]:
    for pattern in patterns:
        if not fnmatch.filter((row.id for row in rows), pattern):
            raise ArgumentError("variant", repr(pattern), f"a pattern of some of {len(rows)} ids", "opdeck aot plan")
    return (
        [row for row in rows if any(fnmatch.fnmatchcase(row.id, pattern) for pattern in patterns)] if patterns else rows
    )


def _owners(registry: Registry, row: Variant) -> set[str]:
    names = () if row.fusion is None else _names(row.fusion)
    return {registry.owner(name) for name in (row.family, *names)}


def _names(fusion: Fusion) -> Iterator[str]:
    """Of the fusion and of those within."""
    yield fusion.name
    for _, part in fusion.nested():
        yield from _names(part)


def _keep(
    rows: list[Variant], argument: str, wanted: tuple[str, ...], names_of: Callable[[Variant], set[str]]
) -> list[Variant]:
    known: set[str] = set().union(*map(names_of, rows))
    for name in wanted:
        if name not in known:
            raise ArgumentError(argument, repr(name), "|".join(sorted(known)))
    return [row for row in rows if names_of(row).intersection(wanted)] if wanted else rows
