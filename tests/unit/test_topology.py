# SPDX-License-Identifier: Apache-2.0
"""Roles, pipeline edges, tensor-memory maps and CTA order of the kernels: what a CPU can check of them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdeck.core.fusion import Bias, LeafKind, Sink
from opdeck.core.kernels import schedule
from opdeck.core.kernels.tmem import Alias, TmemError, TmemMap
from opdeck.core.kernels.topology import (
    ClusterShape,
    Edge,
    EdgeKind,
    Role,
    RoleTable,
    Topology,
    TopologyError,
    check_smem,
)
from opdeck.plugins.fmha_fwd import variants
from opdeck.plugins.fmha_fwd.sm100.config import SMEM_LIMIT_BYTES, Config

ROLES = RoleTable((Role("math", 0, 8, 192, num_groups=2), Role("mma", 8, 1, 56), Role("load", 9, 3, 56)))


def topology(*edges: Edge) -> Topology:
    return Topology(ROLES, edges)


def test_arrivals_follow_from_kind_and_roles() -> None:
    graph = topology(
        Edge("kv", "load", "mma", EdgeKind.TMA_UMMA, 3, stage_bytes=1024),
        Edge("scores", "mma", "math", EdgeKind.UMMA_ASYNC, 2),
        Edge("sums", "math", "load", EdgeKind.ASYNC, 2),
    )
    graph.check()
    assert graph.arrivals("kv") == (1, 1)
    assert graph.arrivals("scores") == (1, 128)  # one of the two groups of four warps
    assert graph.arrivals("sums") == (128, 96)


def test_arrivals_of_two_ctas_that_share_mmas() -> None:
    edges = (
        Edge("kv", "load", "mma", EdgeKind.TMA_UMMA, 3, stage_bytes=1024),
        Edge("scores", "mma", "math", EdgeKind.UMMA_ASYNC, 2),
        Edge("weights", "math", "mma", EdgeKind.ASYNC_UMMA, 2),
        Edge("sums", "math", "load", EdgeKind.ASYNC, 2),
    )
    graph = replace(topology(*edges), cluster=ClusterShape(2, 1, 2))
    graph.check()
    assert {edge.name: graph.arrivals(edge.name) for edge in edges} == {
        "kv": (1, 1),
        "scores": (1, 2 * 128),
        "weights": (2 * 128, 1),
        "sums": (128, 96),
    }


def test_barriers_of_edges_do_not_overlap() -> None:
    graph = topology(
        Edge("kv", "load", "mma", EdgeKind.TMA_UMMA, 3, stage_bytes=1024),
        Edge("scores", "mma", "math", EdgeKind.UMMA_ASYNC, 2),
    )
    assert [graph.first_barrier(edge.name) for edge in graph.edges] == [0, 6]
    assert graph.num_barriers == 10


@pytest.mark.parametrize(
    ("edge", "message"),
    [
        (Edge("x", "mma", "mma", EdgeKind.ASYNC, 1), "wait for itself"),
        (Edge("x", "mma", "nobody", EdgeKind.ASYNC, 1), "unknown"),
        (Edge("x", "load", "mma", EdgeKind.TMA_UMMA, 1), "stage_bytes"),
        (Edge("x", "mma", "math", EdgeKind.UMMA_ASYNC, 2, stage_bytes=8), "stage_bytes"),
        (Edge("x", "mma", "math", EdgeKind.UMMA_ASYNC, 1), "num_stages 1, want a multiple of 2"),
        (Edge("x", "mma", "load", EdgeKind.ASYNC, 0), "num_stages 0"),
        (Edge("x", "load", "math", EdgeKind.UMMA_ASYNC, 2), "tcgen05.mma"),
    ],
)
def test_wrong_edges_are_refused(edge: Edge, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        topology(edge).check()


def test_an_edge_name_occurs_once() -> None:
    edge = Edge("x", "load", "mma", EdgeKind.ASYNC, 1)
    with pytest.raises(TopologyError, match="twice"):
        topology(edge, edge).check()


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ((Role("a", 0, 4, 200), Role("b", 5, 3, 56)), "starts at warp 5"),
        ((Role("a", 0, 3, 56),), "whole warpgroups"),
        ((Role("a", 0, 4, 60),), "multiple of 8"),
        ((Role("a", 0, 1, 56), Role("b", 1, 3, 64)), "different num_regs"),
        ((Role("a", 0, 8, 240), Role("b", 8, 4, 56)), "registers in all"),
        ((Role("a", 0, 4, 56, num_groups=3),), "equal groups"),
    ],
)
def test_wrong_roles_are_refused(roles: tuple[Role, ...], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        RoleTable(roles).check()


def test_tmem_offsets_and_aliases() -> None:
    tmem = TmemMap({"S": 128, "O": 64}, {"P": Alias("S", 32, 64)})
    tmem.check()
    assert (tmem.offset("S"), tmem.offset("O"), tmem.offset("P")) == (0, 128, 32)
    assert (tmem.used_cols, tmem.alloc_cols) == (192, 256)
    assert TmemMap({"S": 8}).alloc_cols == 32
    assert TmemMap({"S": 512}).alloc_cols == 512


@pytest.mark.parametrize(
    ("tmem", "message"),
    [
        (TmemMap({"S": 512, "O": 1}), "513 columns"),
        (TmemMap({"S": 0}), "0 columns"),
        (TmemMap({"S": 128}, {"P": Alias("S", 96, 64)}), "want inside the 128"),
        (TmemMap({"S": 128}, {"P": Alias("T", 0, 64)}), "known region"),
        (TmemMap({"S": 128}, {"S": Alias("S", 0, 64)}), "new name"),
    ],
)
def test_wrong_tmem_maps_are_refused(tmem: TmemMap, message: str) -> None:
    with pytest.raises(TmemError, match=message):
        tmem.check()


def test_smem_over_the_limit_names_its_buffers() -> None:
    assert check_smem({"q": 100, "kv": 28}, 128) == 128
    with pytest.raises(TopologyError, match="'kv': 29"):
        check_smem({"q": 100, "kv": 29}, 128)


BIASES = tuple(Bias(LeafKind.TENSOR, dtype) for dtype in Bias.dtypes)
SM100_ROWS = [
    row
    for row in variants.rows((*variants.FUSIONS, Sink(LeafKind.TENSOR), *BIASES))
    if row.factory.endswith("sm100.kernel:make")
]


@pytest.mark.parametrize("row", SM100_ROWS, ids=lambda row: row.id)
def test_every_sm100_variant_fits_the_hardware(row: variants.Variant) -> None:
    config = Config.of(row)
    config.check()
    # An even share at launch must cover what setmaxnreg then moves about.
    roles = config.roles
    assert roles.launch_regs * roles.num_threads <= 64 * 1024
    assert roles["softmax"].num_regs > roles.launch_regs > roles["correction"].num_regs


def test_sm100_variants_are_of_every_schedule() -> None:
    """Each type, pair of head dims and fusion, biases of each type among them, on each arch."""
    schedules: dict[tuple[object, ...], set[str]] = {}
    for row in SM100_ROWS:
        dims = tuple(row.config[name] for name in ("d_qk", "d_v", "v_blocks"))
        key = (row.arch, row.dtype, row.symbol_dtypes["O"], dims, row.fusion_name)
        schedules.setdefault(key, set()).add(str(row.config["schedule"]))
    assert all(names - {"pair"} == {"individual", "persistent", "dynamic"} for names in schedules.values())
    assert {key[-1] for key, names in schedules.items() if "pair" in names} == {"none"}
    num_types, num_dims, num_fusions = 2 + 6, 7, len(variants.FUSIONS) + 1 + len(BIASES)
    assert len(schedules) == 2 * num_types * num_dims * num_fusions


@pytest.mark.parametrize("num_stages", [0, 1, 3 * 2, 8 * 2])
def test_rings_of_a_score_tensor_that_no_k_tile_fills_are_refused(num_stages: int) -> None:
    config = next(config for config in map(Config.of, SM100_ROWS) if config.score_tensor_bytes)
    ring_bytes = num_stages * config.score_tensor_stage_bytes
    with pytest.raises(ValueError, match=f"score_tensor_ring_bytes: {ring_bytes}, want "):
        replace(config, score_tensor_ring_bytes=ring_bytes).check()


def test_two_ctas_that_share_mmas_have_half_of_the_keys_each() -> None:
    by_schedule = {row.config["schedule"]: Config.of(row) for row in SM100_ROWS if "_bf16_d128" in row.id}
    one, pair = by_schedule["persistent"], by_schedule["pair"]
    assert (pair.block_m, pair.cluster) == (2 * one.block_m, ClusterShape(2, 1, 2))
    for name, num_stages in (("k", "k_stages"), ("v", "v_stages")):
        stage_bytes = [config.smem_bytes[name] // getattr(config, num_stages) for config in (one, pair)]
        assert stage_bytes[0] == 2 * stage_bytes[1] == pair.topology[name].stage_bytes
    assert pair.topology["q"].stage_bytes == 2 * one.topology["q"].stage_bytes
    assert pair.smem_bytes["q_and_o"] == one.smem_bytes["q_and_o"]


def test_sm100_config_that_needs_too_much_smem_is_refused() -> None:
    config = Config.of(SM100_ROWS[0])
    most = (SMEM_LIMIT_BYTES - config.smem_bytes["q_and_o"]) // config.k_tile_bytes
    with pytest.raises(TopologyError, match="shared memory"):
        replace(config, k_stages=most).check()


@settings(deadline=None, max_examples=200)
@given(
    num_q_blocks=st.integers(1, 7),
    num_heads=st.integers(1, 6),
    batch=st.integers(1, 4),
    section_heads=st.integers(1, 30),
)
def test_schedule_visits_every_block_once_longest_first(
    num_q_blocks: int, num_heads: int, batch: int, section_heads: int
) -> None:
    num_rows = num_heads * batch
    section_heads = min(section_heads, num_rows)
    order = [
        schedule.decode(idx, num_q_blocks, num_heads, num_rows, section_heads) for idx in range(num_q_blocks * num_rows)
    ]
    visited = {(coord.q_block, coord.head, coord.batch) for coord in order}
    assert visited == set(itertools.product(range(num_q_blocks), range(num_heads), range(batch)))
    for first in range(0, num_rows, section_heads):
        section = order[first * num_q_blocks : (first + section_heads) * num_q_blocks]
        blocks = [coord.q_block for coord in section]
        assert blocks == sorted(blocks, reverse=True)


def test_sections_hold_what_fits_the_cache() -> None:
    assert schedule.heads_per_section(schedule.SECTION_BYTES // 3, 4) == 12
    assert schedule.heads_per_section(schedule.SECTION_BYTES * 2, 4) == 4  # at least one KV head
    assert schedule.heads_per_section(0, 1) == schedule.SECTION_BYTES  # an empty K
