# SPDX-License-Identifier: Apache-2.0
"""What a CTA has to do for one block of queries: its coordinates, and the K tiles that each of its two query tiles must
visit.

Called by: blocks.py makes one Work a block; every role reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar

from opdeck.core.fusion.intmath import floor_div, max_, min_
from opdeck.plugins.fmha_fwd.sm100.config import NUM_Q_TILES, Config


@dataclass(frozen=True)
class TileRange:
    """K tiles [begin, end) of one query tile; [full_begin, full_end) of them need no mask."""

    begin: Any
    full_begin: Any
    full_end: Any
    end: Any

    @property
    def count(self) -> Any:
        return self.end - self.begin


@dataclass(frozen=True)
class Rows:
    """Where a sequence lies in a tensor: rows [begin, begin + count) of the entry `batch` of dim 0."""

    batch: Any
    begin: Any
    count: Any


@dataclass(frozen=True)
class LaneUses:
    """What a CTA did for one of its query tiles in earlier blocks: blocks, those in which it visited a K tile, and K
    tiles. So often were the stages of the pipeline edges taken that go by query tile."""

    blocks: Any = 0
    visiting: Any = 0
    tiles: Any = 0

    def out(self, tile_idx: Any) -> Any:
        """Uses of the ring "out", which every block takes for each query tile in turn, before tile `tile_idx`."""
        return NUM_Q_TILES * self.blocks + tile_idx

    def after(self, tiles: TileRange) -> LaneUses:
        return LaneUses(self.blocks + 1, self.visiting + (tiles.count > 0) * 1, self.tiles + tiles.count)


CountsT = TypeVar("CountsT", LaneUses, TileRange)


def of_query_tile(tile_idx: Any, first: CountsT, second: CountsT) -> CountsT:
    """`first` or `second`, for query tile 0 or 1."""
    pairs = ((getattr(first, row.name), getattr(second, row.name)) for row in fields(first))
    return type(first)(*(count + (other - count) * tile_idx for count, other in pairs))


@dataclass(frozen=True)
class Lane:
    """A query tile, the K tiles that it visits, and how often its stages were used before."""

    tile_idx: int
    tiles: TileRange
    uses: LaneUses

    def use(self, tile: Any) -> Any:
        """Of a stage that a K tile takes once: how often before K tile `tile`."""
        return self.uses.tiles + tile - self.tiles.begin


@dataclass(frozen=True)
class Uses:
    """The same of both query tiles, the K tiles that either visited, and the V tiles that were cut."""

    first: LaneUses = LaneUses()
    second: LaneUses = LaneUses()
    kv: Any = 0
    cut_v: Any = 0

    def lane(self, tile_idx: Any) -> LaneUses:
        """Those of query tile `tile_idx`."""
        return of_query_tile(tile_idx, self.first, self.second)

    def factor(self, config: Config, lane: Lane, tile: Any) -> Any:
        """Uses of a query tile's stage of "factor" before K tile `tile`, but for a multiple of two. One count for both
        query tiles where they are kept in step, so that the correction's waits for them share their parities."""
        before = self.first if config.keeps_factors_in_step else lane.uses
        return before.tiles + tile - lane.tiles.begin

    def after(self, first: TileRange, second: TileRange, num_cut: Any = 0) -> Uses:
        begin, end = span(first, second)
        kv = self.kv + max_(end - begin, 0)
        return Uses(self.first.after(first), self.second.after(second), kv, self.cut_v + num_cut)


@dataclass(frozen=True)
class Work:
    """Coordinates of a block. `q_block` counts blocks of 2 x 128 query rows of sequence `seq`, or of 2 x 256 where two
    CTAs share MMAs, of which this one is `pair_idx`; `v_block` blocks of columns of V and O; q_rows and k_rows are
    those of the sequence in Q, O and LSE, and in K and V."""

    q_block: Any
    head: Any
    kv_head: Any
    v_block: Any
    seq: Any
    q_rows: Rows
    k_rows: Rows
    num_pair_ctas: int = 1
    pair_idx: Any = 0

    @property
    def sq(self) -> Any:
        return self.q_rows.count

    @property
    def sk(self) -> Any:
        return self.k_rows.count

    def exists(self, config: Config) -> Any:
        """Whether the block has a query row at all."""
        return self.q_block * config.block_m < self.sq

    def cut_tile(self, config: Config, num_k_rows: Any) -> Any:
        """The K tile that ends beyond the sequence, in rows that K and V have; -1 when there is none."""
        if not config.may_cut_v:
            return -1
        tile = floor_div(self.sk, config.tile_n)
        ends_inside = (self.k_rows.begin + self.sk < num_k_rows) * 1
        is_cut = (tile * config.tile_n < self.sk) * ends_inside
        return (tile + 1) * is_cut - 1

    def mma_tile(self, tile_idx: Any) -> Any:
        """Index along Sq, in rows of an MMA, of query tile `tile_idx` (0 or 1) of this block."""
        return self.q_block * NUM_Q_TILES + tile_idx

    def q_tile(self, tile_idx: Any) -> Any:
        """The same of this CTA's part, in rows of a tile."""
        return self.mma_tile(tile_idx) * self.num_pair_ctas + self.pair_idx

    def tile_range(self, fusion: Any, config: Config, tile_idx: Any) -> TileRange:
        """K tiles of query tile `tile_idx`; one whose MMA starts past Sq gets none, in both CTAs of a pair alike."""
        q_tile = self.q_tile(tile_idx)
        exists = (self.mma_tile(tile_idx) * config.mma_m < self.sq) * 1
        bounds = fusion.tile_ranges(q_tile, (config.tile_m, config.tile_n), self.sq, self.sk)
        return TileRange(*(bound * exists for bound in bounds))

    def k_tile(self, fusion: Any, config: Config, position: Any) -> Any:
        """The K tile at a position of the tile ranges, whose order is that of both query tiles."""
        return fusion.k_tile(self.q_tile(0), (config.tile_m, config.tile_n), position)


def span(first: TileRange, second: TileRange) -> tuple[Any, Any]:
    """The K tiles [begin, end) that a block needs: the hull of its query tiles' ranges, empty ranges left out."""
    first_empty = (first.begin >= first.end) * 1
    second_empty = (second.begin >= second.end) * 1
    # An empty range takes the other's bounds before the hull is formed.
    first_begin = first.begin + (second.begin - first.begin) * first_empty
    first_end = first.end + (second.end - first.end) * first_empty
    second_begin = second.begin + (first.begin - second.begin) * second_empty
    second_end = second.end + (first.end - second.end) * second_empty
    return min_(first_begin, second_begin), max_(first_end, second_end)


def common_tiles(first: TileRange, second: TileRange, tiles_per_trip: int) -> tuple[Any, Any]:
    """K tiles [begin, end) of the span, whole trips of them, that both query tiles visit, neither as its first."""
    _, end = span(first, second)
    common_begin = min_(max_(first.begin, second.begin) + 1, end)
    num_trips = floor_div(max_(min_(first.end, second.end) - common_begin, 0), tiles_per_trip)
    return common_begin, common_begin + num_trips * tiles_per_trip
