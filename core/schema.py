# SPDX-License-Identifier: Apache-2.0
"""schema.py: the rows that state a family's arguments and checks, and a variant's acceptance.

Who calls it: the spec.py and variants.py of families write rows; problem.py and variant.py evaluate them here,
opdeck.aot writes them into packs, where abi/src/rules.c evaluates them. The C evaluator decides; this one chooses what
to load or compile and explains refusals, in the same words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Literal

from opdeck.core import dtypes

MAX_INT64 = (1 << 63) - 1
ArgKind = Literal["tensor", "i32", "f32"]
Access = Literal["read", "write", "readwrite"]
DefaultKind = Literal["rsqrt", "zero", "one", "num_sms"]
RuleOp = Literal["eq", "ne", "in", "lt", "le", "gt", "ge", "multiple_of"]


def _is_multiple(got: float, of: float) -> bool:
    return got == 0 if of == 0 else got % of == 0


_HOLDS: dict[str, Callable[[float, float], bool]] = {
    "eq": lambda got, want: got == want,
    "ne": lambda got, want: got != want,
    "in": lambda got, want: got == want,
    "lt": lambda got, want: got < want,
    "le": lambda got, want: got <= want,
    "gt": lambda got, want: got > want,
    "ge": lambda got, want: got >= want,
    "multiple_of": _is_multiple,
}
_WORDS = {"ne": "other than ", "lt": "< ", "le": "<= ", "gt": "> ", "ge": ">= ", "multiple_of": "a multiple of "}


@dataclass(frozen=True)
class Rule:
    """`field op values`, or `field op rhs_field + rhs_plus`, or `field op ceil(rhs_field / rhs_divisor) + rhs_plus`.

    when: (field, value): the rule is about problems alone in which that field has that value, and in which every field
    that it names is there (a dim or type that only optional arguments have may not be). Rules of FamilySchema.empty
    have none. hint: what a failure says besides: who serves problems of which the rule does not hold.
    Fields are the dims that the arguments bind (b, sq, ...), "dtype.X" (DType.number of the type symbol X), "has.ARG"
    (1 when the optional ARG is given), "transposed.ARG" (1 when the last dim but one is the contiguous one, of a
    transposable ARG), "pitch.ARG" (elements from one row to the next, of an ARG that has_pitch; from one column to the
    next where it is transposed), "arch" (90, 100, 103; 0 for the CPU), "num_sms".
    """

    field: str
    op: RuleOp
    values: tuple[int, ...] = ()
    rhs_field: str | None = None
    rhs_divisor: int = 1
    rhs_plus: int = 0
    when: tuple[str, int] | None = None
    hint: str = dataclass_field(default="", compare=False)

    def is_decidable(self, fields: Mapping[str, float]) -> bool:
        """Whether every field that the rule names is there."""
        when_field = None if self.when is None else self.when[0]
        return all(name in fields for name in (self.field, self.rhs_field, when_field) if name is not None)

    def failure(self, fields: Mapping[str, float]) -> str | None:
        """Why the rule does not hold, "dqk: got 96, want 64|128"; None when it holds."""
        if self.when is not None and fields.get(self.when[0]) != self.when[1]:
            return None
        for name in filter(None, (self.field, self.rhs_field)):
            if name not in fields:
                return None if self.when is not None else f"{name}: not among the fields of the problem"
        got = fields[self.field]
        wants = self.values if self.rhs_field is None else (self._rhs(fields[self.rhs_field]) + self.rhs_plus,)
        if any(_HOLDS[self.op](got, want) for want in wants):
            return None
        divided = "" if self.rhs_divisor == 1 else f" / {self.rhs_divisor} rounded up"
        plus = f" {'+' if self.rhs_plus > 0 else '-'} {abs(self.rhs_plus)}" if self.rhs_plus else ""
        rhs = "" if self.rhs_field is None else f"{self.rhs_field}{divided}{plus} = "
        wanted = "|".join(self._value_text(want) for want in wants)
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.field}: got {self._value_text(got)}, want {_WORDS.get(self.op, '')}{rhs}{wanted}{hint}"

    def _rhs(self, value: float) -> float:
        return value if self.rhs_divisor == 1 else -(-value // self.rhs_divisor)

    def _value_text(self, value: float) -> str:
        row = dtypes.by_number(int(value)) if self.field.startswith("dtype.") else None
        return row.name if row is not None else f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class ArgSpec:
    """One argument of a family.

    dims: names of its extents; the first argument that names a dim binds it, later ones must agree. dtype_symbol: the
    same for its element type. dtypes: canonical names that are legal. align_bytes: of the data pointer, and of each
    other stride where its extent is > 1; twice that for elements under a byte. transposable: where elements take a byte
    or more, the last dim but one may be the contiguous one. default: of an optional scalar, ("rsqrt", field) =
    1 / sqrt(field), a constant, ("zero", "") and ("one", ""), or the SMs of the device, ("num_sms", ""), of an i32.
    """

    name: str
    kind: ArgKind
    access: Access = "read"
    dims: tuple[str, ...] = ()
    dtype_symbol: str | None = None
    dtypes: tuple[str, ...] = ()
    optional: bool = False
    align_bytes: int = 1
    contiguous_last: bool = False
    transposable: bool = False
    default: tuple[DefaultKind, str] | None = None

    @property
    def has_pitch(self) -> bool:
        """Whether the stride of its rows is a field, "pitch.NAME", which counts even where there is one row.

        So it is of inputs whose elements may take less than a byte. The memory of such rows is the tensor's up to their
        pitch.
        """
        has_narrow = any(dtypes.dtype(name).bits < 8 for name in self.dtypes)
        return self.access == "read" and len(self.dims) > 1 and self.contiguous_last and has_narrow

    def default_value(self, fields: Mapping[str, int]) -> float | None:
        """Value of an optional scalar that is left out."""
        if self.default is None:
            return None
        kind, field = self.default
        if kind == "num_sms":
            return fields["num_sms"]
        return 1.0 / math.sqrt(fields[field]) if kind == "rsqrt" else {"zero": 0.0, "one": 1.0}[kind]


@dataclass(frozen=True)
class Product:
    """A field that is the product of ceil(dim / divisor) for each (dim, divisor): how many tiles a problem has, say.

    The dims are those of required arguments. Further rows of the same name may have the names of sizes too; of the rows
    whose sizes are known, the largest product counts. It is 2^63 - 1 where 64 bits do not hold it.
    """

    name: str
    counts: tuple[tuple[str, int], ...]

    def value(self, fields: Mapping[str, int]) -> int | None:
        """None where one of them is not there."""
        if any(dim not in fields for dim, _ in self.counts):
            return None
        return min(math.prod(-(-fields[dim] // divisor) for dim, divisor in self.counts), MAX_INT64)


@dataclass(frozen=True)
class Size:
    """What the tensors of fusions call a size of the problem, such as "batch": ceil(field / divisor) + plus.

    when: rules that must hold of the problem. The first row of a name whose rules hold counts; where none does, nothing
    is known of that size, and no extent is wrong.
    """

    name: str
    field: str
    divisor: int = 1
    plus: int = 0
    when: tuple[Rule, ...] = ()

    def value(self, fields: Mapping[str, int]) -> int | None:
        """None where the problem has no such field, or a rule does not hold."""
        if self.field not in fields or any(rule.failure(fields) is not None for rule in self.when):
            return None
        return -(-fields[self.field] // self.divisor) + self.plus


@dataclass(frozen=True)
class WorkspaceTerm:
    """A part of a variant's workspace: num_bytes times the product of ceil(field / divisor) for each (field, divisor).

    A field that a problem does not have, such as a dim of optional arguments alone, counts 0.
    """

    num_bytes: int
    counts: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class FamilySchema:
    """The arguments of a family in the order of the exported entry, what must hold of them, and when there is no work.

    checks: a failure is an ArgumentError. empty: a launch for which one of these holds launches nothing. products:
    fields of problems beyond their dims. sizes: what tensors of fusions are checked against.
    """

    name: str
    args: tuple[ArgSpec, ...]
    checks: tuple[Rule, ...] = ()
    empty: tuple[Rule, ...] = ()
    products: tuple[Product, ...] = ()
    sizes: tuple[Size, ...] = ()

    def extents(self, fields: Mapping[str, int]) -> dict[str, int]:
        """The sizes of a problem that are known, by name."""
        values = ((size.name, size.value(fields)) for size in reversed(self.sizes))
        return {name: value for name, value in values if value is not None}

    def product_values(self, fields: Mapping[str, int]) -> dict[str, int]:
        """The products of a problem, by name."""
        values: dict[str, int] = {}
        known = {**self.extents(fields), **fields}
        for product in self.products:
            values[product.name] = max(product.value(known) or 0, values.get(product.name, 0))
        return values

    def arg(self, name: str) -> ArgSpec:
        return next(arg for arg in self.args if arg.name == name)
