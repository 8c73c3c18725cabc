# SPDX-License-Identifier: Apache-2.0
"""variant.py: one kernel that can be compiled, as a row of data.

Who calls it: the variants.py of families make rows; the registry selects among them; opdeck.aot compiles them.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opdeck.core.errors import PluginError
from opdeck.core.fusion import Fusion
from opdeck.core.schema import Rule, WorkspaceTerm

if TYPE_CHECKING:
    from opdeck.core.problem import Problem

MAX_ID_CHARS = 150  # the DSL cuts mangled names at about 190
MAX_SLUG_CHARS = 80  # leaves what families put before it
SLUG_HASH_CHARS = 8


@dataclass(frozen=True)
class Variant:
    """One kernel: what it accepts and how to make it. Rows are equal when their ids are.

    id: a C identifier; kernel and entry are named "opdeck_" + id. arch: "sm_100a", or "cpu" for a reference.
    fusion: None without one; an instance, of which type and static values count. config: what the factory reads.
    factory: "module:attribute" of a callable that gets the row and returns the entry. static_dims: dims fixed at
    compile time. dtype: as lists and commands call its element types; symbol_dtypes: the element type of each type
    symbol of the schema for which that is not `dtype`. in_default_pack: whether a pack holds it without being asked for
    every row; what is left out is compiled on request, or at its first use. transposed: the transposable arguments
    whose contiguous dim is the last but one. prefer: where there are such rules and all hold, the row goes before one
    that stands in for it. workspace: the terms whose sum is how much device memory a launch needs besides its tensors;
    the entry gets its address behind the leaves.
    """

    id: str
    family: str
    arch: str
    dtype: str
    fusion: Fusion | None = field(compare=False)
    accept: tuple[Rule, ...] = field(compare=False)
    config: Mapping[str, int | str] = field(compare=False)
    factory: str = field(compare=False)
    static_dims: Mapping[str, int] = field(compare=False)
    symbol_dtypes: Mapping[str, str] = field(compare=False, default_factory=dict)
    in_default_pack: bool = field(compare=False, default=True)
    transposed: tuple[str, ...] = field(compare=False, default=())
    prefer: tuple[Rule, ...] = field(compare=False, default=())
    workspace: tuple[WorkspaceTerm, ...] = field(compare=False, default=())

    def __post_init__(self) -> None:
        if not self.id.isidentifier() or len(self.id) > MAX_ID_CHARS:
            raise PluginError(f"variant id: got {self.id!r}, want a C identifier of at most {MAX_ID_CHARS} characters")

    @property
    def fusion_name(self) -> str:
        """Canonical name of the fusion, "none" without one."""
        return fusion_name(self.fusion)

    @property
    def config_text(self) -> str:
        """The config on one line: "tile_m=128 tile_n=128"."""
        return " ".join(f"{key}={value}" for key, value in self.config.items())

    def accepts(self, problem: Problem) -> bool:
        """Whether the variant accepts the problem."""
        return next(self._failures(problem), None) is None

    def is_preferred(self, problem: Problem) -> bool:
        """Whether the variant, if it accepts the problem, goes before those that stand in for it."""
        return bool(self.prefer) and all(rule.failure(problem.field_values) is None for rule in self.prefer)

    def stands_in_for(self, other: Variant) -> bool:
        """Whether it accepts all that the other one does: it has no rule that the other lacks."""
        return (self.family, self.arch, fusion_key(self.fusion)) == (
            other.family,
            other.arch,
            fusion_key(other.fusion),
        ) and set(self.accept) <= set(other.accept)

    def refusals(self, problem: Problem) -> list[str]:
        """Every reason why the variant does not accept the problem; empty when it accepts."""
        return list(self._failures(problem))

    def _failures(self, problem: Problem) -> Iterator[str]:
        if problem.arch != self.arch:
            yield f"arch: got {problem.arch}, want {self.arch}"
        if fusion_key(problem.fusion) != fusion_key(self.fusion):
            yield f"fusion: got {problem.fusion_name}, want {self.fusion_name}"
        for rule in self.accept:
            failure = rule.failure(problem.field_values)
            if failure is not None:
                yield failure

    def make(self) -> Any:
        """Calls the factory with the row. Imports the kernel's module, and so the DSL.

        Raises: PluginError when the factory cannot be found.
        """
        module_name, _, attribute = self.factory.partition(":")
        try:
            factory = getattr(importlib.import_module(module_name), attribute)
        except (AttributeError, ModuleNotFoundError) as error:
            if isinstance(error, ModuleNotFoundError) and not module_name.startswith(error.name or "\0"):
                raise  # the module is there; something that it imports is not
            raise PluginError(f"variant {self.id}: its factory {self.factory!r} cannot be found: {error}") from error
        return factory(self)


def has_stand_in(variant: Variant, rows: Iterable[Variant]) -> bool:
    """Whether another one of the rows serves all that the variant serves."""
    return any(other != variant and other.stands_in_for(variant) for other in rows)


def fusion_name(fusion: Fusion | None) -> str:
    """Canonical name of a fusion, "none" for None."""
    return "none" if fusion is None else fusion.canonical_name


def fusion_slug(fusion: Fusion | None) -> str:
    """Slug of a fusion for variant ids, "none" for None; a long one, of many that are combined, ends in its hash."""
    slug = "none" if fusion is None else fusion.slug
    if len(slug) <= MAX_SLUG_CHARS:
        return slug
    digest = hashlib.sha256(slug.encode()).hexdigest()[:SLUG_HASH_CHARS]
    return f"{slug[: MAX_SLUG_CHARS - 1 - SLUG_HASH_CHARS]}_{digest}"


def fusion_key(fusion: Fusion | None) -> Hashable:
    """Equal for fusions that one kernel serves."""
    return None if fusion is None else fusion.static_key
