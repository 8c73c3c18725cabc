# SPDX-License-Identifier: Apache-2.0
"""problem.py: the arguments of a call checked against the family's schema, and what is left of them for selection.

Who calls it: operator.py, once for each new combination of shapes, strides and types. abi/src/bind.c checks the same
rows for C hosts.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from opdeck.core import dtypes
from opdeck.core.arch import arch as arch_row
from opdeck.core.arrays import TensorView
from opdeck.core.errors import ArgumentError, ArgumentTypeError
from opdeck.core.fusion import Fusion, Leaf
from opdeck.core.schema import ArgSpec, FamilySchema, Rule
from opdeck.core.variant import fusion_name

# From here on TMA moves a tensor, which cannot broadcast along a stride of 0.
TMA_ALIGN_BYTES = 16
MAX_STRIDE_BYTES = 1 << 40  # exclusive; of a tensor map


@dataclass(frozen=True)
class Target:
    """Where a problem is to be solved. arch: "sm_100a", "cpu". num_sms: 0 on a CPU."""

    arch: str
    num_sms: int


@dataclass(frozen=True)
class Problem:
    """What selection looks at. fields: name and value of each rule field, sorted by name."""

    family: str
    arch: str
    fusion_name: str
    fields: tuple[tuple[str, int], ...]
    fusion: Fusion | None = field(compare=False)

    @functools.cached_property
    def field_values(self) -> Mapping[str, int]:
        return dict(self.fields)

    def __str__(self) -> str:
        words = [f"{self.family} on {self.arch}", f"fusion={self.fusion_name}"]
        for name, value in self.fields:
            row = dtypes.by_number(value) if name.startswith("dtype.") else None
            words.append(f"{name}={row.name if row else value}")
        return " ".join(words)


def bind(
    schema: FamilySchema,
    tensors: Mapping[str, TensorView],
    fusion: Fusion | None,
    target: Target,
    new_dtypes: Mapping[str, str] | None = None,
) -> Problem:
    """The problem that the tensors (by the schema's argument names) pose on a target.

    An output that is not among the tensors is one that is still to be allocated, or an optional one that is not wanted.
    new_dtypes: element types of outputs to allocate, by name, where they are not those of the inputs.

    Raises: ArgumentError or ArgumentTypeError naming the user's argument, what it got and what it wants.
    """
    fields: dict[str, int] = {"arch": arch_row(target.arch).number, "num_sms": target.num_sms}
    bound_by: dict[str, str] = {}
    for arg in schema.args:
        if arg.kind != "tensor":
            continue
        tensor = tensors.get(arg.name)
        if arg.optional:
            fields[f"has.{arg.name}"] = int(tensor is not None)
        if tensor is not None:
            _bind_dtype(arg, tensor, fields, bound_by)
            _bind_dims(arg, tensor, fields, bound_by)
            # At once, so that an argument that differs from a wrong one is not told to be the wrong one.
            known = [rule for rule in schema.checks if rule.field in arg.dims and rule.is_decidable(fields)]
            _run_checks(known, fields, bound_by)
            _check_memory(arg, tensor)
            if arg.transposable:
                fields[f"transposed.{arg.name}"] = int(_is_transposed(arg, tensor))
            if arg.has_pitch:
                fields[f"pitch.{arg.name}"] = tensor.strides[_pitch_dim(arg, tensor)]
        elif new_dtypes is not None and arg.name in new_dtypes:
            fields[f"dtype.{arg.dtype_symbol}"] = dtypes.dtype(new_dtypes[arg.name]).number
    scalars = {arg.name for arg in schema.args if arg.kind != "tensor"}
    _run_checks([rule for rule in schema.checks if rule.field not in scalars], fields, bound_by)
    fields |= schema.product_values(fields)
    return Problem(schema.name, target.arch, fusion_name(fusion), tuple(sorted(fields.items())), fusion)


def check_leaf(leaf: Leaf, tensor: TensorView, extents: Mapping[str, int]) -> None:
    """Checks a fusion's tensor against the sizes of the problem, and its memory where kernels load it by TMA.

    Raises: ArgumentError.
    """
    leaf.check_extents(tensor.shape, extents)
    if leaf.align_bytes > 0:
        spec = ArgSpec(leaf.name, "tensor", dims=leaf.dims, align_bytes=leaf.align_bytes, contiguous_last=True)
        _check_memory(spec, tensor)


def _run_checks(rules: Sequence[Rule], fields: Mapping[str, int], bound_by: Mapping[str, str]) -> None:
    for rule in rules:
        failure = rule.failure(fields)
        if failure is not None:
            raise failed_check(failure, bound_by.get(rule.field, rule.field))


def failed_check(failure: str, argument: str) -> ArgumentError:
    """The error of a check's failure, "hq: got 3, want ...", that `argument` bound the field of."""
    name, _, got_want = failure.partition(": got ")
    got, _, want = got_want.partition(", want ")
    return ArgumentError(argument, got if name == argument else f"{name} = {got}", want)


def _bind_dtype(arg: ArgSpec, tensor: TensorView, fields: dict[str, int], bound_by: dict[str, str]) -> None:
    if tensor.dtype not in arg.dtypes:
        raise ArgumentTypeError(tensor.argument, f"dtype {tensor.dtype}", "|".join(arg.dtypes))
    if arg.dtype_symbol is None:
        return
    name, number = f"dtype.{arg.dtype_symbol}", dtypes.dtype(tensor.dtype).number
    if fields.setdefault(name, number) != number:
        bound = dtypes.by_number(fields[name])
        want = f"{bound.name if bound else fields[name]}, the dtype of {bound_by[name]}"
        raise ArgumentTypeError(tensor.argument, f"dtype {tensor.dtype}", want)
    bound_by.setdefault(name, tensor.argument)


def _bind_dims(arg: ArgSpec, tensor: TensorView, fields: dict[str, int], bound_by: dict[str, str]) -> None:
    if len(tensor.shape) != len(arg.dims):
        want = f"{len(arg.dims)} dims ({', '.join(arg.dims)})"
        raise ArgumentError(tensor.argument, f"{len(tensor.shape)} dims {tensor.shape}", want)
    for name, extent in zip(arg.dims, tensor.shape, strict=True):
        if fields.setdefault(name, extent) != extent:
            want = f"{name} = {fields[name]}, as {bound_by[name]} has"
            raise ArgumentError(tensor.argument, f"{name} = {extent} in shape {tensor.shape}", want)
        bound_by.setdefault(name, tensor.argument)


def _is_transposed(arg: ArgSpec, tensor: TensorView) -> bool:
    """Whether the last dim but one is the contiguous one."""
    is_wide = dtypes.dtype(tensor.dtype).bits >= 8
    return arg.transposable and is_wide and tensor.strides[-1] != 1 and tensor.strides[-2] == 1


def _inner_dim(arg: ArgSpec, tensor: TensorView) -> int:
    return len(arg.dims) - (2 if _is_transposed(arg, tensor) else 1)


def _pitch_dim(arg: ArgSpec, tensor: TensorView) -> int:
    return len(arg.dims) - (1 if _is_transposed(arg, tensor) else 2)


def _check_memory(arg: ArgSpec, tensor: TensorView) -> None:
    """Checks what the schema asks of a tensor's memory: writable, contiguous, aligned, not overlapping itself."""
    if arg.access != "read" and tensor.is_readonly:
        raise ArgumentError(tensor.argument, "a read-only array", "one that may be written to")
    is_empty, align_bytes = 0 in tensor.shape, _align_bytes(arg, tensor)
    if not is_empty and tensor.data % align_bytes:
        raise ArgumentError(tensor.argument, f"data at address {tensor.data:#x}", f"{align_bytes}-byte alignment")
    for dim, extent in enumerate(tensor.shape):
        if (extent > 1 and not is_empty) or (arg.has_pitch and dim == _pitch_dim(arg, tensor)):
            _check_stride(arg, tensor, dim)
    if is_empty:
        return
    if arg.access != "read" and _overlaps_itself(tensor):
        got = f"shape {tensor.shape} with strides {tensor.strides}"
        raise ArgumentError(tensor.argument, got, "elements that do not overlap")


def _align_bytes(arg: ArgSpec, tensor: TensorView) -> int:
    """TMA asks for 32 bytes where it moves elements under a byte."""
    return 2 * arg.align_bytes if dtypes.dtype(tensor.dtype).bits < 8 else arg.align_bytes


def _check_stride(arg: ArgSpec, tensor: TensorView, dim: int) -> None:
    """Checks the stride of a dim with more than one element."""
    stride, argument = tensor.strides[dim], tensor.argument
    bits = dtypes.dtype(tensor.dtype).bits
    got = f"a stride of {stride} elements in dim {arg.dims[dim]}"
    may_broadcast = arg.access == "read" and arg.align_bytes < TMA_ALIGN_BYTES
    if stride < 0 or (stride == 0 and not may_broadcast):
        raise ArgumentError(argument, got, ">= 0" if may_broadcast else "> 0")
    if stride * bits >= 8 * MAX_STRIDE_BYTES:
        raise ArgumentError(argument, got, "less than 2^40 bytes")
    if dim == _inner_dim(arg, tensor):
        if arg.contiguous_last and stride != 1:
            raise ArgumentError(argument, got, "1", "nothing is copied to make it so")
    elif stride * bits % (8 * _align_bytes(arg, tensor)):
        raise ArgumentError(argument, got, f"a multiple of {_align_bytes(arg, tensor)} bytes")


def _overlaps_itself(tensor: TensorView) -> bool:
    """Whether two indices may reach one element: dims by stride, each must step over all that is inside it."""
    span = 1
    for stride, extent in sorted(zip(tensor.strides, tensor.shape, strict=True)):
        if extent > 1:
            if stride < span:
                return True
            span += stride * (extent - 1)
    return False
