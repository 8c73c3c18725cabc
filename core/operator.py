# SPDX-License-Identifier: Apache-2.0
"""operator.py: what registry.get returns: a call is bound, a variant selected, and its kernel launched.

Who calls it: users, through the registry; the CLI and the tests.
All that depends on shapes, strides and types alone is decided once and kept as a _Plan: the second call with the same
ones makes views, finds its plan by key, allocates the outputs that were not given, and launches.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opdeck.core import arrays
from opdeck.core.arrays import TensorView
from opdeck.core.devices import Device, LaunchArgs, Launcher, device_for
from opdeck.core.errors import ArgumentError, ArgumentTypeError, SpillError, Unsupported
from opdeck.core.family import Family, Request
from opdeck.core.fusion import Fusion, Leaf, LeafKind
from opdeck.core.problem import Problem, bind, check_leaf, failed_check
from opdeck.core.scalars import scalar
from opdeck.core.schema import ArgSpec, FamilySchema
from opdeck.core.variant import Variant, fusion_key, has_stand_in

MAX_PLANS = 1024


@dataclass(frozen=True)
class LastLaunch:
    """The variant that an operator's last call launched, and where."""

    variant: Variant
    device: Device


@dataclass(frozen=True)
class Refusal:
    """A row of `explain`: a variant and why it does not accept; no reasons when it does."""

    variant: Variant
    reasons: tuple[str, ...]


def refusal_lines(rows: Iterable[Refusal]) -> list[str]:
    """A line for each first reason of those that refuse: the variant that has it, or how many have."""
    variants: dict[str, list[Variant]] = {}
    for row in rows:
        if row.reasons:
            variants.setdefault(row.reasons[0], []).append(row.variant)
    return [
        f"{of[0].id}: {reason}" if len(of) == 1 else f"{reason} ({len(of)} variants, such as {of[0].id})"
        for reason, of in variants.items()
    ]


@dataclass(frozen=True)
class _NewOutput:
    """An output to allocate: its name and its shape in the user's order of dims."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class _Plan:
    """What is kept of a first call. launcher: None when there is nothing to compute."""

    variant: Variant
    launcher: Launcher | None
    new_outputs: tuple[_NewOutput, ...]
    default_scalars: Mapping[str, float]


@dataclass(frozen=True)
class _Where:
    """The arguments that every operator has. variant: the id of the one to launch; None is the first that accepts."""

    device: Device | str | None = None
    stream: Any = None
    variant: str | None = None


@dataclass(frozen=True)
class _Call:
    """A call that is ready to launch. returned: what the caller gets. fills: arrays, and what they hold where there is
    nothing to compute."""

    plan: _Plan
    device: Device
    args: LaunchArgs
    returned: tuple[Any, ...]
    fills: tuple[tuple[Any, float], ...]


class Operator:
    """One operator family, to be called with arrays. `help(operator)` shows the arguments.

    last_launch: what the last call launched; None when it had nothing to compute.
    """

    def __init__(self, family: Family) -> None:
        self._family = family
        self._plans: dict[Hashable, _Plan] = {}
        self._rows: dict[Hashable, tuple[Variant, ...]] = {}
        self.last_launch: LastLaunch | None = None
        self.__doc__ = family.call.__doc__
        self.__name__ = family.name
        self.__signature__ = _public_signature(family)

    @property
    def schema(self) -> FamilySchema:
        return self._family.schema

    def variants(self, fusions: Sequence[Fusion | None] = ()) -> tuple[Variant, ...]:
        """Rows in priority order, with those of the fusions that the family does not list itself but may be given."""
        rows = {fusion_key(fusion): fusion for fusion in self._family.fusions}
        for fusion in fusions:
            if self._family.fusion_type is not None and isinstance(fusion, self._family.fusion_type):
                rows.setdefault(fusion_key(fusion), fusion.without_values())
        key = tuple(rows)
        if key not in self._rows:
            self._rows[key] = self._family.rows(tuple(rows.values()))
        return self._rows[key]

    def command(self, name: str) -> Callable[..., None] | None:
        """The family's typer command, "run" or "explain"; None when it has none."""
        return _function(self._family.commands.get(name, ""))

    def fusion_check(self, fusion: Fusion) -> Callable[..., None] | None:
        """The family's check of a kernel with that fusion; None when it takes no such fusion or has no check."""
        fusion_type = self._family.fusion_type
        if fusion_type is None or not isinstance(fusion, fusion_type):
            return None
        return _function(self._family.fusion_check)

    def __call__(
        self,
        *args: Any,
        device: Device | str | None = None,
        stream: Any = None,
        variant: str | None = None,
        **kwargs: Any,
    ) -> Any:
        call = self._bind(self._family.call(*args, **kwargs), _Where(device, stream, variant))
        self.last_launch = None
        if call.plan.launcher is not None:
            if self._family.check_values is not None and call.device.memory == "cpu":
                self._family.check_values(call.args.tensors)
            call.plan.launcher(call.args)
            self.last_launch = LastLaunch(call.plan.variant, call.device)
        else:
            for array, value in call.fills:
                array[...] = value
        return call.returned if len(call.returned) > 1 else call.returned[0]

    def prepare(
        self,
        *args: Any,
        device: Device | str | None = None,
        stream: Any = None,
        variant: str | None = None,
        **kwargs: Any,
    ) -> Variant:
        """All of a call but the launch: its kernel is found, compiled if need be, and loaded. Returns whose it is.

        A call with the same shapes, strides and types then only launches (under graph capture, say).
        """
        call = self._bind(self._family.call(*args, **kwargs), _Where(device, stream, variant))
        if call.plan.launcher is not None:
            call.plan.launcher.prepare(call.args)
        return call.plan.variant

    def _bind(self, request: Request, given: _Where) -> _Call:
        """Finds the plan of a request, and allocates the outputs that were not given."""
        scalars = self._checked_scalars(request.scalars)
        tensors = _given_tensors(request)
        results = {name: output.given for name, output in request.outputs.items()}
        leaves = _leaf_values(request.fusion)
        where = device_for(given.device, [*tensors.values(), *_tensors_of(leaves)])
        plan = self._plan(request, tensors, leaves, (where, given.variant))
        for new in plan.new_outputs:
            output = request.outputs[new.name]
            results[new.name] = arrays.allocate(output.like, new.shape, new.dtype)
            tensors[new.name] = output.view(results[new.name])
        args = LaunchArgs(tensors, {**plan.default_scalars, **scalars}, request.fusion, leaves, given.stream)
        fills = [(results[name], output.empty_value) for name, output in request.outputs.items()]
        known = tuple((array, value) for array, value in fills if value is not None)
        return _Call(plan, where, args, tuple(results[name] for name in request.returned), known)

    def problem(self, *args: Any, device: Device | str | None = None, **kwargs: Any) -> Problem:
        """The problem that a call with these arguments would pose. Nothing is launched. For `explain` and `select`."""
        request = self._family.call(*args, **kwargs)
        tensors = _given_tensors(request)
        target = device_for(device, tensors.values()).target
        return bind(self.schema, tensors, request.fusion, target, _new_dtypes(request))

    def explain(self, problem: Problem) -> tuple[Refusal, ...]:
        """For each variant, in priority order, why it refuses the problem, or why it has no kernel."""
        refusals = (Refusal(row, tuple(row.refusals(problem))) for row in self.variants((problem.fusion,)))
        return tuple(Refusal(row.variant, row.reasons or self._spills(row.variant)) for row in refusals)

    def select(self, problem: Problem, variant: str | None = None) -> Variant:
        """The first variant, in priority order, that accepts the problem, or what is preferred to it: the first whose
        preferences hold and for which it stands in. Where it is known that its kernel spills, the same of the others,
        as long as one of these stands in for it. With an id, that variant if it accepts.

        Raises: Unsupported with the reasons of all variants, or of that one; ArgumentError when none has that id.
        """
        candidates = list(self._candidates(self._named(problem, variant), problem))
        return next((row for row in candidates if not self._spills(row)), candidates[-1])

    def _named(self, problem: Problem, variant: str | None) -> list[Variant]:
        """The rows to choose from: that of an id, or all. Raises: ArgumentError when none has that id."""
        rows = [row for row in self.variants((problem.fusion,)) if variant in (None, row.id)]
        if variant is not None and not rows:
            raise ArgumentError("variant", repr(variant), f"the id of a variant of {self.__name__}")
        return rows

    def _candidates(self, rows: Sequence[Variant], problem: Problem) -> Iterator[Variant]:
        """What is chosen of the rows, and behind each what is chosen where its kernel spills.

        Raises: Unsupported when none accepts.
        """
        left = list(rows)
        while True:
            chosen = _choice(left, problem)
            if chosen is None:
                raise self._unsupported(rows, problem)
            yield chosen
            if not has_stand_in(chosen, left):
                return
            left.remove(chosen)

    def _unsupported(self, rows: Sequence[Variant], problem: Problem) -> Unsupported:
        refusals = [Refusal(row, tuple(row.refusals(problem))) for row in rows]
        message = f"{problem}: none of {len(refusals)} variants accepts it"
        if refusals:
            nearest = min(refusals, key=lambda row: len(row.reasons))
            message += f"; nearest: {nearest.variant.id} ({'; '.join(nearest.reasons)})"
        return Unsupported(message, refusal_lines(refusals))

    def _spills(self, variant: Variant) -> tuple[str, ...]:
        """What is known of the variant's kernel if it spills."""
        from opdeck.aot import known_spill

        spill = known_spill(variant, self.schema)
        return () if spill is None else (spill,)

    def _kernel(self, problem: Problem, device: Device, variant_id: str | None) -> tuple[Variant, Launcher]:
        """The variant that is launched, with its launcher: of the candidates the first whose kernel does not spill.

        Where the first is neither loaded nor can be compiled, they are those of the rows that are loaded.
        """
        rows = self._named(problem, variant_id)
        first = next(self._candidates(rows, problem))
        if variant_id is None and not device.can_launch(first):
            rows = [row for row in rows if row.accepts(problem) and device.can_launch(row)] or rows
        spill: SpillError | None = None
        for row in self._candidates(rows, problem):
            try:
                return row, device.launcher(self.schema, row)
            except SpillError as error:
                spill = error
        assert spill is not None
        raise spill

    def _plan(
        self,
        request: Request,
        tensors: Mapping[str, TensorView],
        leaves: tuple[Any, ...],
        where: tuple[Device, str | None],
    ) -> _Plan:
        """The plan of a call: the one that is kept, or a new one. where: the device, and a variant's id or None."""
        signatures = tuple((name, tensor.signature) for name, tensor in tensors.items())
        leaf_signatures = tuple(tensor.signature for tensor in _tensors_of(leaves))
        wanted = tuple((name, output.order, output.dtype) for name, output in request.outputs.items())
        key = (where, fusion_key(request.fusion), signatures, leaf_signatures, wanted)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._new_plan(request, tensors, leaves, where)
            if len(self._plans) >= MAX_PLANS:
                self._plans.pop(next(iter(self._plans)), None)
            self._plans[key] = plan
        return plan

    def _new_plan(
        self,
        request: Request,
        tensors: Mapping[str, TensorView],
        leaves: tuple[Any, ...],
        where: tuple[Device, str | None],
    ) -> _Plan:
        device, variant_id = where
        problem = bind(self.schema, tensors, request.fusion, device.target, _new_dtypes(request))
        fields = problem.field_values
        _check_leaves(request.fusion, leaves, self.schema.extents(fields))
        new_outputs = []
        for name, output in request.outputs.items():
            if output.given is None:
                arg = self.schema.arg(name)
                extents = {
                    dim: fields[name] for dim, name in zip(output.order, arg.dims, strict=True) if dim is not None
                }
                shape = tuple(extents[dim] for dim in range(len(extents)))
                new_outputs.append(_NewOutput(name, shape, output.dtype or _output_dtype(self.schema, arg, tensors)))
        values = ((arg.name, arg.default_value(fields)) for arg in self.schema.args)
        defaults = {name: value for name, value in values if value is not None}
        if any(rule.failure(fields) is None for rule in self.schema.empty):
            variant = next(self._candidates(self._named(problem, variant_id), problem))
            return _Plan(variant, None, tuple(new_outputs), defaults)
        return _Plan(*self._kernel(problem, device, variant_id), tuple(new_outputs), defaults)

    def _checked_scalars(self, given: Mapping[str, Any]) -> dict[str, float | int]:
        scalars = {name: scalar(name, value, self.schema.arg(name).kind) for name, value in given.items()}
        for rule in self.schema.checks:
            failure = rule.failure(scalars) if rule.field in scalars else None
            if failure is not None:
                raise failed_check(failure, rule.field)
        return scalars


def _choice(rows: Sequence[Variant], problem: Problem) -> Variant | None:
    """Which of the rows serves the problem: od_select of abi/src/select.c says the same of those of packs."""
    first = next((row for row in rows if row.accepts(problem)), None)
    if first is None:
        return None
    preferred = (row for row in rows if row.is_preferred(problem) and first.stands_in_for(row))
    return next((row for row in preferred if row.accepts(problem)), first)


def _given_tensors(request: Request) -> dict[str, TensorView]:
    """The inputs, and the outputs that are given."""
    tensors = dict(request.inputs)
    for name, output in request.outputs.items():
        if output.given is not None:
            tensors[name] = output.view(output.given)
    return tensors


def _new_dtypes(request: Request) -> dict[str, str]:
    """Element types of the outputs to allocate that have one of their own."""
    outputs = request.outputs.items()
    return {name: output.dtype for name, output in outputs if output.given is None and output.dtype is not None}


def _function(path: str) -> Callable[..., None] | None:
    """The function "module:attribute"; None of nothing."""
    module_name, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module_name), attribute) if module_name else None


def _leaf_values(fusion: Fusion | None) -> tuple[TensorView | float | int, ...]:
    """The run-time arguments of a fusion, checked: views of tensors, numbers as they are."""
    return () if fusion is None else tuple(_leaf_value(leaf) for leaf in fusion.leaves())


def _leaf_value(leaf: Leaf) -> TensorView | float | int:
    if leaf.kind is not LeafKind.TENSOR:
        return scalar(leaf.name, leaf.value, "i32" if leaf.kind is LeafKind.INT32 else "f32")
    tensor = arrays.view(leaf.value, leaf.name)
    if tensor.dtype != leaf.dtype:
        raise ArgumentTypeError(leaf.name, f"dtype {tensor.dtype}", leaf.dtype)
    if len(tensor.shape) != leaf.rank:
        raise ArgumentError(leaf.name, f"{len(tensor.shape)} dims {tensor.shape}", f"{leaf.rank} dims")
    return tensor


def _check_leaves(fusion: Fusion | None, leaves: tuple[Any, ...], extents: Mapping[str, int]) -> None:
    for leaf, value in zip(fusion.leaves() if fusion is not None else (), leaves, strict=True):
        if isinstance(value, TensorView):
            check_leaf(leaf, value, extents)


def _tensors_of(leaves: tuple[Any, ...]) -> list[TensorView]:
    return [leaf for leaf in leaves if isinstance(leaf, TensorView)]


def _output_dtype(schema: FamilySchema, arg: ArgSpec, tensors: Mapping[str, TensorView]) -> str:
    """The only dtype that an output may have, or that of the inputs with its dtype symbol."""
    if len(arg.dtypes) == 1:
        return arg.dtypes[0]
    sharing = (other.name for other in schema.args if other.dtype_symbol == arg.dtype_symbol)
    return next(tensors[name].dtype for name in sharing if name in tensors)


def _public_signature(family: Family) -> inspect.Signature:
    """The family's call without its catch-all, and with the arguments that every operator has."""
    signature = inspect.signature(family.call)
    parameters = [row for row in signature.parameters.values() if row.kind is not inspect.Parameter.VAR_KEYWORD]
    common = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
        for name in ("device", "stream", "variant")
    ]
    return signature.replace(parameters=[*parameters, *common], return_annotation=Any)
