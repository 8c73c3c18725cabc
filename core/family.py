# SPDX-License-Identifier: Apache-2.0
"""family.py: what a plugin says about one operator: its schema, its call and its rows.

Who calls it: the plugin.py of families make one; registry.py keeps it; operator.py calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opdeck.core import arrays
from opdeck.core.arrays import TensorView
from opdeck.core.fusion import Fusion
from opdeck.core.schema import FamilySchema
from opdeck.core.variant import Variant


@dataclass(frozen=True)
class OutputSpec:
    """An output of one call. given: the user's buffer, or None to allocate one like `like`.

    order: dim d of the schema is the user's dim order[d]; None for one that the user's array does not have.
    elements: the view of `given` where that is no array. dtype: of an array to allocate; None: that of the inputs that
    share its dtype symbol. empty_value: what fills it where there is nothing to compute; None: it is left alone.
    """

    given: Any
    like: Any
    argument: str
    order: tuple[int | None, ...]
    elements: TensorView | None = None
    dtype: str | None = None
    empty_value: float | None = None

    def view(self, buffer: Any) -> TensorView:
        """The buffer, given or new, as the schema has it."""
        elements = arrays.view(buffer, self.argument) if self.elements is None else self.elements
        return elements.permuted(self.order)


@dataclass(frozen=True)
class Request:
    """One call in the schema's terms. outputs: those that are wanted; returned: those that the caller gets, in order.

    scalars: those that were given.
    """

    inputs: Mapping[str, TensorView]
    outputs: Mapping[str, OutputSpec]
    returned: tuple[str, ...]
    scalars: Mapping[str, float]
    fusion: Fusion | None


@dataclass(frozen=True)
class Family:
    """One operator family.

    call: the public signature; turns the user's arguments into a Request, or raises an ArgumentError.
    rows: the variants of given fusions, in priority order. fusions: those that packs hold without anybody asking.
    fusion_type: what may be given beyond these; None when nothing may.
    check_values: refuses tensors, by their names in the schema, whose values are out of range, with an ArgumentError;
    asked before each launch where the host can read them. None when any values will do.
    fusion_check: "module:function" that runs a kernel with a fusion and raises when it is wrong; "" when there is none.
    commands: "module:function" by "run" and "explain": the typer commands `opdeck run NAME` and `opdeck explain NAME`.
    """

    schema: FamilySchema
    call: Callable[..., Request]
    rows: Callable[[Sequence[Fusion | None]], tuple[Variant, ...]]
    fusions: tuple[Fusion | None, ...] = (None,)
    fusion_type: type[Fusion] | None = None
    check_values: Callable[[Mapping[str, TensorView]], None] | None = None
    fusion_check: str = ""
    commands: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.schema.name
