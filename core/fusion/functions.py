# SPDX-License-Identifier: Apache-2.0
"""functions.py: plain Python functions as score functions and masks: score_mod(fn, aux), mask_mod(fn, aux).

Who calls it: users who want no class. The function is traced into the kernel, as a class's `score` or `visible` is.
Identity: what the function does, so that kernels are found again and never mistaken: bytecode, constants, and the
values that it takes from around it. Never its name or its address.
Limits: what it takes from around it are None, bools, ints, floats, strings, modules, classes and functions.
"""

from __future__ import annotations

import builtins
import dataclasses
import dis
import functools
import hashlib
import importlib
import marshal
import operator
import sys
import types
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from opdeck.core import arrays, dtypes
from opdeck.core.errors import ArgumentTypeError
from opdeck.core.fusion import calls
from opdeck.core.fusion.attention import AttentionFusion, Coords, Mask, Score
from opdeck.core.fusion.base import (
    FieldKind,
    FieldSpec,
    Float32Leaf,
    Int32Leaf,
    LeafKind,
    StaticValue,
    TensorLeaf,
    field_specs,
    tensor_leaf,
)
from opdeck.core.fusion.identity import distribution, source_hashes
from opdeck.core.fusion.intmath import min_

_PLAIN = (type(None), bool, int, float, str)


class Traced(StaticValue):
    """A function as a static value of a fusion: equal to another that does the same.

    Raises: ArgumentTypeError for what is no Python function, or takes something from around it that has no identity.
    """

    def __init__(self, function: Callable[..., Any], argument: str = "fn") -> None:
        if not isinstance(function, types.FunctionType):
            raise ArgumentTypeError(argument, repr(function), "a Python function")
        self.function = function
        self.taken = dict(_taken(function, argument))
        digest = hashlib.sha256()
        for token in (*_code_tokens(function.__code__), *(f"{name}={_token(self.taken[name])}" for name in self.taken)):
            digest.update(token.encode())
            digest.update(b"\0")
        super().__init__(digest.hexdigest()[:16])

    def __reduce__(self) -> Any:
        """Travels to compiler processes with its code: they cannot import what a program that runs defines."""
        modules = {name: value.__name__ for name, value in self.taken.items() if isinstance(value, types.ModuleType)}
        others = {name: value for name, value in self.taken.items() if name not in modules}
        return _rebuilt, (marshal.dumps(self.function.__code__), self.function.__name__, modules, others)


def _rebuilt(code_bytes: bytes, name: str, modules: Mapping[str, str], others: Mapping[str, Any]) -> Traced:
    code = marshal.loads(code_bytes)
    values = {key: value.function if isinstance(value, Traced) else value for key, value in others.items()}
    values |= {key: importlib.import_module(module) for key, module in modules.items()}
    defaults = tuple(values[key] for key in sorted(key for key in values if key.startswith(_DEFAULT)))
    cells = tuple(types.CellType(values[free]) for free in code.co_freevars)
    scope = {"__builtins__": builtins, **{key: value for key, value in values.items() if key not in code.co_freevars}}
    return Traced(types.FunctionType(code, scope, name, defaults, cells))


_DEFAULT = "default "


def _taken(function: types.FunctionType, argument: str) -> Iterator[tuple[str, Any]]:
    """(name, value), by name, of a function's globals, closure and default arguments; functions as Traced where they
    cannot be imported."""
    closure = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    values = {name: cell.cell_contents for name, cell in closure}
    values |= {f"{_DEFAULT}{idx:02}": value for idx, value in enumerate(function.__defaults__ or ())}
    loads = (step for code in _codes(function.__code__) for step in dis.get_instructions(code))
    names = {step.argval for step in loads if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    values |= {name: function.__globals__[name] for name in names if name in function.__globals__}
    for name, value in sorted(values.items()):
        if isinstance(value, types.FunctionType) and not _is_importable(value):
            yield name, Traced(value, f"{argument}'s {name}")
        elif isinstance(value, (*_PLAIN, types.ModuleType)) or _is_importable(value):
            yield name, value
        else:
            want = "None, a bool, int, float, str, module, class or function"
            hint = f"arrays go in aux; {calls.place(function)} takes it from around it"
            raise ArgumentTypeError(f"{argument}'s {name}", type(value).__qualname__, want, hint)


def _is_importable(value: Any) -> bool:
    """Whether it is a function or class that another process may import."""
    if not isinstance(value, (types.FunctionType, type)) or value.__module__ in ("__main__", None):
        return False
    try:
        return operator.attrgetter(value.__qualname__)(sys.modules[value.__module__]) is value
    except (AttributeError, KeyError):
        return False


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and those inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _code_tokens(code: types.CodeType) -> Iterator[str]:
    for part in _codes(code):
        constants = [_constant(value) for value in part.co_consts if not isinstance(value, types.CodeType)]
        names = (part.co_names, part.co_varnames, part.co_freevars, part.co_cellvars)
        yield f"{part.co_code.hex()} {constants} {names} {part.co_argcount} {part.co_kwonlyargcount} {part.co_flags}"


def _constant(value: Any) -> str:
    """A constant of a code object, the same in every process: sets have no order there."""
    return f"set {sorted(map(repr, value))}" if isinstance(value, frozenset) else repr(value)


def _token(value: Any) -> str:
    if isinstance(value, Traced):
        return f"function {value.text}"
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__} {_version(value.__name__)}"
    if isinstance(value, _PLAIN):
        return f"{type(value).__qualname__} {value!r}"
    return f"{value.__module__}:{value.__qualname__} {_version(value.__module__)}"


@functools.cache
def _version(module_name: str) -> str:
    """Of the distributions that a module belongs to, or of Python; else of its sources."""
    if module_name.partition(".")[0] in sys.stdlib_module_names:
        return sys.version
    return " ".join(distribution(module_name.partition(".")[0]) or source_hashes(module_name))


# Kind, rank and element type of each of a function's run-time arguments.
_AuxSpecs = tuple[tuple[LeafKind, int, str], ...]


class _FunctionFusion(AttentionFusion):
    """What score_mod and mask_mod return: static fields fn and aux, which spells the types of the leaves, and the
    leaves aux0, aux1, ..

    Subclasses with as many leaves, of such ranks and types, are made when they are needed.
    """

    fn: Traced

    def call(self, *args: Any) -> Any:
        """fn(*args, *aux), the last of args being Coords. Where it may read tensors, their q and k are cut to those
        that exist: kernels ask about keys and queries past the end too."""
        *others, coords = args
        specs = [spec for spec in field_specs(type(self)) if spec.kind is FieldKind.LEAF]
        if any(spec.leaf_kind is LeafKind.TENSOR for spec in specs):
            coords = coords._replace(q=min_(coords.q, coords.sq - 1), k=min_(coords.k, coords.sk - 1))
        return calls.call(self.fn.function, *others, coords, *(self._aux(spec) for spec in specs))

    def _aux(self, spec: FieldSpec) -> Any:
        value = getattr(self, spec.name)
        name = f"aux[{spec.name.removeprefix('aux')}]"
        return calls.IndexedTensor(value, name) if spec.leaf_kind is LeafKind.TENSOR else value

    @functools.cached_property
    def static_key(self) -> tuple[type, Traced, Hashable]:
        specs = [spec for spec in field_specs(type(self)) if spec.kind is FieldKind.LEAF]
        return type(self).__mro__[1], self.fn, tuple((spec.leaf_kind, spec.rank, spec.dtype) for spec in specs)

    def __reduce__(self) -> Any:
        """By what the class was made of: it is no attribute of a module."""
        specs = [spec for spec in field_specs(type(self)) if spec.kind is FieldKind.LEAF]
        return _make, (*self.static_key, [getattr(self, spec.name) for spec in specs])


class ScoreFunction(_FunctionFusion, Score):
    """Score function fn(score, coords, *aux)."""

    name: ClassVar[str] = "score_mod"
    parameters: ClassVar[tuple[str, ...]] = ("score", "coords")

    def score(self, score: Any, coords: Coords) -> Any:
        return calls.checked_logit("fn", self.fn.function, self.call(score, coords))

    def reference(self, scores: npt.NDArray[np.float64], coords: Coords) -> npt.NDArray[np.float64]:
        return np.broadcast_to(self.score(scores, coords), scores.shape)  # fn may be constant


class MaskFunction(_FunctionFusion, Mask):
    """Mask fn(coords, *aux)."""

    name: ClassVar[str] = "mask_mod"
    parameters: ClassVar[tuple[str, ...]] = ("coords",)

    def visible(self, coords: Coords) -> Any:
        return calls.checked_truth("fn", self.fn.function, self.call(coords)) & (coords.k < coords.sk)


@functools.cache
def _class_of(base: type, aux_specs: _AuxSpecs) -> type:
    scalars = {LeafKind.INT32: Int32Leaf, LeafKind.FLOAT32: Float32Leaf}
    fields: list[Any] = [("fn", Traced), ("aux", str)]
    for idx, (kind, rank, dtype) in enumerate(aux_specs):
        name = f"aux{idx}"
        if kind is LeafKind.TENSOR:
            # The last stride is known to be 1: a product of 64 bits an element less.
            leaf = tensor_leaf(rank, dtype, align_bytes=max(1, dtypes.dtype(dtype).bits // 8))
            fields.append((name, TensorLeaf, leaf))
        else:
            fields.append((name, scalars[kind]))
    namespace = {"name": base.name, "__module__": __name__}  # type: ignore[attr-defined]
    return dataclasses.make_dataclass(base.__name__, fields, bases=(base,), frozen=True, namespace=namespace)


def _make(base: type, fn: Traced, aux_specs: _AuxSpecs, values: Sequence[Any]) -> Any:
    aux = ".".join(f"{dtype}x{rank}" for _, rank, dtype in aux_specs) or "none"
    return _class_of(base, aux_specs)(fn, aux, *values)


def _aux_spec(value: Any, argument: str) -> tuple[LeafKind, int, str]:
    if isinstance(value, int) and not isinstance(value, bool):
        return LeafKind.INT32, 0, "int32"
    if isinstance(value, float):
        return LeafKind.FLOAT32, 0, "fp32"
    tensor, wanted = arrays.view(value, argument), [row.name for row in dtypes.DTYPES if row.bits >= 8]
    if tensor.dtype not in wanted:
        raise ArgumentTypeError(argument, f"dtype {tensor.dtype}", "|".join(wanted))
    return LeafKind.TENSOR, len(tensor.shape), tensor.dtype


def score_mod(fn: Callable[..., Any], aux: Sequence[Any] = ()) -> ScoreFunction:
    """The score function fn(score, coords, *aux): the new logit of query coords.q and key coords.k, as Score.score.

    fn: a Python function, lambdas and those of a running program included. aux: ints, floats and arrays, the run-time
    arguments of the kernel; fn may index an array, whose last stride must be 1, with any coords. What fn takes from
    around it is compiled in.
    Raises: ArgumentTypeError naming what of fn or aux has no identity or is no array, or of what fn is a function.
    Calls then raise an ArgumentError that names fn, its file and line when fn fails or returns no number.
    """
    return _fusion(ScoreFunction, fn, aux)  # type: ignore[no-any-return]


def mask_mod(fn: Callable[..., Any], aux: Sequence[Any] = ()) -> MaskFunction:
    """The mask fn(coords, *aux): whether query coords.q sees key coords.k. Keys past the end are hidden besides.

    Every K tile is visited and masked: block_sparse(mask_mod(..), ..) leaves out those that no query sees.
    fn, aux, Raises: as score_mod's.
    """
    return _fusion(MaskFunction, fn, aux)  # type: ignore[no-any-return]


def _fusion(base: type[ScoreFunction | MaskFunction], fn: Callable[..., Any], aux: Sequence[Any]) -> Any:
    if not isinstance(aux, (tuple, list)):
        raise ArgumentTypeError("aux", type(aux).__qualname__, "a tuple of numbers and arrays")
    traced = Traced(fn)
    calls.check_parameters(traced.function, base.parameters, len(aux))
    return _make(base, traced, tuple(_aux_spec(value, f"aux[{idx}]") for idx, value in enumerate(aux)), aux)
