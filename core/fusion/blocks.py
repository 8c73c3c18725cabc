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

from opdeck.core.errors import ArgumentError, ArgumentTypeError
from opdeck.core.fusion.attention import AttentionFusion, Coords, Extent, Mask, TileRanges
from opdeck.core.fusion.base import Int32Leaf, LeafKind, TensorLeaf, tensor_leaf
from opdeck.core.fusion.intmath import IntLike, at_most, broadcast_index, ceil_div, clamp, floor_div, max_

TILE = 128
TILES_PER_LIST = 2
"""Q tiles that share a list."""

_EMPTY, _PARTIAL, _FULL = range(3)


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
    ranges: TensorLeaf = tensor_leaf(dims=("batch|1", "num_heads|1", "q_tiles", "4"), dtype="int32", align_bytes=4)
    lengths: TensorLeaf = tensor_leaf(dims=("batch|1", "2"), dtype="int32", align_bytes=4)

    name: ClassVar[str] = "block_sparse"

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


def block_sparse(mask: Mask, extent: Extent, lengths: npt.ArrayLike | None = None) -> BlockSparse:
    """`mask`, visiting only the tiles in which some query sees a key. Evaluates it for every query and key, in numpy.

    extent: the call's (B, Hq, Sq, Sk); 1 in the place of B or Hq when the mask is the same for all of them.
    lengths: (B, 2) ints, how many queries and keys each sequence has, where they are packed, or not all rows are used;
    Sq and Sk are then at least the longest's. None: Sq and Sk for each.
    Raises: ArgumentTypeError, ArgumentError.
    """
    if not isinstance(mask, Mask):
        raise ArgumentTypeError(
            "mask", repr(mask), "a Mask", "score functions are joined with the result: score & mask"
        )
    if not isinstance(extent, Extent):
        raise ArgumentTypeError("extent", repr(extent), "an Extent(batch, num_heads, sq, sk)")
    longest = (extent.sq, extent.sk)
    rows = _checked_lengths(np.asarray([longest] * extent.batch if lengths is None else lengths), extent)
    kinds = np.zeros((extent.batch, extent.num_heads, *(ceil_div(length, TILE) for length in longest)), np.int32)
    for batch, head in np.ndindex(kinds.shape[:2]):
        sq, sk = rows[batch].tolist()
        part = mask.at(batch, head).mask
        for q_tile in range(ceil_div(sq, TILE)):
            q = np.arange(q_tile * TILE, min(q_tile * TILE + TILE, sq))[:, None]
            k = np.arange(ceil_div(sk, TILE) * TILE)[None, :]
            visible = np.broadcast_to(part.visible(Coords(batch, head, q, k, sq, sk)), (len(q), k.size))
            of_tile = visible.reshape(len(q), -1, TILE)
            kinds[batch, head, q_tile, : of_tile.shape[1]] = of_tile.any(axis=(0, 2)) * 1 + of_tile.all(axis=(0, 2))
    return _from_kinds(mask, kinds, rows)


def _checked_lengths(lengths: npt.NDArray[Any], extent: Extent) -> npt.NDArray[np.int32]:
    if lengths.dtype.kind not in "iu":
        raise ArgumentTypeError("lengths", f"dtype {lengths.dtype}", "ints")
    if lengths.shape != (extent.batch, 2):
        raise ArgumentError("lengths", f"shape {lengths.shape}", f"({extent.batch}, 2): queries and keys of a sequence")
    wrong = (lengths < 0) | (lengths > (extent.sq, extent.sk))
    if wrong.any():
        seq = int(wrong.any(axis=1).argmax())
        want = f"at most the extent's {extent.sq} and {extent.sk}"
        raise ArgumentError("lengths", f"{tuple(lengths[seq].tolist())} of sequence {seq}", want)
    return lengths.astype(np.int32)


def _from_kinds(mask: Mask, kinds: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32]) -> BlockSparse:
    """kinds: (B or 1, Hq or 1, Q tiles, K tiles), 0 for a tile that nobody sees, 1 for a part, 2 for all of it."""
    batch, num_heads, num_q_tiles, num_k_tiles = kinds.shape
    num_pairs = -(-num_q_tiles // TILES_PER_LIST)
    tiles = np.zeros((batch, num_heads, num_pairs, num_k_tiles), np.int32)
    ranges = np.zeros((batch, num_heads, num_q_tiles, 4), np.int32)
    for b, h, pair in np.ndindex(tiles.shape[:3]):
        first = kinds[b, h, TILES_PER_LIST * pair]
        has_second = TILES_PER_LIST * pair + 1 < num_q_tiles
        second = kinds[b, h, TILES_PER_LIST * pair + 1] if has_second else np.zeros_like(first)
        order, of_first, of_second = _list(first, second)
        tiles[b, h, pair, : len(order)] = order
        ranges[b, h, TILES_PER_LIST * pair] = of_first
        if has_second:
            ranges[b, h, TILES_PER_LIST * pair + 1] = of_second
    return BlockSparse(mask, tiles, ranges, lengths)


def _list(first: npt.NDArray[np.int32], second: npt.NDArray[np.int32]) -> tuple[list[int], TileRanges, TileRanges]:
    """The K tiles of a pair of Q tiles, whose kinds are given, and the ranges of either in that list."""
    groups = [  # in the order of the list: what a tile is to the first and to the second
        np.flatnonzero((first == of_first) & (second == of_second))
        for of_first, of_second in (
            *((_PARTIAL, _EMPTY), (_FULL, _EMPTY)),
            *((_PARTIAL, _PARTIAL), (_FULL, _PARTIAL), (_FULL, _FULL), (_PARTIAL, _FULL)),
            *((_EMPTY, _FULL), (_EMPTY, _PARTIAL)),
        )
    ]
    ends = np.cumsum([0, *map(len, groups)]).tolist()
    # The first one's full tiles lie on both sides of group 2: one range when that is empty, else the longer of the two.
    whole = max((ends[1], ends[2]), (ends[3], ends[5]), key=lambda edges: edges[1] - edges[0])
    whole = (ends[1], ends[5]) if ends[2] == ends[3] else whole
    order = [int(tile) for group in groups for tile in group]
    return order, TileRanges(0, *whole, ends[6]), TileRanges(ends[2], ends[4], ends[7], ends[8])
