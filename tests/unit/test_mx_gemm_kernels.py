# SPDX-License-Identifier: Apache-2.0
"""Tile order, configurations and pipelines in clusters of the mx_gemm kernels: what a CPU can check of them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdeck.core import registry
from opdeck.core.kernels.tmem import TMEM_COLS
from opdeck.core.kernels.topology import ClusterShape, Edge, EdgeKind, Role, RoleTable, Topology, TopologyError
from opdeck.plugins.mx_gemm.sm100.config import Config
from opdeck.plugins.mx_gemm.sm100.work import KTiles, TileCoord, TileGrid, Work

MXFP8 = Config(
    a="fp8_e4m3",
    b="fp8_e4m3",
    c="bf16",
    d="bf16",
    scale="e8m0",
    block_elems=32,
    mma_m=128,
    mma_n=128,
    cluster_m=1,
    cluster_n=1,
    ab_stages=5,
    d_stages=2,
    band_tiles=8,
)
NVFP4 = replace(MXFP8, a="fp4_e2m1", b="fp4_e2m1", scale="ue4m3", block_elems=16)
PAIR = {"mma_m": 256, "mma_n": 256, "cluster_m": 2}
GATED = replace(NVFP4, **PAIR, num_columns=2, ab_stages=4)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 3), st.integers(1, 5))
@settings(max_examples=200, deadline=None)
def test_each_tile_has_one_index(num_m: int, num_n: int, num_batches: int, band: int) -> None:
    grid = TileGrid(num_m, num_n, num_batches, band)
    coords = {grid.coord(index) for index in range(grid.count)}
    assert coords == {
        TileCoord(m, n, batch) for m in range(num_m) for n in range(num_n) for batch in range(num_batches)
    }


def test_a_band_shares_rows_of_a_before_the_next_begins() -> None:
    grid = TileGrid(num_m=5, num_n=3, num_batches=2, band=2)
    first = [grid.coord(index) for index in range(6)]
    assert [(coord.m, coord.n) for coord in first] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]


def test_ctas_of_a_cluster_cover_its_tile_once() -> None:
    ctas = [
        Work(TileGrid(2, 2, 1, 1), KTiles(1, 0, 0), 0, 1, (2, 2), m, n, 2, pair)
        for m in range(2)
        for n in range(2)
        for pair in range(2)
    ]
    tiles = [(tile.m, tile.n) for index in range(4) for tile in (cta.cta_tile(index) for cta in ctas)]
    assert sorted(tiles) == [(m, n) for m in range(8) for n in range(4)]


@pytest.mark.parametrize(
    ("config", "k", "want"),
    [
        (MXFP8, 128, KTiles(1, 0, 0)),
        (MXFP8, 32, KTiles(0, 1, 1)),
        (MXFP8, 224, KTiles(1, 3, 3)),
        (NVFP4, 256, KTiles(1, 0, 0)),
        (NVFP4, 96, KTiles(0, 2, 6)),
        (NVFP4, 288, KTiles(1, 1, 2)),
    ],
)
def test_the_end_of_k(config: Config, k: int, want: KTiles) -> None:
    assert KTiles.of(k, config) == want


@pytest.mark.parametrize(
    "config", [MXFP8, NVFP4, replace(MXFP8, **PAIR), replace(NVFP4, **PAIR, c="fp32", d="fp32"), GATED]
)
def test_two_accumulators_fit_with_the_scales(config: Config) -> None:
    config.check()
    assert config.tmem.used_cols <= TMEM_COLS
    freed_cols = config.boxes_until_release * config.box_acc_cols
    assert freed_cols >= (config.mma_n if config.acc_stages == 2 else config.acc_shared_cols) > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mma_m": 64}, "want 128|256 rows"),
        ({"mma_n": 192}, "want 128|256 rows and 64|128|256 columns"),
        ({"mma_m": 256}, "num_m a multiple"),
        ({"cluster_n": 16}, "16 CTAs, want 1..8"),
        ({"ab_stages": 7}, "shared memory"),
        ({"wide_k": 1}, "want packed 4-bit elements"),
        ({"transposed": ("a",), "a": "fp6_e3m2"}, "transposed a: fp6_e3m2, want elements of 8 bits"),
        ({"num_columns": 3}, "mma_n: 128, want 32 columns of D or a multiple of the 3 columns that make one"),
        ({"num_columns": 8}, "mma_n: 128, want 32 columns of D"),
    ],
)
def test_configurations_that_could_not_run_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        replace(MXFP8, **change).check()


def test_every_row_could_run() -> None:
    rows = [row for row in registry.variants("mx_gemm") if row.arch != "cpu"]
    for row in rows:
        Config.of(row).check()
    wide = {(row.arch, row.dtype) for row in rows if row.config.get("wide_k")}
    assert wide == {("sm_103a", "mxfp4"), ("sm_103a", "nvfp4")}


def test_padding_in_shared_memory_is_not_counted_as_arriving() -> None:
    mixed = replace(MXFP8, b="fp6_e2m3")
    assert mixed.stage_bytes == MXFP8.stage_bytes
    assert MXFP8.mma_stage_bytes - mixed.mma_stage_bytes == MXFP8.stage_bytes["b"] // 4


def test_arrivals_in_a_cluster() -> None:
    roles = RoleTable((Role("epilogue", 0, 4, 128), Role("mma", 4, 1, 128), Role("load", 5, 3, 128)))
    edges = (
        Edge("ab", "load", "mma", EdgeKind.TMA_UMMA, 2, stage_bytes=64),
        Edge("acc", "mma", "epilogue", EdgeKind.UMMA_ASYNC, 2),
    )
    pairs = Topology(roles, edges, ClusterShape(num_m=4, num_n=2, num_pair_ctas=2))
    pairs.check()
    # Two MMAs along M share B, two along N share A, and one of them is this CTA's own.
    assert pairs.arrivals("ab") == (1, 3)
    assert pairs.arrivals("acc") == (1, 2 * 128)
    assert Topology(roles, edges, ClusterShape(num_m=3)).arrivals("ab") == (1, 3)
    with pytest.raises(TopologyError):
        ClusterShape(num_m=3, num_pair_ctas=2).check()
