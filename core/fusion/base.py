# SPDX-License-Identifier: Apache-2.0
"""base.py: what a fusion is: a function, such as a mask, that is compiled into a kernel.

Who calls it: operators (names, identity, leaves). What a fusion does, attention.py and activations.py say.

A fusion is a frozen dataclass. Each field is
  - a *leaf*, annotated TensorLeaf, Int32Leaf or Float32Leaf: a run-time argument of the kernel. Where the field's
    default is None, a value of None means that it is absent, which is static;
  - another fusion, whose fields are part of this one;
  - *static* otherwise (int, bool, enum, str): part of the fusion's identity, one kernel each.
No method that a kernel calls may import the DSL at module level, nor branch on a traced value.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
import types
import typing
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

from opdeck.core.errors import ArgumentError, ArgumentTypeError
from opdeck.core.fusion import calls

MAX_NUM_LEAVES = 16
_OWN_MODULES = "opdeck.core.fusion"
# Of others' classes errors in these are named, and `//` and `%` round there as Python does.
_CALLED_BY_KERNELS = frozenset(
    (
        *("at", "tile_ranges", "k_tile", "visible", "visible_interval"),
        *("score", "score_with", "apply_score", "apply_score_with"),
        *("activate", "apply"),
    )
)

FusionT = TypeVar("FusionT", bound="Fusion")


class LeafKind(enum.Enum):
    """Kinds of run-time arguments; the values are opdeck_arg_kind of opdeck.h."""

    TENSOR = 1
    INT32 = 2
    FLOAT32 = 3


TensorLeaf = Annotated[Any, LeafKind.TENSOR]
Int32Leaf = Annotated[Any, LeafKind.INT32]
Float32Leaf = Annotated[Any, LeafKind.FLOAT32]


def tensor_leaf(
    rank: int | None = None,
    dtype: str = "fp32",
    dims: Sequence[str | int | None] = (),
    dtype_field: str | None = None,
    align_bytes: int = 0,
    default: Any = dataclasses.MISSING,
) -> Any:
    """Field of a TensorLeaf: its number of dims and its canonical dtype, which the compiled kernel fixes.

    dims: what its extents must be, each one of the class's extent_names, a number, either of two, or None for any:
    ("batch|1", "num_heads", 5, None). Then rank need not be given. Extents of which nothing is said may be any.
    dtype_field: the static field that holds the dtype, where it is not the same for every instance.
    align_bytes: of the tensor's data and of every stride but the last, which must then be 1; 16 for TMA.
    default: None where the tensor may be absent.
    Raises: ArgumentTypeError, ArgumentError when dims are of another type, or more than rank.
    """
    if not isinstance(dims, (tuple, list)):
        raise ArgumentTypeError("tensor_leaf.dims", repr(dims), "a tuple of names, numbers and None")
    rank = len(dims) if rank is None else rank
    if len(dims) > rank:
        raise ArgumentError("tensor_leaf.dims", f"{len(dims)} dims", f"at most rank = {rank}")
    given = (*dims, *(None,) * (rank - len(dims)))
    return dataclasses.field(
        default=default,
        metadata={
            "rank": rank,
            "dtype": dtype,
            "dims": tuple(_dim_text(dim, dim_idx) for dim_idx, dim in enumerate(given)),
            "dtype_field": dtype_field,
            "align_bytes": align_bytes,
        },
    )


def _dim_text(dim: object, dim_idx: int) -> str:
    """A dim of tensor_leaf as leaves and packs spell it. Raises: ArgumentTypeError, ArgumentError."""
    if dim is None:
        return _free_dim(dim_idx)
    if isinstance(dim, bool) or not isinstance(dim, (str, int)):
        raise ArgumentTypeError(f"tensor_leaf.dims[{dim_idx}]", repr(dim), "a name, a number or None")
    if isinstance(dim, int) and dim < 0:
        raise ArgumentError(f"tensor_leaf.dims[{dim_idx}]", dim, "at least 0")
    return str(dim)


def _free_dim(dim_idx: int) -> str:
    """The spelling of a dim of any extent: a name, for messages, which is no size of any problem."""
    return f"dim{dim_idx}"


@dataclass(frozen=True)
class Leaf:
    """One run-time argument of a fusion. name: "alibi.slopes". rank and dtype are 0 and the scalar's for scalars.

    dims: of a tensor, one a dim. align_bytes: 0 for a tensor of any strides.
    """

    name: str
    kind: LeafKind
    rank: int
    dtype: str
    value: Any = dataclasses.field(compare=False)
    dims: tuple[str, ...] = ()
    align_bytes: int = 0

    def check_extents(self, shape: Sequence[int], extents: Mapping[str, int]) -> None:
        """Raises: ArgumentError when the tensor is not of `dims`. extents: values of Extent's fields, those known."""
        for dim_idx, (dim, got) in enumerate(zip(self.dims, shape, strict=False)):
            wants = {word: int(word) if word.isdigit() else extents.get(word, got) for word in dim.split("|")}
            if got not in wants.values():
                want = "|".join(word if word.isdigit() else f"{word} = {extent}" for word, extent in wants.items())
                raise ArgumentError(self.name, f"{got} in dim {dim_idx} of shape {tuple(shape)}", want)


class FieldKind(enum.Enum):
    STATIC = 0
    LEAF = 1
    FUSION = 2


class FieldSpec(NamedTuple):
    name: str
    kind: FieldKind
    leaf_kind: LeafKind | None = None
    rank: int = 0
    dtype: str = ""
    dims: tuple[str, ...] = ()
    dtype_field: str | None = None
    align_bytes: int = 0
    is_optional: bool = False


_field_specs_of: dict[type, tuple[FieldSpec, ...]] = {}


def field_specs(cls: type) -> tuple[FieldSpec, ...]:
    """The fields of a fusion class, in order, with what each is.

    Raises: ArgumentTypeError when the class is not a frozen dataclass, has no name, or a tensor leaf does not say its
    rank; ArgumentError when a tensor leaf has a dim that is none of the class's extent_names.
    """
    if cls not in _field_specs_of:
        _field_specs_of[cls] = _new_field_specs(cls)
    return _field_specs_of[cls]


def _new_field_specs(cls: type) -> tuple[FieldSpec, ...]:
    if not dataclasses.is_dataclass(cls) or not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise ArgumentTypeError(cls.__qualname__, "a class", "a frozen dataclass", "@dataclass(frozen=True)")
    if not hasattr(cls, "name"):
        raise ArgumentTypeError(f"{cls.__qualname__}.name", None, "PLUGIN.fusion", "a ClassVar")
    hints = typing.get_type_hints(cls, include_extras=True)
    return tuple(_field_spec(cls, field, hints[field.name]) for field in dataclasses.fields(cls))


def _field_spec(cls: type, field: dataclasses.Field[Any], hint: Any) -> FieldSpec:
    kinds = [extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, LeafKind)]
    if kinds:
        is_optional = field.default is None
        if kinds[0] is not LeafKind.TENSOR:
            dtype = _SCALAR_DTYPES[kinds[0]]
            return FieldSpec(field.name, FieldKind.LEAF, kinds[0], dtype=dtype, is_optional=is_optional)
        name = f"{cls.__qualname__}.{field.name}"
        if "rank" not in field.metadata:
            raise ArgumentTypeError(name, "a TensorLeaf of unknown rank", "its rank", "= tensor_leaf(rank=1)")
        if issubclass(cls, Fusion) and cls.extent_names is not None:
            _check_dims(name, field.metadata["dims"], cls.extent_names)
        return FieldSpec(field.name, FieldKind.LEAF, kinds[0], **field.metadata, is_optional=is_optional)
    if isinstance(hint, type) and issubclass(hint, Fusion):
        return FieldSpec(field.name, FieldKind.FUSION)
    return FieldSpec(field.name, FieldKind.STATIC)


def _check_dims(name: str, dims: Sequence[str], known: Sequence[str]) -> None:
    """Refuses a misspelt dim, which no problem would have, so that nothing would be checked."""
    for dim_idx, dim in enumerate(dims):
        for word in dim.split("|"):
            if not word.isdigit() and word not in (*known, _free_dim(dim_idx)):
                got = f"{word!r} in dims[{dim_idx}]"
                raise ArgumentError(name, got, "|".join((*known, "a number", "None")), "None is any extent")


_SCALAR_DTYPES = {LeafKind.INT32: "int32", LeafKind.FLOAT32: "fp32"}


class StaticValue:
    """A static value of a type of its own: what static_text spells says all that there is to it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


def static_text(value: object, argument: str = "static field") -> str:
    """A static value as canonical names spell it.

    Raises: ArgumentTypeError naming `argument` for a type whose values have no stable spelling.
    """
    if value is None:
        return "none"
    if isinstance(value, enum.Enum):
        return static_text(value.value, argument)
    if isinstance(value, StaticValue):
        return value.text
    if isinstance(value, (bool, int, str)):
        return str(value).lower() if isinstance(value, bool) else str(value)
    raise ArgumentTypeError(argument, type(value).__qualname__, "an int, bool, enum, str or None")


class Fusion:
    """Base of fusions: names, identity and leaves. Subclasses are frozen dataclasses and set `name`.

    Third parties' are named "PLUGIN.fusion". What a fusion does, the bases of its kind say: Mask, Activation.
    extent_names: the sizes of a problem that dims of tensor leaves may name; None where a base leaves them open.
    """

    name: ClassVar[str]
    extent_names: ClassVar[tuple[str, ...] | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        name = cls.__dict__.get("name")
        if isinstance(name, str) and "." not in name and not cls.__module__.startswith(_OWN_MODULES):
            hint = "names without a dot are opdeck's own"
            raise ArgumentError(f"{cls.__qualname__}.name", repr(name), "PLUGIN.fusion", hint)
        inherited = getattr(cls, "name", None)
        if name is None and isinstance(inherited, str):
            want, hint = "a name of its own", "kernels are found by it"
            raise ArgumentError(f"{cls.__qualname__}.name", f"{inherited!r}, that of a base", want, hint)
        if not cls.__module__.startswith(_OWN_MODULES):
            for called in _CALLED_BY_KERNELS:
                owner = next((base for base in cls.__mro__ if called in vars(base)), cls)
                method = vars(owner).get(called)
                is_guarded = owner is not cls and issubclass(owner, Fusion)
                if isinstance(method, types.FunctionType) and not is_guarded:
                    setattr(cls, called, calls.guarded(called, method))

    @functools.cached_property
    def static_key(self) -> Hashable:
        """Equal for fusions of one kernel: class and static values, those of the fusions within included."""
        statics = tuple((name, type(value), value) for name, value in self.statics())  # True == 1, but not here
        return type(self), statics, tuple(fusion.static_key for _, fusion in self.nested())

    @functools.cached_property
    def canonical_name(self) -> str:
        """Name with the static values, as C hosts spell it: `causal[align=bottom_right]`."""
        statics = [f"{name}={static_text(value)}" for name, value in self.statics()]
        statics.extend(f"{name}={fusion.canonical_name}" for name, fusion in self.nested())
        return f"{self.name}[{','.join(statics)}]" if statics else self.name

    @functools.cached_property
    def slug(self) -> str:
        """canonical_name as part of a C identifier: `causal_bottom_right`. A third party's ends with a hash."""
        # A leaf that is absent is named, since another may be absent instead.
        words = [self.name, *(f"{name}_none" if row is None else static_text(row) for name, row in self.statics())]
        slug = re.sub(r"\W+", "_", "_".join(words))
        if "." not in self.name:
            return slug
        from opdeck.core.fusion.identity import identity

        return f"{slug}_{identity(self)[:8]}"

    def lacks(self, method: str) -> ArgumentTypeError:
        """The error of a base class's method that has to be overridden."""
        return ArgumentTypeError(f"{type(self).__qualname__}.{method}", "no such method", "one: kernels call it")

    def statics(self) -> Iterator[tuple[str, object]]:
        """(field, value) of each static field, and of each leaf that is absent.

        Raises: ArgumentTypeError for a leaf that may not be.
        """
        for spec in field_specs(type(self)):
            value = getattr(self, spec.name)
            if spec.kind is FieldKind.LEAF and value is None and not spec.is_optional:
                want = "an array" if spec.leaf_kind is LeafKind.TENSOR else "a number"
                raise ArgumentTypeError(f"{self.name}.{spec.name}", None, want)
            if spec.kind is FieldKind.STATIC or (spec.kind is FieldKind.LEAF and value is None):
                static_text(value, f"{self.name}.{spec.name}")  # names what has no spelling
                yield spec.name, value

    def nested(self) -> Iterator[tuple[str, Fusion]]:
        """(field, fusion) of each fusion within."""
        for spec in field_specs(type(self)):
            if spec.kind is FieldKind.FUSION:
                fusion = getattr(self, spec.name)
                if not isinstance(fusion, Fusion):
                    raise ArgumentTypeError(f"{self.name}.{spec.name}", type(fusion).__qualname__, "a Fusion")
                yield spec.name, fusion

    def leaves(self) -> tuple[Leaf, ...]:
        """Run-time arguments in depth-first field order: leaf0, leaf1, ... of the exported entry.

        Raises: ArgumentError when there are more than packs have room for.
        """
        leaves: list[Leaf] = []
        for spec in field_specs(type(self)):
            value = getattr(self, spec.name)
            if spec.kind is FieldKind.FUSION:
                leaves.extend(value.leaves())
            elif spec.leaf_kind is not None and value is not None:
                dtype = getattr(self, spec.dtype_field) if spec.dtype_field else spec.dtype
                name = f"{self.name}.{spec.name}"
                leaves.append(Leaf(name, spec.leaf_kind, spec.rank, dtype, value, spec.dims, spec.align_bytes))
        if len(leaves) > MAX_NUM_LEAVES:
            raise ArgumentError(f"leaves of {self.name}", len(leaves), f"at most {MAX_NUM_LEAVES}")
        return _with_unique_names(leaves)

    def with_leaves(self: FusionT, values: Sequence[Any]) -> FusionT:
        """The same fusion with other leaf values (traced ones, in a kernel), in the order of leaves()."""
        rest = list(values)
        fusion = self._take_leaves(rest)
        if rest:
            num_wanted = len(values) - len(rest)
            raise ArgumentTypeError(f"leaves of {self.canonical_name}", f"{len(values)} values", f"{num_wanted}")
        return fusion

    def with_arrays(self: FusionT, copy: Callable[[Any], Any]) -> FusionT:
        """The same fusion with copy(value) in the place of each tensor's value: in another memory, say."""
        leaves = self.leaves()
        return self.with_leaves([copy(leaf.value) if leaf.kind is LeafKind.TENSOR else leaf.value for leaf in leaves])

    def without_values(self: FusionT) -> FusionT:
        """The same fusion with the kinds of its leaves in the place of their values: what a variant row keeps."""
        return self.with_leaves([leaf.kind for leaf in self.leaves()])

    def with_indexed_tensors(self: FusionT) -> FusionT:
        """The same fusion with tensors that take one index a dim: what methods of others' classes get as self.

        A leaf that `at` has made a number stays one.
        """
        changes = {}
        for spec in field_specs(type(self)):
            value = getattr(self, spec.name)
            has_dims = len(getattr(value, "shape", ())) > 0
            if spec.leaf_kind is LeafKind.TENSOR and has_dims and not isinstance(value, calls.IndexedTensor):
                changes[spec.name] = calls.IndexedTensor(value, f"{self.name}.{spec.name}")
        return self.replace(**changes) if changes else self

    def _take_leaves(self: FusionT, rest: list[Any]) -> FusionT:
        changes: dict[str, Any] = {}
        for spec in field_specs(type(self)):
            value = getattr(self, spec.name)
            if spec.kind is FieldKind.FUSION:
                changes[spec.name] = value._take_leaves(rest)
            elif spec.kind is FieldKind.LEAF and value is not None:
                if not rest:
                    raise ArgumentTypeError(f"{self.name}.{spec.name}", "no value", "a value for each leaf")
                changes[spec.name] = rest.pop(0)
        return self.replace(**changes) if changes else self

    def with_defaults(self: FusionT) -> FusionT:
        """The same fusion with the defaults of its fields where kinds are in the place of leaf values.

        Raises: ArgumentError naming a leaf that has none.
        """
        changes = {}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            if isinstance(getattr(self, field.name), LeafKind):
                if field.default is dataclasses.MISSING:
                    want = f"a method sample(..) of {type(self).__qualname__} that says which"
                    raise ArgumentError(f"{self.name}.{field.name}", "no value to try", want)
                changes[field.name] = field.default
        return self.replace(**changes) if changes else self

    def replace(self: FusionT, **changes: Any) -> FusionT:
        """The same fusion with other values in some fields."""
        # Not dataclasses.replace: __post_init__ checks what users give, and traced values are not that.
        fusion = object.__new__(type(self))
        for field in field_specs(type(self)):
            object.__setattr__(fusion, field.name, changes.get(field.name, getattr(self, field.name)))
        return fusion


def _with_unique_names(leaves: list[Leaf]) -> tuple[Leaf, ...]:
    """Numbers the leaves of fusions that occur twice: window.left, window.left#2."""
    seen: dict[str, int] = {}
    unique = []
    for leaf in leaves:
        base = leaf.name.split("#")[0]
        seen[base] = seen.get(base, 0) + 1
        name = base if seen[base] == 1 else f"{base}#{seen[base]}"
        unique.append(dataclasses.replace(leaf, name=name))
    return tuple(unique)
