# SPDX-License-Identifier: Apache-2.0
"""The Hopper forward kernel's roles, edges and shared memory: what a CPU can check of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opdeck.core.kernels.topology import TopologyError
from opdeck.core.variant import Variant
from opdeck.plugins.fmha_fwd import variants
from opdeck.plugins.fmha_fwd.sm90.config import Config

HOPPER_ROWS = [row for row in variants.rows(variants.FUSIONS) if row.arch == "sm_90a"]
D128 = Config(head_dim=128, tile_m=128, tile_n=128, kv_stages=2, producer_regs=24, consumer_regs=240)


@pytest.mark.parametrize("row", HOPPER_ROWS, ids=lambda row: row.id)
def test_every_row_could_run(row: Variant) -> None:
    Config.of(row).check()


def test_rows_cover_the_family() -> None:
    got = {(row.dtype, row.config["d_qk"], row.fusion_name) for row in HOPPER_ROWS}
    assert len(got) == len(HOPPER_ROWS) == 2 * 2 * len(variants.FUSIONS)


def test_edges_of_two_consumer_warpgroups() -> None:
    edges = {edge.name: edge for edge in D128.topology.edges}
    assert {name: D128.topology.arrivals(name) for name in edges} == {"q": (1, 8), "k": (1, 8), "v": (1, 8)}
    assert {name: edge.stage_bytes for name, edge in edges.items()} == {"q": 32768, "k": 32768, "v": 32768}
    assert D128.roles.num_threads == 384


def test_shared_memory_counts_every_stage_once() -> None:
    # 1 stage of Q, 2 of K, 2 of V, each with a full and an empty mbarrier of 8 bytes.
    assert D128.smem_bytes == {"q": 32768, "k": 65536, "v": 65536, "barriers": 80}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_dim": 96}, "head_dim: got 96"),
        ({"tile_m": 96}, "tile_m: got 96"),
        ({"tile_m": 0}, "tile_m: got 0"),
        ({"tile_n": 8}, "tile_n: got 8"),
        ({"tile_n": 272}, "tile_n: got 272"),
        ({"kv_stages": 0}, "num_stages 0"),
        ({"kv_stages": 4}, "shared memory: 295056 bytes"),
        ({"producer_regs": 20}, "num_regs 20"),
        ({"consumer_regs": 256}, "registers in all"),
        ({"tile_m": 192}, "registers in all"),
    ],
)
def test_a_config_that_could_not_run_is_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(D128, **change).check()


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(TypeError, match="kv_stage'"):
        Config.of(replace(HOPPER_ROWS[0], config={"d_qk": 128, "d_v": 128, "kv_stage": 2}))


def test_refusals_are_topology_errors_where_the_topology_refuses() -> None:
    with pytest.raises(TopologyError):
        replace(D128, kv_stages=4).check()
