# SPDX-License-Identifier: Apache-2.0
"""blocks.py: masks that leave out any tiles of S, not only those before a first and after a last one.

Who calls it: users, around a mask that knows no tile ranges: block_sparse(mask_mod(fn), extent).
How: the K tiles that a pair of Q tiles (one CTA's) needs are listed, and tile ranges count positions in that list. In
it those that only the first Q tile sees come first, then those of both, then the second one's, so that either has one
range; within, tiles that are seen whole lie together, and are not masked. Lists are of tiles of 128 x 128 of one
sequence, from its first query and key. Kernels with K tiles of 64 take a listed one as two.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from opdeck.core import dtypes
from opdeck.core.errors import ArgumentError, ArgumentTypeError, OpdeckError
from opdeck.core.fusion.attention import AttentionFusion, Coords, Extent, Mask, TileRanges
from opdeck.core.fusion.base import Int32Leaf, LeafKind, TensorLeaf, tensor_leaf
from opdeck.core.fusion.intmath import IntLike, at_most, broadcast_index, ceil_div, clamp, floor_div, max_
from opdeck.core.scalars import int32_number

TILE = 128
TILES_PER_LIST = 2
"""Q tiles that share a list."""
TWO_LISTS = ("fusion", "two block-sparse masks", "one, of the masks joined: block_sparse(a & b, extent)")
"""An ArgumentError's argument, got and want."""


@dataclass(frozen=True)
class BlockSparse(Mask):
    """The mask `inner`, of which tiles that no query sees are not visited. block_sparse makes it.

    tiles: (B or 1, Hq or 1, pairs of Q tiles, K tiles) int32, the list of each pair. ranges: (B or 1, Hq or 1, Q tiles,
    4) int32, TileRanges in positions of the list. Those of a shorter sequence are padded with anything. lengths: (B or
    1, 2) int32, the queries and keys that a sequence's lists are of; with another number of keys no tile goes unmasked.
    """

    inner: Mask
    tiles: TensorLeaf = tensor_leaf(
        dims=("batch|1", "num_heads|1", "q_tile_pairs", "k_tiles"), dtype="int32", align_bytes=4
    )
    ranges: TensorLeaf = tensor_leaf(dims=("batch|1", "num_heads|1", "q_tiles", 4), dtype="int32", align_bytes=4)
    lengths: TensorLeaf = tensor_leaf(dims=("batch|1", 2), dtype="int32", align_bytes=4)

    name: ClassVar[str] = "block_sparse"
    extent_names: ClassVar[tuple[str, ...] | None] = ("batch", "num_heads", "q_tiles", "q_tile_pairs", "k_tiles")

    def __post_init__(self) -> None:
        if isinstance(self.inner, BlockSparse):
            raise ArgumentError(*TWO_LISTS)

    @functools.cached_property
    def slug(self) -> str:
        return f"{self.name}_{self.inner.slug}"

    def at(self, batch: IntLike, head: IntLike) -> AttentionFusion:
        at = [broadcast_index(idx, extent) for idx, extent in zip((batch, head), self.tiles.shape, strict=False)]
        num_keys = self.lengths[broadcast_index(batch, self.lengths.shape[0]), 1]
        return _BlocksOfHead(self.inner.at(batch, head).mask, self.tiles, self.ranges, num_keys, *at)

    def visible(self, coords: Coords) -> Any:
        return self.inner.visible(coords)

    def check_lengths(self, sq: int, sk: int) -> None:
        if not isinstance(self.lengths, np.ndarray):
            return
        for made_for in self.lengths.tolist():
            if made_for != [sq, sk]:
                want = f"one for the call's {sq} and {sk}"
                raise ArgumentError("mask", f"a block_sparse of {made_for[0]} queries and {made_for[1]} keys", want)

    def sample(self, extent: Extent, rng: np.random.Generator) -> BlockSparse:
        return block_sparse(self.inner.sample(extent, rng), extent)

    def intersected(self, other: Mask) -> BlockSparse:
        """Shows what `other` shows besides: the same tiles, all of them masked."""
        from opdeck.core.fusion.compose import intersect

        inner = intersect(self.inner, other)
        if isinstance(self.ranges, LeafKind):
            return self.replace(inner=inner)
        if not isinstance(self.ranges, np.ndarray):
            got = type(self.ranges).__qualname__
            raise ArgumentTypeError("block_sparse.ranges", got, "a numpy array", "masks are joined before a copy")
        return self.replace(inner=inner, ranges=np.take(self.ranges, (0, 3, 3, 3), axis=3))


@dataclass(frozen=True)
class _BlocksOfHead(Mask):
    """BlockSparse for one head of one sequence."""

    inner: Mask
    tiles: TensorLeaf = tensor_leaf(rank=4, dtype="int32")
    ranges: TensorLeaf = tensor_leaf(rank=4, dtype="int32")
    num_keys: Int32Leaf = 0
    batch: Int32Leaf = 0
    head: Int32Leaf = 0

    name: ClassVar[str] = "blocks_of_head"

    def visible(self, coords: Coords) -> Any:
        return self.inner.visible(coords)

    def tile_ranges(self, q_block: IntLike, tile: tuple[int, int], sq: IntLike, sk: IntLike) -> TileRanges:
        parts = self._parts(tile)
        row = broadcast_index(q_block, self.ranges.shape[2])  # of a pair the second may lie past the last query
        begin, full_begin, full_end, end = (self.ranges[self.batch, self.head, row, idx] for idx in range(4))
        # Whatever the tensors hold, a kernel ends, and reads nothing beyond them.
        end = max_(at_most(end, self.tiles.shape[3]), 0) * ((sk > 0) * 1)
        begin = clamp(begin, 0, end)
        full_begin = clamp(full_begin, begin, end)
        full_end = clamp(full_end, full_begin, end)
        is_other = (sk != self.num_keys) * 1
        full_begin = full_begin + (full_end - full_begin) * is_other
        return TileRanges(begin * parts, full_begin * parts, full_end * parts, end * parts)

    def k_tile(self, q_block: IntLike, tile: tuple[int, int], position: IntLike) -> IntLike:
        parts = self._parts(tile)
        row = broadcast_index(floor_div(q_block, TILES_PER_LIST), self.tiles.shape[2])
        listed = self.tiles[self.batch, self.head, row, floor_div(position, parts)]
        return max_(broadcast_index(listed, self.tiles.shape[3]), 0) * parts + (position & (parts - 1))

    def _parts(self, tile: tuple[int, int]) -> int:
        """K tiles of a kernel in a listed one; a power of two."""
        if tuple(tile) not in ((TILE, TILE), (TILE, TILE // 2)):
            raise ArgumentError(f"tile of {self.name}", tuple(tile), f"({TILE}, {TILE}) or ({TILE}, {TILE // 2})")
        return TILE // tile[1]


def block_sparse(mask: Mask, extent: Extent) -> BlockSparse:
    """`mask`, visiting only the tiles in which some query sees a key. Evaluates it for every query and key, in numpy.

    extent: the call's (B, Hq, Sq, Sk); 1 in the place of B or Hq when the mask is the same for all of them. With the
    lengths of each sequence where they are packed, or not all of their rows are used.
    Raises: ArgumentTypeError, ArgumentError.
    """
    if not isinstance(mask, Mask):
        raise ArgumentTypeError(
            "mask", repr(mask), "a Mask", "score functions are joined with the result: score & mask"
        )
    if not isinstance(extent, Extent):
        raise ArgumentTypeError("extent", repr(extent), "an Extent(batch, num_heads, sq, sk)")
    _check_counts(extent)
    lengths = _lengths_of(extent)
    num_tiles = [ceil_div(length, TILE) for length in (extent.sq, extent.sk)]
    kinds = np.zeros((extent.batch, extent.num_heads, *num_tiles), np.uint8)
    for batch, head in np.ndindex(kinds.shape[:2]):
        sq, sk = lengths[batch].tolist()
        part = mask.at(batch, head).mask
        for q_tile in range(ceil_div(sq, TILE)):
            q = np.arange(q_tile * TILE, min(q_tile * TILE + TILE, sq))[:, None]
            k = np.arange(ceil_div(sk, TILE) * TILE)[None, :]
            visible = np.broadcast_to(part.visible(Coords(batch, head, q, k, sq, sk)), (len(q), k.size))
            of_tile = visible.reshape(len(q), -1, TILE)
            kinds[batch, head, q_tile, : of_tile.shape[1]] = of_tile.any(axis=(0, 2)) * 1 + of_tile.all(axis=(0, 2))
    return BlockSparse(mask, *_lists_of(kinds), lengths)


def _check_counts(extent: Extent) -> None:
    for name in ("batch", "num_heads", "sq", "sk"):
        count = int32_number(f"extent.{name}", getattr(extent, name))
        if count < 0:
            raise ArgumentError(f"extent.{name}", count, "at least 0")


def _lengths_of(extent: Extent) -> npt.NDArray[np.int32]:
    longest = (extent.sq, extent.sk)
    lengths = np.asarray(np.full((extent.batch, 2), longest) if extent.lengths is None else extent.lengths)
    if lengths.dtype.kind not in "iu":
        raise ArgumentTypeError("extent.lengths", f"dtype {lengths.dtype}", "ints")
    if lengths.shape != (extent.batch, 2):
        want = f"({extent.batch}, 2): queries and keys of a sequence"
        raise ArgumentError("extent.lengths", f"shape {lengths.shape}", want)
    wrong = (lengths < 0) | (lengths > longest)
    if wrong.any():
        seq = int(wrong.any(axis=1).argmax())
        got, want = f"{tuple(lengths[seq].tolist())} of sequence {seq}", f"at most {extent.sq} and {extent.sk}"
        raise ArgumentError("extent.lengths", got, want)
    return lengths.astype(np.int32)


def _lists_of(kinds: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """The leaves `tiles` and `ranges`. kinds: (B or 1, Hq or 1, Q tiles, K tiles), as opdeck_block_lists has them."""
    from opdeck import abi

    ffi, lib = abi.lib()
    rows, (num_q_tiles, num_k_tiles) = kinds.shape[:2], kinds.shape[2:]
    tiles = np.empty((*rows, ceil_div(num_q_tiles, TILES_PER_LIST), num_k_tiles), np.int32)
    ranges = np.empty((*rows, num_q_tiles, 4), np.int32)
    kept, tensors = [], []
    for array in (kinds, tiles, ranges):
        kept.append(ffi.new("int64_t[]", array.shape))
        element = dtypes.dtype(array.dtype.name)
        tensors.append(ffi.new("opdeck_tensor *", {"data": ffi.cast("void *", array.ctypes.data), "shape": kept[-1]}))
        tensors[-1].device_type, tensors[-1].ndim, tensors[-1].dtype_lanes = lib.OPDECK_DEVICE_CPU, array.ndim, 1
        tensors[-1].dtype_code, tensors[-1].dtype_bits = element.dlpack_code, element.bits
    if lib.opdeck_block_lists(*tensors) != lib.OPDECK_OK:
        raise OpdeckError(ffi.string(lib.opdeck_last_error()).decode())
    return tiles, ranges
