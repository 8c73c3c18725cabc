# SPDX-License-Identifier: Apache-2.0
"""registry.py: the families, variants and fusions that the installed plugins offer.

Who calls it: users (`registry.get("fmha_fwd")`), the CLI, opdeck.aot.
Plugins are found at the first use, not at import: scanning the installed distributions takes about 30 ms. Each entry
point is loaded on its own; one that fails is left out, reported by name as a warning, and listed in `problems`.
"""

from __future__ import annotations

import functools
import importlib.metadata
import threading
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pluggy

from opdeck.core import hookspecs
from opdeck.core.errors import ArgumentError, PluginError
from opdeck.core.family import Family
from opdeck.core.fusion import Fusion, builtin_fusions
from opdeck.core.fusion.base import field_specs
from opdeck.core.operator import Operator
from opdeck.core.schema import FamilySchema
from opdeck.core.variant import Variant


class PluginWarning(UserWarning):
    """A plugin was left out. Its message says which and why."""


@dataclass(frozen=True)
class _Contents:
    operators: Mapping[str, Operator]
    fusions: Mapping[str, type[Fusion]]
    problems: tuple[str, ...]


class Registry:
    """The plugins of some entry points; `registry` has those that are installed."""

    def __init__(self, entry_points: Iterable[importlib.metadata.EntryPoint] | None = None) -> None:
        self._entry_points = entry_points
        self._lock = threading.RLock()

    def get(self, family: str) -> Operator:
        """The operator of a family, to be called with arrays.

        Raises: ArgumentError listing the families when there is none of this name.
        """
        operators = self._contents.operators
        if family not in operators:
            raise ArgumentError("family", repr(family), "|".join(sorted(operators)), self._why_left_out())
        return operators[family]

    def families(self) -> tuple[str, ...]:
        return tuple(sorted(self._contents.operators))

    def schema(self, family: str) -> FamilySchema:
        return self.get(family).schema

    def variants(
        self, family: str | None = None, arch: str | None = None, fusion: str | None = None
    ) -> tuple[Variant, ...]:
        """Rows in priority order; arch ("sm_100a", "cpu") and fusion (a canonical name) narrow them."""
        names = self.families() if family is None else (family,)
        rows = (row for name in names for row in self.get(name).variants())
        return tuple(row for row in rows if arch in (None, row.arch) and fusion in (None, row.fusion_name))

    def fusions(self) -> Mapping[str, type[Fusion]]:
        """Fusion classes by name, the built-in ones and those of plugins."""
        return self._contents.fusions

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with the plugins that were left out, one line each."""
        return self._contents.problems

    def _why_left_out(self) -> str:
        return "; ".join(self.problems)

    @functools.cached_property
    def _contents(self) -> _Contents:
        with self._lock:
            return _load(self._entry_points)


def _load(entry_points: Iterable[importlib.metadata.EntryPoint] | None) -> _Contents:
    if entry_points is None:
        entry_points = importlib.metadata.entry_points(group=hookspecs.ENTRY_POINT_GROUP)
    operators: dict[str, Operator] = {}
    fusions: dict[str, type[Fusion]] = {cls.name: cls for cls in builtin_fusions()}
    problems: list[str] = []
    owners: dict[str, str] = {}
    for entry_point in sorted(entry_points, key=lambda entry_point: entry_point.name):
        try:
            _add_plugin(entry_point, operators, fusions, owners)
        except Exception as error:  # whatever a plugin raises, the others must load
            problem = f"plugin {entry_point.name} ({entry_point.value}) left out: {type(error).__name__}: {error}"
            problems.append(problem)
            warnings.warn(problem, PluginWarning, stacklevel=2)
    return _Contents(operators, fusions, tuple(problems))


def _add_plugin(
    entry_point: importlib.metadata.EntryPoint,
    operators: dict[str, Operator],
    fusions: dict[str, type[Fusion]],
    owners: dict[str, str],
) -> None:
    """Adds all that a plugin offers, or nothing when any of it is wrong."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(entry_point.load(), name=entry_point.name)
    manager.check_pending()
    families: list[Family] = _flat(manager.hook.opdeck_operators())
    classes: list[type[Fusion]] = _flat(manager.hook.opdeck_fusions())
    new_operators: dict[str, Operator] = {}
    for family in families:
        if not isinstance(family, Family):
            raise PluginError(f"opdeck_operators: got {type(family).__qualname__}, want Family objects")
        _refuse_duplicate("family", family.name, {**operators, **new_operators}, owners)
        new_operators[family.name] = Operator(family)
        _check_rows(family)
    new_fusions: dict[str, type[Fusion]] = {}
    for cls in classes:
        _check_fusion(cls, entry_point.name)
        _refuse_duplicate("fusion", cls.name, {**fusions, **new_fusions}, owners)
        new_fusions[cls.name] = cls
    operators.update(new_operators)
    fusions.update(new_fusions)
    owners.update(dict.fromkeys([*new_operators, *new_fusions], entry_point.name))


def _flat(results: list[Any]) -> list[Any]:
    return [item for result in results for item in result]


def _refuse_duplicate(kind: str, name: str, known: Mapping[str, object], owners: Mapping[str, str]) -> None:
    if name in known:
        raise PluginError(f"{kind} {name!r} is there already, from plugin {owners.get(name, 'opdeck')}")


def _check_rows(family: Family) -> None:
    seen: set[str] = set()
    for row in family.rows(family.fusions):
        if row.id in seen:
            raise PluginError(f"family {family.name}: variant {row.id!r} occurs twice")
        if row.family != family.name:
            raise PluginError(f"family {family.name}: variant {row.id!r} says that its family is {row.family!r}")
        seen.add(row.id)


def _check_fusion(cls: type[Fusion], plugin: str) -> None:
    if not (isinstance(cls, type) and issubclass(cls, Fusion)):
        raise PluginError(f"opdeck_fusions: got {cls!r}, want classes derived from Fusion")
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or not name.startswith(f"{plugin}."):
        want = f"{plugin}.{cls.__name__.lower()}"
        raise PluginError(f"fusion {cls.__qualname__}: got name {name!r}, want one such as {want!r}")
    field_specs(cls)


registry = Registry()
