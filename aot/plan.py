# SPDX-License-Identifier: Apache-2.0
"""plan.py: which variants a pack will have.

Who calls it: the CLI and build scripts. The plan is the registry's rows, narrowed; with plugins named, it is what these
offer: their families, and the other families' rows with their fusions.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import typing
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opdeck.core.arch import arch
from opdeck.core.errors import ArgumentError
from opdeck.core.fusion import Fusion
from opdeck.core.fusion.base import FieldKind, field_specs
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
    plugins: tuple[str, ...] = ()


def plan(registry: Registry, selection: Selection) -> tuple[Variant, ...]:
    """The variants to compile, in priority order. Rows of references, which are not compiled, are left out.

    Raises: ArgumentError naming the selection that nothing matches.
    """
    rows = [row for row in _offered(registry, selection) if arch(row.arch).is_gpu]
    rows = _keep(rows, "arch", selection.archs)
    rows = _keep(rows, "dtype", selection.dtypes)
    return tuple(_keep(rows, "fusion_name", selection.fusions))


def _offered(registry: Registry, selection: Selection) -> Iterator[Variant]:
    families = selection.families or registry.families()
    if not selection.plugins:
        for family in families:
            yield from registry.variants(family)
        return
    owners = [registry.owner(name) for name in (*registry.families(), *registry.fusions())]
    for plugin in selection.plugins:
        if plugin not in owners:
            raise ArgumentError("plugin", repr(plugin), "|".join(sorted(set(owners))))
    classes = [cls for name, cls in registry.fusions().items() if registry.owner(name) in selection.plugins]
    for family in families:
        if registry.owner(family) in selection.plugins:
            yield from registry.variants(family)
        for fusion in (instance for cls in classes for instance in instances(cls)):
            rows = registry.get(family).variants(fusion)
            yield from (row for row in rows if row.fusion_name == fusion.canonical_name)


def instances(cls: type[Fusion]) -> Iterator[Fusion]:
    """The fusions of a class that are kernels of their own: one for each combination of its static values.

    An enum or bool takes all its values, another static field its default. Leaves stand for themselves, present unless
    their default is None.
    Raises: ArgumentError for a static field that has neither.
    """
    hints = typing.get_type_hints(cls)
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    choices = []
    for spec in field_specs(cls):
        if spec.kind is FieldKind.LEAF:
            choices.append([None if defaults[spec.name] is None else spec.leaf_kind])
        else:
            choices.append(_static_choices(cls, spec.name, hints[spec.name], defaults[spec.name]))
    for values in itertools.product(*choices):
        fusion = object.__new__(cls)  # not the constructor, which may look at the values of leaves
        for spec, value in zip(field_specs(cls), values, strict=True):
            object.__setattr__(fusion, spec.name, value)
        yield fusion


def _static_choices(cls: type[Fusion], name: str, hint: Any, default: Any) -> list[Any]:
    for kind in typing.get_args(hint) or (hint,):
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return list(kind)
    if hint is bool:
        return [False, True]
    if default is dataclasses.MISSING:
        raise ArgumentError(f"{cls.__qualname__}.{name}", "no default", "an enum, a bool or a default to compile with")
    return [default]


def _keep(rows: Iterable[Variant], attribute: str, wanted: Collection[str]) -> list[Variant]:
    rows = list(rows)
    if not wanted:
        return rows
    known = {getattr(row, attribute) for row in rows}
    for name in wanted:
        if name not in known:
            raise ArgumentError(attribute.removesuffix("_name"), repr(name), "|".join(sorted(known)))
    return [row for row in rows if getattr(row, attribute) in wanted]
