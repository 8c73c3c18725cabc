# SPDX-License-Identifier: Apache-2.0
"""registry.py: the families, variants and fusions that the installed plugins offer.

Who calls it: users (`registry.get("fmha_fwd")`), the CLI, opdeck.aot.
Plugins are found at the first use, not at import: scanning the installed distributions takes about 30 ms. Each entry
point is loaded on its own; one that fails is left out, reported by name as a warning, and listed in `problems`.
"""

from __future__ import annotations

import importlib.metadata
import threading
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pluggy

from opdeck.core import hookspecs
from opdeck.core.arch import arch as arch_row
from opdeck.core.errors import ArgumentError, PluginError
from opdeck.core.family import Family
from opdeck.core.fusion import Activation, Fusion
from opdeck.core.fusion.names import parse
from opdeck.core.operator import Operator
from opdeck.core.schema import FamilySchema
from opdeck.core.variant import Variant


class PluginWarning(UserWarning):
    """A plugin was left out. Its message says which and why."""


@dataclass
class _Contents:
    """fusions: as offered, by canonical name. owners: the plugin of each family and fusion name."""

    operators: dict[str, Operator] = field(default_factory=dict)
    fusions: dict[str, Fusion] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class Registry:
    """The plugins of some entry points; `registry` has those that are installed."""

    def __init__(self, entry_points: Iterable[importlib.metadata.EntryPoint] | None = None) -> None:
        self._entry_points = entry_points
        self._lock = threading.RLock()
        self._loaded: _Contents | None = None

    def get(self, family: str) -> Operator:
        """The operator of a family, to be called with arrays.

        Raises: ArgumentError listing the families when there is none of this name.
        """
        operators = self._contents.operators
        if not isinstance(family, str) or family not in operators:
            raise ArgumentError("family", repr(family), "|".join(sorted(operators)), "; ".join(self.problems))
        return operators[family]

    def families(self) -> tuple[str, ...]:
        return tuple(sorted(self._contents.operators))

    def schema(self, family: str) -> FamilySchema:
        return self.get(family).schema

    def variants(
        self, family: str | None = None, arch: str | None = None, fusion: str | None = None
    ) -> tuple[Variant, ...]:
        """Rows in priority order; arch ("sm_100a", "cpu") and fusion (a canonical name, "none") narrow them.

        Without `fusion` they are those of the fusions that packs hold; with it, any that opdeck or a plugin knows.

        Raises: ArgumentError for a family, an arch or a fusion that there is not.
        """
        names = self.families() if family is None else (family,)
        fusions = tuple(self._contents.fusions.values())
        rows = [row for name in names for row in self.get(name).variants(fusions)]
        if fusion is not None and fusion not in {*self._contents.fusions, *(row.fusion_name for row in rows)}:
            rows = [row for name in names for row in self.get(name).variants((self.fusion(fusion),))]
        if arch is not None:
            arch_row(arch)
        return tuple(row for row in rows if arch in (None, row.arch) and fusion in (None, row.fusion_name))

    def fusions(self) -> Mapping[str, Fusion]:
        """The fusions that plugins offer, with the values that they offer, by canonical name."""
        return self._contents.fusions

    def fusion(self, name: str) -> Fusion | None:
        """The fusion of a canonical name, `alibi&causal[align=bottom_right]`; None for "none".

        Kinds are in the place of leaf values, but for what plugins offer.
        Raises: ArgumentError when neither opdeck nor a plugin has such a fusion.
        """
        return None if name == "none" else parse(name, self._contents.fusions)

    def owner(self, name: str) -> str:
        """The plugin that offers a family or a fusion (by its name, "PLUGIN.fusion"); "opdeck" for what is built in."""
        return self._contents.owners.get(name, "opdeck")

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with the plugins that were left out, one line each."""
        return tuple(self._contents.problems)

    @property
    def _contents(self) -> _Contents:
        if self._loaded is None:
            with self._lock:
                self._loaded = self._loaded or _load(self._entry_points)
        return self._loaded


def _load(entry_points: Iterable[importlib.metadata.EntryPoint] | None) -> _Contents:
    if entry_points is None:
        entry_points = importlib.metadata.entry_points(group=hookspecs.ENTRY_POINT_GROUP)
    contents = _Contents()
    # An interrupted pip leaves a second copy of a distribution's metadata behind.
    by_name = {(entry_point.name, entry_point.value): entry_point for entry_point in entry_points}
    for _, entry_point in sorted(by_name.items()):
        try:
            _add_plugin(entry_point, contents)
        except (Exception, SystemExit) as error:  # whatever a plugin raises, the others must load
            problem = f"plugin {entry_point.name} ({entry_point.value}) left out: {type(error).__name__}: {error}"
            contents.problems.append(problem)
            warnings.warn(problem, PluginWarning, stacklevel=2)
    return contents


def _add_plugin(entry_point: importlib.metadata.EntryPoint, contents: _Contents) -> None:
    """Adds all that a plugin offers, or nothing when any of it is wrong."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(entry_point.load(), name=entry_point.name)
    manager.check_pending()
    families = [family for result in manager.hook.opdeck_operators() for family in result]
    offered: list[tuple[object, type[Fusion]]] = []
    for hook, kind in ((manager.hook.opdeck_fusions, Fusion), (manager.hook.opdeck_activations, Activation)):
        offered += [(fusion, kind) for result in hook() for fusion in result]
    operators: dict[str, Operator] = {}
    for family in families:
        _check_family(family, {**contents.operators, **operators}, contents)
        operators[family.name] = Operator(family)
    fusions: dict[str, Fusion] = {}
    for given, kind in offered:
        fusion = _checked_fusion(given, kind, entry_point.name, {**contents.fusions, **fusions})
        fusions[fusion.canonical_name] = fusion
    contents.operators.update(operators)
    contents.fusions.update(fusions)
    names = [*operators, *(fusion.name for fusion in fusions.values())]
    contents.owners.update(dict.fromkeys(names, entry_point.name))


def _check_family(family: object, known: Mapping[str, Operator], contents: _Contents) -> None:
    if not isinstance(family, Family):
        raise PluginError(f"opdeck_operators: got {type(family).__qualname__}, want Family objects")
    if family.name in known:
        raise PluginError(f"family {family.name!r} is there already, from plugin {contents.owners.get(family.name)}")
    seen: set[str] = set()
    for row in family.rows(family.fusions):
        if row.id in seen:
            raise PluginError(f"family {family.name}: variant {row.id!r} occurs twice")
        if row.family != family.name:
            raise PluginError(f"family {family.name}: variant {row.id!r} says that its family is {row.family!r}")
        seen.add(row.id)


def _checked_fusion(fusion: object, kind: type[Fusion], plugin: str, known: Mapping[str, Fusion]) -> Fusion:
    if not isinstance(fusion, kind):
        hook = f"opdeck_{kind.__name__.lower()}s"
        raise PluginError(f"{hook}: got {fusion!r}, want instances of classes derived from {kind.__name__}")
    cls = type(fusion)
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or not name.startswith(f"{plugin}."):
        want = f"{plugin}.{cls.__name__.lower()}"
        raise PluginError(f"fusion {cls.__qualname__}: got name {name!r}, want one such as {want!r}")
    for other in known.values():
        if other.canonical_name == fusion.canonical_name or (other.name == name and type(other) is not cls):
            raise PluginError(f"fusion {fusion.canonical_name!r} is there already")
    return fusion


registry = Registry()
