# SPDX-License-Identifier: Apache-2.0
"""entry.py: the parameters of a variant's exported entry: which, in which order, and how a tensor is laid out.

Who calls it: compile.py (fake arguments, check of the exported header), pack_source.py (rows of pack.h). All three
derive from the one list made here, so that a caller and a kernel cannot disagree about a struct.

A family's arguments come first, in its order, then the leaves of the fusion, then the workspace of a variant that has
one, then the stream. A tensor is passed as
{void *data; int64_t shapes[..]; int64_t strides[..];} with only its dynamic extents and strides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opdeck.core.errors import PackError
from opdeck.core.schema import ArgSpec, FamilySchema
from opdeck.core.variant import Variant

KIND_NUMBERS = {"tensor": 1, "i32": 2, "f32": 3}  # opdeck_arg_kind
WORKSPACE = "OPDECK_SOURCE_WORKSPACE"
WORKSPACE_ALIGN_BYTES = 256


@dataclass(frozen=True)
class Param:
    """One parameter. source: index of the family's argument, -1 - L for leaf L, or WORKSPACE. extents: None where
    dynamic.

    contiguous_dim: whose stride is 1; None where none's is known to be.
    """

    name: str
    source: int | str
    kind: str
    dtype: str = ""
    extents: tuple[int | None, ...] = ()
    contiguous_dim: int | None = None
    align_bytes: int = 0

    @property
    def shape_dims(self) -> tuple[int, ...]:
        """Which extents are dynamic."""
        return tuple(i for i, extent in enumerate(self.extents) if extent is None)

    @property
    def stride_dims(self) -> tuple[int, ...]:
        """Which strides are dynamic: all but the one that is 1."""
        return tuple(dim for dim in range(len(self.extents)) if dim != self.contiguous_dim)


def entry_params(schema: FamilySchema, variant: Variant) -> tuple[Param, ...]:
    """The parameters of a variant's entry, but for the stream, which is last."""
    args = [_arg_param(arg, idx, variant) for idx, arg in enumerate(schema.args)]
    leaves = variant.fusion.leaves() if variant.fusion is not None else ()
    for leaf_idx, leaf in enumerate(leaves):
        extents = (None,) * leaf.rank
        kind = LEAF_KINDS[leaf.kind.value]
        contiguous_dim = leaf.rank - 1 if leaf.align_bytes > 0 else None
        name = f"leaf{leaf_idx}"
        args.append(Param(name, -1 - leaf_idx, kind, leaf.dtype, extents, contiguous_dim, leaf.align_bytes))
    if variant.workspace:
        args.append(Param("workspace", WORKSPACE, "tensor", "int32", (1,), 0, WORKSPACE_ALIGN_BYTES))
    return tuple(args)


LEAF_KINDS: Mapping[int, str] = {number: kind for kind, number in KIND_NUMBERS.items()}


def _arg_param(arg: ArgSpec, idx: int, variant: Variant) -> Param:
    if arg.kind not in KIND_NUMBERS:
        raise PackError(f"kind of argument {arg.name}: got {arg.kind!r}, want {'|'.join(KIND_NUMBERS)}")
    if arg.kind != "tensor":
        return Param(arg.name, idx, arg.kind)
    extents = tuple(variant.static_dims.get(dim) for dim in arg.dims)
    dtype = arg.dtypes[0] if len(arg.dtypes) == 1 else variant.symbol_dtypes.get(arg.dtype_symbol or "", variant.dtype)
    if dtype not in arg.dtypes:
        raise PackError(f"dtype of {variant.id}: got {dtype!r}, want {'|'.join(arg.dtypes)} for argument {arg.name}")
    inner_dim = len(extents) - (2 if arg.name in variant.transposed else 1)
    contiguous_dim = inner_dim if arg.contiguous_last else None
    return Param(arg.name, idx, arg.kind, dtype, extents, contiguous_dim, arg.align_bytes)
