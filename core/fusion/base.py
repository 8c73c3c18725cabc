# SPDX-License-Identifier: Apache-2.0
"""base.py: what a fusion is: a function, such as a mask, that is compiled into a kernel.

Who calls it: operators (names, identity, leaves), kernels (tile ranges, intervals), the reference (`reference`).
Source: the fusion hook of CUTLASS example 77 (trip counts, masked and unmasked), here with run-time arguments.

A fusion is a frozen dataclass. Each field is
  - a *leaf*, annotated TensorLeaf, Int32Leaf or Float32Leaf: a run-time argument of the kernel. A leaf whose value
    is None is absent, and its absence is static;
  - another fusion, whose fields are part of this one;
  - *static* otherwise (int, bool, enum, str): part of the fusion's identity, one kernel each.
No method that a kernel calls may import the DSL at module level, nor branch on a traced value.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
import typing
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from opdeck.core.errors import ArgumentError, ArgumentTypeError
from opdeck.core.fusion.intmath import IntLike, ceil_div, clamp, floor_div, is_static_zero, min_

MAX_NUM_LEAVES = 16

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
    dims: Sequence[str] = (),
    dtype_field: str | None = None,
    align_bytes: int = 0,
) -> Any:
    """Field of a TensorLeaf: its number of dims and its canonical dtype, which the compiled kernel fixes.

    dims: what its extents must be, each a field of Extent, a number, or one of those or 1: ("batch|1", "num_heads").
    Then rank need not be given. Extents of which nothing is said are not checked, nor are any in C.
    dtype_field: the static field that holds the dtype, where it is not the same for every instance.
    align_bytes: of a tensor that TMA loads, 16: of its data and of every stride but the last, which must be 1.
    """
    rank = len(dims) if rank is None else rank
    return dataclasses.field(
        metadata={
            "rank": rank,
            "dtype": dtype,
            "dims": tuple(dims),
            "dtype_field": dtype_field,
            "align_bytes": align_bytes,
        }
    )


@dataclass(frozen=True)
class Leaf:
    """One run-time argument of a fusion. name: "alibi.slopes". rank and dtype are 0 and the scalar's for scalars.

    align_bytes: 0 for a tensor of any strides.
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


class TileRanges(NamedTuple):
    """K tiles that a Q tile visits: [begin, full_begin) and [full_end, end) masked, [full_begin, full_end) not.

    0 <= begin <= full_begin <= full_end <= end <= ceil(sk / tile_n).
    """

    begin: IntLike
    full_begin: IntLike
    full_end: IntLike
    end: IntLike


class Tile(NamedTuple):
    """Extent of one tile of S = Q K^T: tile_m rows (q) by tile_n columns (k)."""

    m: int
    n: int


class Coords(NamedTuple):
    """Where elements of S are: indices from zero, q and k within their sequence, and the sequence lengths."""

    batch: IntLike
    head: IntLike
    q: IntLike
    k: IntLike
    sq: IntLike
    sk: IntLike


class Extent(NamedTuple):
    """Size of an attention problem: sequences, query heads, queries and keys a sequence."""

    batch: int
    num_heads: int
    sq: int
    sk: int


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


_field_specs_of: dict[type, tuple[FieldSpec, ...]] = {}


def field_specs(cls: type) -> tuple[FieldSpec, ...]:
    """The fields of a fusion class, in order, with what each is.

    Raises: ArgumentTypeError when the class is not a frozen dataclass or a tensor leaf does not say its rank.
    """
    if cls not in _field_specs_of:
        _field_specs_of[cls] = _new_field_specs(cls)
    return _field_specs_of[cls]


def _new_field_specs(cls: type) -> tuple[FieldSpec, ...]:
    if not dataclasses.is_dataclass(cls) or not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise ArgumentTypeError(cls.__qualname__, "a class", "a frozen dataclass", "@dataclass(frozen=True)")
    hints = typing.get_type_hints(cls, include_extras=True)
    return tuple(_field_spec(cls, field, hints[field.name]) for field in dataclasses.fields(cls))


def _field_spec(cls: type, field: dataclasses.Field[Any], hint: Any) -> FieldSpec:
    kinds = [extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, LeafKind)]
    if kinds:
        if kinds[0] is not LeafKind.TENSOR:
            return FieldSpec(field.name, FieldKind.LEAF, kinds[0], 0, _SCALAR_DTYPES[kinds[0]])
        if "rank" not in field.metadata:
            name = f"{cls.__qualname__}.{field.name}"
            raise ArgumentTypeError(name, "a TensorLeaf of unknown rank", "its rank", "= tensor_leaf(rank=1)")
        return FieldSpec(field.name, FieldKind.LEAF, kinds[0], **field.metadata)
    if isinstance(hint, type) and issubclass(hint, Fusion):
        return FieldSpec(field.name, FieldKind.FUSION)
    return FieldSpec(field.name, FieldKind.STATIC)


_SCALAR_DTYPES = {LeafKind.INT32: "int32", LeafKind.FLOAT32: "fp32"}


def static_text(value: object, argument: str = "static field") -> str:
    """A static value as canonical names spell it.

    Raises: ArgumentTypeError naming `argument` for a type whose values have no stable spelling.
    """
    if value is None:
        return "none"
    if isinstance(value, enum.Enum):
        return static_text(value.value, argument)
    if isinstance(value, (bool, int, str)):
        return str(value).lower() if isinstance(value, bool) else str(value)
    raise ArgumentTypeError(argument, type(value).__qualname__, "an int, bool, enum, str or None")


class Fusion:
    """Base of fusions: names, identity and leaves. Subclasses are frozen dataclasses and set `name`.

    Third parties' are named "PLUGIN.fusion". What a fusion does, the bases of its kind say: Mask, Activation.
    """

    name: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        name = cls.__dict__.get("name")
        if isinstance(name, str) and "." not in name and not cls.__module__.startswith("opdeck.core.fusion"):
            hint = "names without a dot are opdeck's own"
            raise ArgumentError(f"{cls.__qualname__}.name", repr(name), "PLUGIN.fusion", hint)
        inherited = getattr(cls, "name", None)
        if name is None and isinstance(inherited, str):
            want, hint = "a name of its own", "kernels are found by it"
            raise ArgumentError(f"{cls.__qualname__}.name", f"{inherited!r}, that of a base", want, hint)

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

    def statics(self) -> Iterator[tuple[str, object]]:
        """(field, value) of each static field, and of each leaf that is absent."""
        for spec in field_specs(type(self)):
            value = getattr(self, spec.name)
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

    def without_values(self: FusionT) -> FusionT:
        """The same fusion with the kinds of its leaves in the place of their values: what a variant row keeps."""
        return self.with_leaves([leaf.kind for leaf in self.leaves()])

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


class AttentionFusion(Fusion):
    """A fusion of attention kernels: score functions, a mask, a sink, or some of these."""

    def at(self, batch: IntLike, head: IntLike) -> AttentionFusion:
        """The fusion as one head of one sequence sees it. Kernels call it once a CTA, the reference once a head.

        Here a leaf that holds a value for each head or sequence becomes the one that counts, read once:
        `return self.replace(slopes=self.slopes[head])`. What is not the same for all heads and is used by
        visible_interval or tile_ranges must, since these are not told the head.
        """
        return self

    def sample(self: FusionT, extent: Extent, rng: np.random.Generator) -> FusionT:
        """The same fusion with leaf values to try on a problem of that size; by default the fields' defaults.

        Who calls it: `opdeck check-plugin` and `opdeck run --mask`. A fusion with leaves that have no default
        overrides it.
        """
        return self.with_defaults()

    def reference(self, scores: npt.NDArray[np.float64], coords: Coords) -> npt.NDArray[np.float64]:
        """What the fusion does to scores, in numpy. coords broadcast to the shape of scores."""
        raise NotImplementedError(f"{type(self).__qualname__}.reference")

    @property
    def scores(self) -> tuple[Score, ...]:
        """The score functions within, in the order in which they run."""
        return ()

    @property
    def mask(self) -> Mask:
        """The mask within, which runs after the score functions; Residual where there is none."""
        from opdeck.core.fusion.masks import Residual

        return Residual()

    @property
    def sinks(self) -> tuple[Any, ...]:
        """The Sink within, if there is one."""
        return ()

    def __and__(self, other: object) -> AttentionFusion:
        """Both: the score functions as written, then what both masks show."""
        if not isinstance(other, AttentionFusion):
            return NotImplemented
        from opdeck.core.fusion.compose import combine

        return combine(self, other)

    def tile_ranges(self, q_block: IntLike, tile: tuple[int, int], sq: IntLike, sk: IntLike) -> TileRanges:
        """K tiles that the Q tile of rows [q_block * tile_m, (q_block + 1) * tile_m) visits.

        Domain: q_block * tile_m < sq. Those of the mask within.
        """
        return self.mask.tile_ranges(q_block, tile, sq, sk)

    def get_trip_count(self, q_block: IntLike, tile: tuple[int, int], sq: IntLike, sk: IntLike) -> IntLike:
        """Number of K tiles that the Q tile visits."""
        ranges = self.tile_ranges(q_block, tile, sq, sk)
        return ranges.end - ranges.begin

    def get_masked_trip_count(self, q_block: IntLike, tile: tuple[int, int], sq: IntLike, sk: IntLike) -> IntLike:
        """Number of K tiles visited in which some element may be masked."""
        ranges = self.tile_ranges(q_block, tile, sq, sk)
        return ranges.full_begin - ranges.begin + ranges.end - ranges.full_end

    def get_unmasked_trip_count(self, q_block: IntLike, tile: tuple[int, int], sq: IntLike, sk: IntLike) -> IntLike:
        """Number of K tiles visited in which every element is visible."""
        ranges = self.tile_ranges(q_block, tile, sq, sk)
        return ranges.full_end - ranges.full_begin


class Score(AttentionFusion):
    """A fusion that changes scores: it gets and returns logits, S * softmax_scale, before the mask.

    is_finite: whether finite scores stay finite. Kernels then take a part of the exponentials by polynomial, which
    would turn -inf into a small number.
    """

    is_finite: ClassVar[bool] = False

    def score(self, score: Any, coords: Coords) -> Any:
        """The new logit of query coords.q and key coords.k.

        Arithmetic that runs on numpy arrays and on the DSL's traced numbers alike; see floatmath for functions. Where
        k >= sk the result does not matter, but tensors must not be read beyond their ends.
        """
        raise NotImplementedError(f"{type(self).__qualname__}.score")

    def apply_score(self, scores: Any, coords: Coords) -> None:
        """Changes registers `scores`, a row of logits of keys coords.k + i, in a kernel. By default one by one."""
        from cutlass import cute

        for idx in range(cute.size(scores)):
            scores[idx] = self.score(scores[idx], coords._replace(k=coords.k + idx))

    def reference(self, scores: npt.NDArray[np.float64], coords: Coords) -> npt.NDArray[np.float64]:
        result: npt.NDArray[np.float64] = self.score(scores, coords)
        return result

    @property
    def scores(self) -> tuple[Score, ...]:
        return (self,)


class Mask(AttentionFusion):
    """A fusion that only sets scores to -inf. Without a Score it runs on raw S = Q K^T, before softmax_scale."""

    def visible(self, coords: Coords) -> Any:
        """Whether query coords.q sees key coords.k: a truth value a element. Must be false where k >= sk."""
        raise NotImplementedError(f"{type(self).__qualname__}.visible")

    def reference(self, scores: npt.NDArray[np.float64], coords: Coords) -> npt.NDArray[np.float64]:
        return np.where(self.visible(coords), scores, -np.inf)

    def tile_ranges(self, q_block: IntLike, tile: tuple[int, int], sq: IntLike, sk: IntLike) -> TileRanges:
        """This default knows nothing of the mask: it visits all of K, every tile masked."""
        return TileRanges(0, 0, 0, ceil_div(sk, tile[1]))

    @property
    def mask(self) -> Mask:
        return self


class IntervalMask(Mask):
    """A mask that shows each query one interval of keys, which kernels turn into bit masks."""

    def visible_interval(self, q: IntLike, sq: IntLike, sk: IntLike) -> tuple[IntLike, IntLike]:
        """(k_begin, k_end): query q sees the keys k_begin <= k < k_end. k_end <= sk; empty where k_end <= k_begin."""
        raise NotImplementedError(f"{type(self).__qualname__}.visible_interval")

    def visible(self, coords: Coords) -> Any:
        k_begin, k_end = self.visible_interval(coords.q, coords.sq, coords.sk)
        return (coords.k >= k_begin) & (coords.k < k_end)


class BandMask(IntervalMask):
    """An interval mask whose intervals never move back: neither bound is less for a later query.

    So the first and the last row of a block tell which tiles it visits.
    """

    def tile_ranges(self, q_block: IntLike, tile: tuple[int, int], sq: IntLike, sk: IntLike) -> TileRanges:
        tile_m, tile_n = tile
        q_begin = q_block * tile_m
        q_end = min_(q_begin + tile_m, sq)
        first_begin, first_end = self.visible_interval(q_begin, sq, sk)
        last_begin, last_end = self.visible_interval(q_end - 1, sq, sk)
        full_end, end = floor_div(first_end, tile_n), ceil_div(last_end, tile_n)
        if is_static_zero(first_begin) and is_static_zero(last_begin):
            return TileRanges(0, 0, full_end, end)
        begin = min_(floor_div(first_begin, tile_n), end)
        full_begin = clamp(ceil_div(last_begin, tile_n), begin, end)
        return TileRanges(begin, full_begin, clamp(full_end, full_begin, end), end)


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
