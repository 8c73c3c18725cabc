# SPDX-License-Identifier: Apache-2.0
"""cases.py: the case table of fmha_fwd, its inputs, and how many multiply-accumulates a case must take.

Who calls it: tests/kernels, and `opdeck run` for inputs and expected counts.
Sources: the test matrix of CUTLASS example 77 (its fixed-length rows and, as fixed lengths, its one-sequence varlen
rows), faults that users reported in other libraries (empty K, fully masked rows, packed and transposed views).
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from opdeck.core import dtypes
from opdeck.core.fusion import AttentionFusion, Causal, Fusion, Residual
from opdeck.core.variant import Variant, fusion_slug

Array = npt.NDArray[Any]


class Values(enum.Enum):
    """What q, k and v hold."""

    NORMAL = "normal"  # N(0, 1)
    PEAKED = "peaked"  # logits of standard deviation 3
    KEY_MEANS = "key_means"  # v has a mean a key: a weight on the wrong key shows
    STRUCTURED = "structured"  # one-hot q and k, v tells its key, head and column: a swapped index shows


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
    """b sequences of sq queries and sk keys; hq query heads share hk key heads of dim d."""

    b: int
    hq: int
    hk: int
    sq: int
    sk: int
    d: int

    def __str__(self) -> str:
        return f"b{self.b}_h{self.hq}_hk{self.hk}_q{self.sq}_k{self.sk}_d{self.d}"


@dataclass(frozen=True)
class Case:
    """One row: what is computed, on which values, in which memory."""

    shape: Shape
    fusion: Fusion | None = None
    dtype: str = "bf16"
    values: Values = Values.NORMAL
    view: View = View.COMPACT

    @property
    def id(self) -> str:
        return f"{self.dtype}-{self.shape}-{fusion_slug(self.fusion)}-{self.values.value}-{self.view.value}"


@dataclass(frozen=True)
class Inputs:
    """Arrays of a case, and views for the outputs, which are filled with NaN."""

    q: Array
    k: Array
    v: Array
    o: Array
    lse: Array


DTYPES = ("bf16", "fp16")
FAR_ELEMS = (1 << 31) + 4096

BOTTOM_RIGHT, TOP_LEFT = Causal(), Causal(align="top_left")
MASKS: tuple[Fusion | None, ...] = (None, BOTTOM_RIGHT, TOP_LEFT)

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


def make_inputs(case: Case, seed: int) -> Inputs:
    """The arrays of a case."""
    shape, element = case.shape, dtypes.dtype(case.dtype).numpy
    q, k, v = (array.astype(element) for array in _values(case, np.random.default_rng(seed)))
    q, k, v = _packed(q, k, v) if case.view is View.PACKED_QKV else (_placed(array, case.view) for array in (q, k, v))
    o = _placed(np.full((shape.b, shape.sq, shape.hq, shape.d), np.nan).astype(element), case.view)
    return Inputs(q, k, v, o, np.full((shape.b, shape.hq, shape.sq), np.nan, np.float32))


def _values(case: Case, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    shape = case.shape
    q = rng.standard_normal((shape.b, shape.sq, shape.hq, shape.d))
    k, v = rng.standard_normal((2, shape.b, shape.sk, shape.hk, shape.d))
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
        head = np.arange(shape.hk)[:, None]
        v = np.broadcast_to((key[:, :, None] % 31 - 2.0 * head + column / 8.0) / 64.0, v.shape)
    return q, k, v


def _packed(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    qkv = np.concatenate([q, k, v], axis=2)
    num_q_heads, num_k_heads = q.shape[2], k.shape[2]
    first_v = num_q_heads + num_k_heads
    return qkv[:, :, :num_q_heads], qkv[:, :, num_q_heads:first_v], qkv[:, :, first_v:]


def _placed(array: Array, view: View) -> Array:
    """The same values in memory laid out as the view says."""
    placed: Array
    if view is View.PADDED:
        b, s, h, d = array.shape
        buffer = np.full((b + 1, s + 3, h + 1, d + 16), np.nan).astype(array.dtype)
        placed = buffer[1:, 2 : s + 2, 1:, 8 : d + 8]
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


def expected_macs(shape: Shape, variant: Variant) -> int:
    """Multiply-accumulates of the tiles that a compiled variant visits: S = Q K^T and O = P V, whole tiles each.

    The tiles of a fusion with leaves depend on their values: then give the variant with the call's fusion.
    """
    tile = (int(variant.config["tile_m"]), int(variant.config["tile_n"]))
    mask = variant.fusion or Residual()
    assert isinstance(mask, AttentionFusion)
    num_q_blocks = -(-shape.sq // tile[0])
    num_tiles: int = sum(mask.get_trip_count(q_block, tile, shape.sq, shape.sk) for q_block in range(num_q_blocks))
    return shape.b * shape.hq * num_tiles * tile[0] * tile[1] * 2 * shape.d
