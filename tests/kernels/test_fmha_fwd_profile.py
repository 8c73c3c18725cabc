# SPDX-License-Identifier: Apache-2.0
"""Counters of a whole attention kernel: what its tiles must move and multiply, no more and no less."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from opdeck.core import registry
from opdeck.core.devices import open_device
from opdeck.core.errors import ArgumentError
from opdeck.core.fusion import Causal
from opdeck.core.profile.bounds import bounds
from opdeck.core.profile.recorder import Recorder, declared_roles
from opdeck.plugins.fmha_fwd import profile
from opdeck.plugins.fmha_fwd.cases import Case, Shape, expected_macs

SHAPE = Shape(b=1, hq=4, hk=4, sq=1024, sk=1024, d=128)
TILE = 128
ROW_BYTES = 2 * 128
NUM_Q_TILES = 4 * 1024 // TILE
NUM_TILES = 4 * sum(range(1, 9))  # of causal attention: 1 .. 8 for the 8 query tiles of a head


def launch(**options):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1024, 4, 128)).astype(ml_dtypes.bfloat16) for _ in range(3))
    operator = registry.get("fmha_fwd")
    device = open_device("emulator:sm_100a", hazards="off")
    recorder = Recorder(device)
    with recorder.recording():
        operator(q, k, v, device=device, **options)
    return operator.last_launch.variant, recorder.profile(), device.last_report()


@pytest.fixture(scope="module")
def launched():
    return launch(mask=Causal())


def test_tiles_and_macs(launched):
    variant, counted, report = launched
    assert NUM_TILES == 144
    work = profile.work(variant, counted)
    assert (work.num_units, work.unit) == (144, "tile of 128 x 128 scores, d 128")
    assert counted.sum("macs") == expected_macs(Case(SHAPE), variant) == report.mma_macs
    # One MMA is 128 x 128 x 16.
    roles = counted.roles(declared_roles(variant))
    assert roles["mma"].by_pipe()["mma"] == NUM_TILES * 2 * 128 // 16
    assert all(role.sum("macs") == 0 for name, role in roles.items() if name != "mma")


def test_bytes(launched):
    """Two query tiles of a CTA share K and V, of which the one that sees more keys says how much is loaded."""
    variant, counted, report = launched
    roles = counted.roles(declared_roles(variant))
    q_bytes = NUM_Q_TILES * TILE * ROW_BYTES
    kv_bytes = 4 * (2 + 4 + 6 + 8) * 2 * TILE * ROW_BYTES
    assert roles["load"].by_pipe("global_read_bytes") == {"tma": q_bytes + kv_bytes}
    assert roles["load"].by_pipe("shared_write_bytes")["tma"] == q_bytes + kv_bytes == report.tma_load_bytes
    assert roles["store"].by_pipe("global_write_bytes") == {"tma": q_bytes}
    assert report.tma_store_bytes == q_bytes
    # Q K^T has both operands in shared memory, P V one.
    assert roles["mma"].by_pipe("shared_read_bytes")["mma"] == NUM_TILES * 3 * TILE * ROW_BYTES
    assert roles["softmax"].sum("tmem_read_bytes") == NUM_TILES * TILE * TILE * 4
    assert roles["softmax"].sum("tmem_write_bytes") == NUM_TILES * TILE * TILE * 2
    assert counted.sum("extra_wavefronts") == 0


def test_mufu_and_bounds(launched):
    """On sm_100a 20 of 128 scores of an unmasked tile take exp2 by polynomial; a row and tile rescale with one more."""
    variant, counted, _ = launched
    roles = counted.roles(declared_roles(variant))
    num_masked = NUM_Q_TILES
    exp2 = roles["softmax"].by_opcode()["ex2.approx.ftz.f32"]
    assert exp2 == 4 * ((NUM_TILES - num_masked) * (108 + 1) + num_masked * (128 + 1))
    clocks = {bound.unit: bound.clocks / NUM_TILES for bound in bounds(counted)}
    assert clocks["mma"] == 1024
    assert clocks["mufu"] > exp2 * 32 / NUM_TILES / 16
    assert clocks["tensor memory (bytes)"] > (128 * 128 * 6) / 512


def test_ctas_that_share_mmas_share_keys():
    """Half the MMAs, each with the keys or values of both CTAs and 128 queries of either."""
    variant, counted, report = launch(variant="fmha_fwd_sm100a_bf16_d128_pair_none")
    mma = counted.roles(declared_roles(variant))["mma"]
    num_tiles = 4 * 8 * 8
    assert counted.sum("macs") == expected_macs(Case(SHAPE), variant) == num_tiles * TILE * TILE * 256
    assert mma.by_pipe()["mma"] == num_tiles // 2 * 2 * 128 // 16
    # Q of both CTAs, K and V once: a tile of 256 x 128 scores.
    assert mma.by_pipe("shared_read_bytes")["mma"] == num_tiles // 2 * 4 * TILE * ROW_BYTES
    num_pairs = 4 * 1024 // (4 * TILE)
    assert report.tma_load_bytes == NUM_Q_TILES * TILE * ROW_BYTES + num_pairs * 2 * 1024 * ROW_BYTES == 5_242_880
    assert report.tma_store_bytes == NUM_Q_TILES * TILE * ROW_BYTES


def test_roles_are_found_without_a_table(launched):
    """Warps that run the same code form a team: softmax 0 to 7, correction, and four single warps."""
    _, counted, _ = launched
    assert [name for name in counted.roles() if name != "warp 15"] == [
        "warps 0-7",
        "warps 8-11",
        "warp 12",
        "warp 13",
        "warp 14",
    ]


def test_only_emulated_devices_count():
    with pytest.raises(ArgumentError, match="--profile"):
        Recorder(open_device("cpu"))
