# SPDX-License-Identifier: Apache-2.0
"""cases.py: the case table of fmha_fwd, its inputs, and how many multiply-accumulates a case must take.

Who calls it: tests/kernels, and `opdeck run` for inputs and expected counts.
Sources: the test matrix of CUTLASS example 77 (its one-sequence varlen rows with fixed lengths too), faults that users
reported in other libraries (empty K, fully masked rows, packed and transposed views, NaN in unused rows).
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from opdeck.core import dtypes
from opdeck.core.fusion import AttentionFusion, Causal, Residual
from opdeck.core.variant import Variant, fusion_slug
from opdeck.plugins.fmha_fwd import reference, spec
from opdeck.plugins.fmha_fwd.variants import SCALES

Array = npt.NDArray[Any]


class Values(enum.Enum):
    """What q, k and v hold."""

    NORMAL = "normal"  # N(0, 1)
    PEAKED = "peaked"  # logits of standard deviation 3
    KEY_MEANS = "key_means"  # v has a mean a key: a weight on the wrong key shows
    STRUCTURED = "structured"  # one-hot q and k, v tells its key, head and column: a swapped index shows


class Scaled(enum.Enum):
    """Which scales are given besides softmax_scale."""

    NOT = "not"
    BY_NUMBERS = "by_numbers"
    BY_HEAD = "by_head"  # arrays (N, Hk)


class View(enum.Enum):
    """How the tensors lie in memory."""

    COMPACT = "compact"
    PACKED_QKV = "packed_qkv"  # slices of one (B, S, Hq + 2 Hk, D) tensor
    PADDED = "padded"  # each tensor in the middle of a larger one
    SEQUENCE_FIRST = "sequence_first"  # (S, B, H, D) in memory
    HEAD_FIRST = "head_first"  # (B, H, S, D) in memory
    FAR = "far"  # sequences more than 2^31 elements apart


@dataclass(frozen=True)
class Shape:
    """b sequences of sq queries and sk keys; hq query heads share hk key heads of dim d, values of dim dv (None: d)."""

    b: int
    hq: int
    hk: int
    sq: int
    sk: int
    d: int
    dv: int | None = None

    @property
    def d_v(self) -> int:
        return self.d if self.dv is None else self.dv

    def __str__(self) -> str:
        dims = f"d{self.d}" if self.dv is None else f"d{self.d}x{self.dv}"
        return f"b{self.b}_h{self.hq}_hk{self.hk}_q{self.sq}_k{self.sk}_{dims}"


def _list_text(rows: tuple[int, ...]) -> str:
    """All of them where they are few; else the first and how many."""
    return ".".join(map(str, rows)) if len(rows) <= MAX_LISTED else f"{rows[0]}..of{len(rows)}"


@dataclass(frozen=True)
class Lengths:
    """Rows of each sequence: of packed ones (q and k; None: the batch's), and how many of them are used (None: all).
    page_rows: of the pages in which the used rows of k and v lie; None: in none."""

    q: tuple[int, ...] | None = None
    k: tuple[int, ...] | None = None
    used_q: tuple[int, ...] | None = None
    used_k: tuple[int, ...] | None = None
    page_rows: int | None = None

    def __str__(self) -> str:
        rows = {"q": self.q, "k": self.k, "used_q": self.used_q, "used_k": self.used_k}
        words = [f"{name}{_list_text(lengths)}" for name, lengths in rows.items() if lengths is not None]
        return "_".join(words if self.page_rows is None else [*words, f"pages{self.page_rows}"])

    def arrays(self) -> dict[str, Array]:
        """The arguments cu_seqlens_q, ... that say so; but for the block_table, which in_pages makes."""
        packed, used = {"q": self.q, "k": self.k}, {"q": self.used_q, "k": self.used_k}
        offsets = {f"cu_seqlens_{name}": np.cumsum([0, *rows]) for name, rows in packed.items() if rows is not None}
        counts = {f"seqused_{name}": np.array(rows) for name, rows in used.items() if rows is not None}
        return {name: array.astype(np.int32) for name, array in (offsets | counts).items()}


@dataclass(frozen=True)
class Scheduling:
    """By which schedule of a kernel's config, with at most how many CTAs (None: one for each SM). Unless it says
    "individual", kernels of that schedule alone are taken; else the one that is chosen."""

    name: str = "individual"
    max_ctas: int | None = None

    def __str__(self) -> str:
        return "" if self == Scheduling() else f"{self.name}{'' if self.max_ctas is None else f'_{self.max_ctas}_ctas'}"

    def arguments(self, variants: Iterable[Variant]) -> dict[str, Any]:
        """Those of a call. variants: that accept the problem, in priority order."""
        if self.name == "individual":
            return {}
        chosen = next(row for row in variants if row.config.get("schedule") == self.name)
        return {"variant": chosen.id, "max_ctas": self.max_ctas}


@dataclass(frozen=True)
class Case:
    """One row: what is computed, on which values, in which memory."""

    shape: Shape
    fusion: AttentionFusion | None = None
    dtype: str = "bf16"
    values: Values = Values.NORMAL
    view: View = View.COMPACT
    lengths: Lengths = Lengths()
    scheduling: Scheduling = Scheduling()
    scaled: Scaled = Scaled.NOT
    out_dtype: str = ""
    """Of O; "": that of a new array."""

    @property
    def id(self) -> str:
        words = [self.dtype, self.shape, fusion_slug(self.fusion), self.values.value, self.view.value, self.lengths]
        words += [self.scheduling, self.out_dtype]
        words.append("" if self.scaled is Scaled.NOT else f"scaled_{self.scaled.value}")
        return "-".join(filter(None, map(str, words)))

    @property
    def num_k_entries(self) -> int:
        """Extent of dim 0 of k and v, before they are cut into pages."""
        is_paged = self.lengths.page_rows is not None and self.lengths.used_k is not None
        return len(self.lengths.used_k or ()) if is_paged else self.shape.b

    @property
    def o_dtype(self) -> dtypes.DType:
        """Of O."""
        return dtypes.dtype(self.out_dtype or spec.OUT_DTYPES.get(self.dtype, (self.dtype,))[0])

    @property
    def tolerances(self) -> tuple[dtypes.Tolerance, dtypes.Tolerance]:
        """Of O, whose error is that of its coarsest type, and of LSE."""
        coarsest = min(dtypes.dtype(self.dtype), self.o_dtype, key=lambda row: row.bits)
        assert coarsest.tolerance is not None
        return coarsest.tolerance, LSE_TOLERANCE

    def sequences(self) -> list[tuple[int, int]]:
        """(sq, sk) of each."""
        shape = self.shape
        empty_q, empty_k = np.empty((shape.b, shape.sq, 0)), np.empty((self.num_k_entries, shape.sk, 0))
        rows = reference.sequences(empty_q, empty_k, self.lengths.arrays())
        return [(at.q.stop - at.q.start, at.k.stop - at.k.start) for at in rows]


@dataclass(frozen=True)
class Inputs:
    """Arrays of a case, (B, S, H, D), and views for the outputs, which are filled with NaN."""

    q: Array
    k: Array
    v: Array
    o: Array
    lse: Array
    lengths: dict[str, Array]
    scales: dict[str, Any] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of the call besides, which the oracle must know."""
        return self.lengths | self.scales

    def arguments(self) -> dict[str, Any]:
        """Those of a call that writes into o and lse."""
        arrays = {"q": self.q, "k": self.k, "v": self.v, "out": self.o, "lse": self.lse}
        packed = {"q", "k", "v", "out", "lse"} if "cu_seqlens_q" in self.lengths else set()
        if "block_table" in self.lengths:
            packed -= {"k", "v"}
        return {name: array[0] if name in packed else array for name, array in arrays.items()} | self.options


DTYPES = ("bf16", "fp16")
# LSE is in fp32 whatever the inputs are.
LSE_TOLERANCE = dtypes.Tolerance(max_abs=1e-2, mean_abs=1e-3, relative=np.inf)
MAX_LISTED = 100  # lengths in an id
FAR_ELEMS = (1 << 31) + 4096

BOTTOM_RIGHT, TOP_LEFT = Causal(), Causal(align="top_left")
MASKS: tuple[AttentionFusion | None, ...] = (None, BOTTOM_RIGHT, TOP_LEFT)

# (shape, masks), each for every dtype.
_EXAMPLE_77 = (
    (Shape(1, 4, 4, 512, 512, 128), (None, TOP_LEFT)),
    (Shape(2, 4, 4, 256, 256, 64), (None, TOP_LEFT)),
    (Shape(2, 4, 2, 256, 256, 64), (None, TOP_LEFT)),
    (Shape(1, 1, 1, 1013, 1024, 128), (BOTTOM_RIGHT,)),
    (Shape(1, 4, 4, 128, 128, 128), MASKS),
    (Shape(1, 4, 4, 17, 257, 128), MASKS),
    (Shape(1, 4, 4, 17, 25, 128), MASKS),
    (Shape(1, 2, 2, 1024, 1035, 128), (BOTTOM_RIGHT,)),
    (Shape(1, 8, 4, 128, 128, 64), (TOP_LEFT,)),
    (Shape(1, 8, 1, 256, 512, 128), (None, BOTTOM_RIGHT)),
)
_EDGES = (
    (Shape(1, 1, 1, 1, 1, 128), MASKS),
    (Shape(2, 3, 1, 129, 1, 64), (None, BOTTOM_RIGHT)),
    (Shape(1, 2, 1, 257, 127, 64), MASKS),  # more queries than keys: bottom_right hides whole rows and tiles
    (Shape(1, 1, 1, 400, 140, 128), (BOTTOM_RIGHT,)),
    (Shape(3, 2, 2, 130, 385, 64), (None, TOP_LEFT)),
    (Shape(2, 2, 1, 64, 0, 64), (None, BOTTOM_RIGHT)),
    (Shape(2, 2, 1, 0, 64, 128), (None,)),
    (Shape(0, 2, 1, 16, 16, 64), (None,)),
    (Shape(1, 4, 4, 64, 64, 128), (None,)),
)
_VALUES = tuple(
    (Shape(1, 4, 2, 200, 333, d), values, mask)
    for d, values, mask in itertools.product((64, 128), list(Values)[1:], (None, BOTTOM_RIGHT))
)
_NEAR_VIEWS = (View.PACKED_QKV, View.PADDED, View.SEQUENCE_FIRST, View.HEAD_FIRST)
_VIEWS = tuple(
    (Shape(2, 4, 2, 160, 160, d), view, mask)
    for d, view, mask in itertools.product((64, 128), _NEAR_VIEWS, (None, BOTTOM_RIGHT))
)


def example_77() -> Iterator[Case]:
    """The rows of example 77, for every dtype."""
    for dtype, (shape, masks) in itertools.product(DTYPES, _EXAMPLE_77):
        yield from (Case(shape, mask, dtype) for mask in masks)


def cases() -> Iterator[Case]:
    """Every row, for every dtype."""
    yield from example_77()
    for dtype in DTYPES:
        for shape, masks in _EDGES:
            yield from (Case(shape, mask, dtype) for mask in masks)
        yield from (Case(shape, mask, dtype, values=values) for shape, values, mask in _VALUES)
        yield from (Case(shape, mask, dtype, view=view) for shape, view, mask in _VIEWS)
    yield Case(Shape(2, 2, 1, 130, 140, 64), BOTTOM_RIGHT, view=View.FAR)


def _packed(
    hq: int, hk: int, d: int, q: tuple[int, ...], k: tuple[int, ...], spare_rows: int = 0, **used: Any
) -> tuple[Shape, Lengths]:
    """Sequences of q and k rows; behind the last, the tensors have spare rows that no sequence has."""
    return Shape(1, hq, hk, sum(q) + spare_rows, sum(k) + spare_rows, d), Lengths(q, k, **used)


# Rows varlen 00..14 of example 77, for both of its masks.
_EXAMPLE_77_VARLEN = (
    _packed(8, 4, 128, (128,), (128,)),
    _packed(4, 4, 64, (128,), (128,)),
    _packed(4, 2, 128, (128,), (128,)),
    _packed(8, 8, 128, (256, 256), (512, 512)),
    _packed(8, 4, 128, (256, 256), (512, 512)),
    _packed(8, 1, 128, (256, 256), (512, 512)),
    _packed(8, 2, 128, (256, 256, 256, 256), (256, 768, 512, 512)),
    _packed(8, 2, 128, (256, 256, 256, 256), (256, 0, 1280, 512)),
    _packed(8, 2, 128, (256, 0, 512, 256), (256, 256, 1024, 512)),
    _packed(16, 16, 64, (100, 300), (100, 300)),
    _packed(4, 4, 64, (3, 2), (2, 5)),
    _packed(4, 2, 64, (17, 10), (13, 10)),
    _packed(4, 4, 64, (177, 845), (257, 766)),
    _packed(4, 2, 64, (177, 366, 479), (257, 0, 766)),
    _packed(4, 4, 64, (1,), (1,)),
)
# Rows 15..22.
_EXAMPLE_77_ONE_SEQUENCE = (
    *((TOP_LEFT, sq, sk) for sq, sk in ((128, 128), (17, 257), (17, 25))),
    *((BOTTOM_RIGHT, sq, sk) for sq, sk in ((128, 128), (17, 257), (17, 25), (1013, 1024), (1024, 1035))),
)
_MANY = tuple(3 * i % 7 for i in range(75))  # two steps of the search for a sequence; every 7th is empty
_MOSTLY_EMPTY = tuple(300 * (i in (0, 700, 701, 1099)) for i in range(1100))  # three steps
_LONG = tuple(np.diff((0, 1274, 2568, 3915, 5194, 6498, 7839, 8192)).tolist())
_LENGTHS = (
    (*_packed(2, 1, 64, (130, 0, 300, 1), (257, 70, 0, 129), spare_rows=9), MASKS),
    (*_packed(1, 1, 64, _MANY, _MANY[::-1]), (None, TOP_LEFT)),
    (*_packed(1, 1, 64, _MOSTLY_EMPTY, _MOSTLY_EMPTY), (BOTTOM_RIGHT,)),
    (*_packed(1, 1, 64, _LONG, _LONG), (BOTTOM_RIGHT,)),
    (*_packed(1, 1, 64, (1, 1, 1), (76, 34, 146)), (BOTTOM_RIGHT,)),
    (*_packed(1, 1, 64, (76, 34, 146), (1, 1, 1)), (BOTTOM_RIGHT,)),  # most rows see no key
    (*_packed(2, 2, 128, (), (), spare_rows=20), (None,)),
    (*_packed(2, 1, 128, (300, 140), (260, 390), used_q=(257, 0), used_k=(131, 390)), MASKS),
    (*_packed(2, 1, 64, (128, 256), (128, 256), used_q=(-1, 999), used_k=(999, 130)), (None,)),  # clamped
    (Shape(4, 8, 8, 1, 128, 64), Lengths(used_k=(32, 64, 96, 48)), (None, BOTTOM_RIGHT)),
    (Shape(2, 4, 2, 3, 107, 128), Lengths(used_k=(1, 3)), (None,)),
    (Shape(3, 2, 1, 300, 200, 64), Lengths(used_q=(300, 0, 129), used_k=(0, 200, 129)), MASKS),
)


def example_77_varlen() -> Iterator[Case]:
    """Rows varlen 00..22 of example 77."""
    for shape, lengths in _EXAMPLE_77_VARLEN:
        yield from (Case(shape, mask, lengths=lengths) for mask in (None, TOP_LEFT))
    for mask, sq, sk in _EXAMPLE_77_ONE_SEQUENCE:
        shape, lengths = _packed(4, 4, 128, (sq,), (sk,))
        yield Case(shape, mask, lengths=lengths)


def varlen_cases() -> Iterator[Case]:
    """Rows whose sequences have lengths of their own."""
    yield from example_77_varlen()
    for (shape, lengths, masks), dtype in itertools.product(_LENGTHS, DTYPES):
        yield from (Case(shape, mask, dtype, lengths=lengths) for mask in masks)
    shape, lengths = _packed(4, 2, 64, (100, 61, 200), (100, 61, 200))
    for view in _NEAR_VIEWS:
        yield Case(shape, BOTTOM_RIGHT, view=view, lengths=lengths)


MLA_DIMS = (192, 128)
FP8_VALUES = (Values.NORMAL, Values.KEY_MEANS, Values.STRUCTURED)


def head_dim_cases() -> Iterator[Case]:
    """Head dims that not every arch has."""
    for (d, d_v), dtype, mask in itertools.product(((32, None), (96, None), MLA_DIMS), DTYPES, (None, BOTTOM_RIGHT)):
        yield Case(Shape(2, 4, 2, 200, 333, d, d_v), mask, dtype, values=Values.KEY_MEANS)
        shape, lengths = _packed(2, 1, d, (130, 0, 300), (257, 70, 129))
        yield Case(replace(shape, dv=d_v), mask, dtype, values=Values.PEAKED, lengths=lengths)
    yield from (Case(Shape(1, 2, 1, 257, 140, *MLA_DIMS), mask, values=Values.STRUCTURED) for mask in MASKS)
    for lengths in (Lengths(), Lengths(used_k=(300, 77), page_rows=128)):
        yield Case(Shape(2, 4, 2, 200, 384, 256), BOTTOM_RIGHT, values=Values.KEY_MEANS, lengths=lengths)
    shape, lengths = _packed(2, 1, 232, (130, 0, 300), (257, 70, 129))
    yield Case(shape, BOTTOM_RIGHT, values=Values.STRUCTURED, view=View.PADDED, lengths=lengths)
    # Smaller ones than those of kernels: NaN lies behind the rows in memory.
    shape, lengths = _packed(2, 1, 40, (130, 0, 300), (257, 70, 129))
    yield Case(replace(shape, dv=56), BOTTOM_RIGHT, values=Values.STRUCTURED, view=View.PADDED, lengths=lengths)
    yield Case(Shape(1, 2, 1, 257, 140, 104, 72), None, values=Values.KEY_MEANS, view=View.PADDED)


def fp8_cases() -> Iterator[Case]:
    """Elements of 8 bits, scales, and outputs of each type that they may have."""
    ragged = Shape(2, 2, 1, 257, 300, 128)
    packed, lengths = _packed(2, 1, 64, (130, 0, 300, 1), (257, 70, 0, 129), spare_rows=9)
    yield from (Case(ragged, mask, "fp8_e4m3", values=values) for mask in MASKS for values in FP8_VALUES)
    yield Case(ragged, BOTTOM_RIGHT, "fp8_e4m3", view=View.PADDED, scaled=Scaled.BY_HEAD)
    yield from (Case(packed, mask, "fp8_e4m3", Values.PEAKED, lengths=lengths) for mask in (None, BOTTOM_RIGHT))
    for scheduling in (Scheduling(), Scheduling("persistent", 2)):
        yield Case(packed, None, "fp8_e4m3", lengths=lengths, scheduling=scheduling, scaled=Scaled.BY_HEAD)
    yield Case(ragged, None, "fp8_e4m3", Values.PEAKED, scaled=Scaled.BY_NUMBERS, out_dtype="fp8_e4m3")
    yield Case(replace(ragged, d=32), BOTTOM_RIGHT, "fp8_e5m2", Values.KEY_MEANS, out_dtype="fp16")
    yield Case(replace(ragged, d=MLA_DIMS[0], dv=MLA_DIMS[1]), None, "fp8_e4m3", Values.KEY_MEANS)
    # Other types take the scales too.
    yield Case(ragged, BOTTOM_RIGHT, scaled=Scaled.BY_HEAD)
    yield Case(packed, None, "fp16", lengths=lengths, scaled=Scaled.BY_NUMBERS)


def full_cases() -> Iterator[Case]:
    """The rows of example 77's forward program in fp8, and varlen 00..22 as its MLA forward program has them, with head
    dims of 256, and by the schedules in which CTAs take several blocks."""
    yield from (replace(case, dtype="fp8_e4m3") for case in example_77() if case.dtype == "bf16")
    yield from (replace(case, dtype="fp8_e4m3") for case in example_77_varlen())
    for case, dtype, (d, d_v) in itertools.product(
        example_77_varlen(), (*DTYPES, "fp8_e4m3"), (MLA_DIMS, (256, 256), (256, 128))
    ):
        yield replace(case, dtype=dtype, shape=replace(case.shape, d=d, dv=d_v))
    for case, scheduling in itertools.product(
        example_77_varlen(), (Scheduling("persistent", 3), Scheduling("dynamic"))
    ):
        yield replace(case, scheduling=scheduling)


# Few CTAs, so that each has several blocks: some without rows, some without keys, some whose last V tile is cut.
_PERSISTENT = (
    (Shape(2, 2, 1, 300, 300, 64), Lengths(), (None, BOTTOM_RIGHT), 1),
    (Shape(1, 2, 2, 140, 520, 128), Lengths(), (None,), 1),
    (*_packed(2, 1, 64, (130, 0, 300, 1), (257, 70, 0, 129), spare_rows=9), (None, BOTTOM_RIGHT), 2),
    (Shape(3, 2, 1, 300, 200, 64), Lengths(used_q=(300, 0, 129), used_k=(0, 200, 129)), (BOTTOM_RIGHT,), 3),
    (Shape(1, 1, 1, 40, 40, 64), Lengths(), (None,), None),  # fewer blocks than SMs
)


_PAGED = (
    (Shape(3, 4, 2, 140, 512, 64), Lengths(used_k=(300, 0, 512), page_rows=128), MASKS),
    (Shape(2, 8, 2, 1, 512, 128), Lengths(used_k=(107, 385), page_rows=256), (None,)),
    (Shape(1, 2, 1, 330, 384, 64), Lengths(q=(130, 200, 0), used_k=(260, 0, 70), page_rows=128), (BOTTOM_RIGHT,)),
)


def paged_cases() -> Iterator[Case]:
    """Rows whose keys lie in pages, under each schedule."""
    for shape, lengths, masks in _PAGED:
        yield from (Case(shape, mask, lengths=lengths) for mask in masks)
    shape, lengths, _ = _PAGED[0]
    yield Case(shape, BOTTOM_RIGHT, lengths=lengths, scheduling=Scheduling("persistent", 2))


def persistent_cases() -> Iterator[Case]:
    """Rows whose CTAs take several blocks in turn."""
    for shape, lengths, masks, max_ctas in _PERSISTENT:
        scheduling = Scheduling("persistent", max_ctas)
        yield from (Case(shape, mask, lengths=lengths, scheduling=scheduling) for mask in masks)
    for shape, lengths, masks, _ in _PERSISTENT[2:4]:
        yield from (Case(shape, mask, lengths=lengths, scheduling=Scheduling("dynamic")) for mask in masks)


def make_inputs(case: Case, seed: int) -> Inputs:
    """The arrays of a case."""
    shape, element = case.shape, dtypes.dtype(case.dtype).numpy
    rng = np.random.default_rng(seed)
    q, k, v = (reference.saturated(array, element) for array in _values(case, rng))
    q, k, v = _unused_as_nan(case, q, k, v)
    q, k, v = (
        _packed_qkv(q, k, v) if case.view is View.PACKED_QKV else (_placed(array, case.view) for array in (q, k, v))
    )
    o = _placed(np.full((shape.b, shape.sq, shape.hq, shape.d_v), np.nan).astype(case.o_dtype.numpy), case.view)
    lse = np.full((shape.b, shape.hq, shape.sq), np.nan, np.float32)
    k, v, tables = in_pages(k, v, case.lengths, seed)
    return Inputs(q, k, v, o, lse, case.lengths.arrays() | tables, _scales(case, rng))


def _scales(case: Case, rng: np.random.Generator) -> dict[str, Any]:
    """Those of a case, not far from 1."""
    if case.scaled is Scaled.NOT:
        return {}
    shape = (len(case.sequences()), case.shape.hk)
    by_head = {name: rng.uniform(0.5, 1.5, shape).astype(np.float32) for name in SCALES}
    return {"out_scale": 0.75} | (
        by_head if case.scaled is Scaled.BY_HEAD else {name: float(array.flat[0]) for name, array in by_head.items()}
    )


def in_pages(k: Array, v: Array, lengths: Lengths, seed: int) -> tuple[Array, Array, dict[str, Array]]:
    """k and v, (N, Sk, H, D), cut into pages in an order that the seed says, and the block_table; as they are where
    lengths say so. Pages that are not used hold NaN, and entries of the table that are not used lead nowhere."""
    page_rows = lengths.page_rows
    if page_rows is None or lengths.used_k is None:
        return k, v, {}
    num_needed = [-(-rows // page_rows) for rows in lengths.used_k]
    page_idxs = iter(np.random.default_rng(seed).permutation(sum(num_needed) + 2))
    pages = [np.full((sum(num_needed) + 2, page_rows, *x.shape[2:]), np.nan).astype(x.dtype) for x in (k, v)]
    table = np.full((len(k), k.shape[1] // page_rows), -1, np.int32)
    table[:, 1::2] = np.iinfo(np.int32).max
    for seq, num_pages in enumerate(num_needed):
        for page in range(num_pages):
            table[seq, page] = next(page_idxs)
            rows = slice(page * page_rows, (page + 1) * page_rows)
            for target, source in zip(pages, (k, v), strict=True):
                target[table[seq, page]] = source[seq, rows]
    return pages[0], pages[1], {"block_table": table}


def _unused_as_nan(case: Case, *tensors: Array) -> list[Array]:
    """q, k and v with NaN in the rows that are in no sequence."""
    sequences = reference.sequences(tensors[0], tensors[1], case.lengths.arrays())
    filled = []
    for name, tensor in zip("qkv", tensors, strict=True):
        is_used = np.zeros(tensor.shape[:2], bool)
        for at in sequences:
            if name == "q":
                is_used[at.batch, at.q] = True
            else:
                is_used[at.batch_k, at.k] = True
        filled.append(np.where(is_used[:, :, None, None], tensor, np.array(np.nan, tensor.dtype)))
    return filled


def _values(case: Case, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    shape = case.shape
    q = rng.standard_normal((shape.b, shape.sq, shape.hq, shape.d))
    k, v = (rng.standard_normal((case.num_k_entries, shape.sk, shape.hk, d)) for d in (shape.d, shape.d_v))
    if case.values is Values.PEAKED:
        q *= 3.0
    elif case.values is Values.KEY_MEANS:
        v = 0.25 * v + rng.standard_normal((1, shape.sk, 1, 1))
    elif case.values is Values.STRUCTURED:
        # Query i looks for keys j with j = 5 i + head (mod d); a key that is not there leaves equal weights.
        column = np.arange(shape.d)
        query, key = np.arange(shape.sq)[:, None], np.arange(shape.sk)[:, None]
        wanted = (5 * query + np.arange(shape.hq)) % shape.d
        q = np.broadcast_to(shape.d * (column == wanted[:, :, None]), q.shape).astype(np.float64)
        k = np.broadcast_to((column == key % shape.d)[:, None, :], k.shape).astype(np.float64)
        head, column = np.arange(shape.hk)[:, None], np.arange(shape.d_v)
        v = np.broadcast_to((key[:, :, None] % 31 - 2.0 * head + column / 8.0) / 64.0, v.shape)
    return q, k, v


def _packed_qkv(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    qkv = np.concatenate([q, k, v], axis=2)
    num_q_heads, num_k_heads = q.shape[2], k.shape[2]
    first_v = num_q_heads + num_k_heads
    return qkv[:, :, :num_q_heads], qkv[:, :, num_q_heads:first_v], qkv[:, :, first_v:]


def _placed(array: Array, view: View) -> Array:
    """The same values in memory laid out as the view says."""
    placed: Array
    if view is View.PADDED:
        b, s, h, d = array.shape
        buffer = np.full((b + 1, s + 3, h + 1, d + 32), np.nan).astype(array.dtype)
        placed = buffer[1:, 2 : s + 2, 1:, 16 : d + 16]
        placed[...] = array
        return placed
    if view is View.FAR:
        return _far(array)
    order = {View.SEQUENCE_FIRST: (1, 0, 2, 3), View.HEAD_FIRST: (0, 2, 1, 3)}.get(view, (0, 1, 2, 3))
    placed = np.ascontiguousarray(array.transpose(order)).transpose(order)
    return placed


def _far(array: Array) -> Array:
    """The same values in sequences FAR_ELEMS apart. The memory between them is reserved and never touched."""
    array = np.ascontiguousarray(array)
    buffer = np.empty((len(array) - 1) * FAR_ELEMS + array[0].size, array.dtype)
    strides = (FAR_ELEMS * array.itemsize, *array[0].strides)
    placed: Array = np.lib.stride_tricks.as_strided(buffer, array.shape, strides)
    placed[...] = array
    return placed


def expected_macs(case: Case, variant: Variant) -> int:
    """Multiply-accumulates of the tiles that a compiled variant visits: S = Q K^T and O = P V, whole tiles each.

    The tiles of a fusion with leaves depend on their values: then give the variant with the call's fusion.
    """
    shape = case.shape
    tile = (int(variant.config["tile_m"]), int(variant.config["tile_n"]))
    mask = variant.fusion or Residual()
    assert isinstance(mask, AttentionFusion)
    num_tiles = 0
    for seq, (sq, sk) in enumerate(case.sequences()):
        for head in range(shape.hq):
            part = mask.at(seq, head)
            num_tiles += sum(part.get_trip_count(q_block, tile, sq, sk) for q_block in range(-(-sq // tile[0])))
    return num_tiles * tile[0] * tile[1] * _mma_dims(variant)


def _mma_dims(variant: Variant) -> int:
    """Multiply-accumulates of a score: the head dims that its S and O take, S anew for each block of columns of O."""
    d_qk, d_v = int(variant.config["d_qk"]), int(variant.config["d_v"])
    return (d_qk + d_v) * int(variant.config.get("v_blocks", 1))
