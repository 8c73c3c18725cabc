# SPDX-License-Identifier: Apache-2.0
"""Which tiles of D a cluster computes, in which order, and how K is cut.

Called by: kernel.py makes one Work a CTA; every role walks the same tiles. Unit tests, with Python ints.
Order: batch by batch; inside it bands of `band` cluster tiles along M, and in a band column by column, so that the
clusters that run together share the rows of A of one band and few columns of B in the L2 cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opdeck.core.fusion.intmath import IntLike, ceil_div, floor_div, min_
from opdeck.plugins.mx_gemm.sm100.config import Config


@dataclass(frozen=True)
class TileCoord:
    """A tile, counted in tiles of its kind along M and N, and the batch."""

    m: IntLike
    n: IntLike
    batch: IntLike


@dataclass(frozen=True)
class TileGrid:
    """Cluster tiles of D, `band` of them along M to a band."""

    num_m: IntLike
    num_n: IntLike
    num_batches: IntLike
    band: int

    @property
    def count(self) -> IntLike:
        return self.num_m * self.num_n * self.num_batches

    def coord(self, index: IntLike) -> TileCoord:
        """Coordinates of tile `index`; the last band of a batch may be narrower."""
        per_batch = self.num_m * self.num_n
        batch = index // per_batch
        in_batch = index - batch * per_batch
        band_idx = in_batch // (self.band * self.num_n)
        first_m = band_idx * self.band
        width = min_(self.num_m - first_m, self.band)
        in_band = in_batch - first_m * self.num_n
        n = in_band // width
        return TileCoord(first_m + in_band - n * width, n, batch)


@dataclass(frozen=True)
class KTiles:
    """K as whole tiles, and a last, partial one: its MMAs, one that is partly past K included, and its scales."""

    num_whole: Any
    tail_mmas: Any
    tail_blocks: Any

    @classmethod
    def of(cls, k: Any, config: Config) -> KTiles:
        num_whole = floor_div(k, config.tile_k)
        tail_elems = k - num_whole * config.tile_k
        return cls(num_whole, ceil_div(tail_elems, config.inst_k), ceil_div(tail_elems, config.block_elems))


@dataclass(frozen=True)
class Work:
    """A CTA's share. m_in_cluster, n_in_cluster: place of its MMA in the cluster's tile, in MMA tiles; pair_idx: which
    of the num_pair_ctas CTAs of the MMA it is."""

    grid: TileGrid
    k_tiles: KTiles
    cluster_idx: Any
    num_clusters: Any
    mmas_per_cluster: tuple[int, int]
    m_in_cluster: Any
    n_in_cluster: Any
    num_pair_ctas: int
    pair_idx: Any

    def mma_tile(self, index: Any) -> TileCoord:
        """Coordinates of this CTA's MMA tile in the cluster's tile `index`."""
        tile = self.grid.coord(index)
        per_m, per_n = self.mmas_per_cluster
        return TileCoord(tile.m * per_m + self.m_in_cluster, tile.n * per_n + self.n_in_cluster, tile.batch)

    def cta_tile(self, index: Any) -> TileCoord:
        """Coordinates of this CTA's part of it: 128 rows, all columns of the MMA."""
        tile = self.mma_tile(index)
        return TileCoord(tile.m * self.num_pair_ctas + self.pair_idx, tile.n, tile.batch)
