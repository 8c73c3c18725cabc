# SPDX-License-Identifier: Apache-2.0
"""cases.py: what a case of fmha_fwd is, its inputs, and how many multiply-accumulates it must take.

Who calls it: tests/kernels, and `opdeck run` for inputs and expected counts.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from opdeck.core import dtypes
from opdeck.core.fusion import AttentionFusion, Extent, Residual
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
    """By which schedule of a kernel's config, with at most how many CTAs (None: one for each SM)."""

    name: str = "individual"
    max_ctas: int | None = None

    def __str__(self) -> str:
        return "" if self == Scheduling() else f"{self.name}{'' if self.max_ctas is None else f'_{self.max_ctas}_ctas'}"

    def arguments(self, variants: Iterable[Variant]) -> dict[str, Any]:
        """Those of a call. variants: that accept the problem, in priority order."""
        chosen = next(row for row in variants if row.config.get("schedule", "individual") == self.name)
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

    @functools.cached_property
    def sampled_fusion(self) -> AttentionFusion | None:
        """The fusion with values for its leaves."""
        if self.fusion is None or not self.fusion.leaves():
            return self.fusion
        lengths = zip(*self.sequences(), strict=True)
        extent = Extent(len(self.sequences()), self.shape.hq, *(max(rows) for rows in lengths))
        return self.fusion.sample(extent, np.random.default_rng(FUSION_SEED))

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


# LSE is in fp32 whatever the inputs are.
LSE_TOLERANCE = dtypes.Tolerance(max_abs=1e-2, mean_abs=1e-3, relative=np.inf)
FUSION_SEED = 3
MAX_LISTED = 100  # lengths in an id
FAR_ELEMS = (1 << 31) + 4096


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
    tile = (_mma_rows(variant), int(variant.config["tile_n"]))
    mask = variant.fusion or Residual()
    assert isinstance(mask, AttentionFusion)
    num_tiles = 0
    for seq, (sq, sk) in enumerate(case.sequences()):
        for head in range(shape.hq):
            part = mask.at(seq, head)
            num_tiles += sum(part.get_trip_count(q_block, tile, sq, sk) for q_block in range(-(-sq // tile[0])))
    return num_tiles * tile[0] * tile[1] * _mma_dims(variant)


def _mma_rows(variant: Variant) -> int:
    """Query rows of an MMA: of a tile, or of those of two CTAs."""
    return int(variant.config["tile_m"]) * (2 if variant.config.get("schedule") == "pair" else 1)


def _mma_dims(variant: Variant) -> int:
    """Multiply-accumulates of a score: the head dims that its S and O take, S anew for each block of columns of O."""
    d_qk, d_v = int(variant.config["d_qk"]), int(variant.config["d_v"])
    return (d_qk + d_v) * int(variant.config.get("v_blocks", 1))
