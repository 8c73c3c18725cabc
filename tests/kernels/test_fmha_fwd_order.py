# SPDX-License-Identifier: Apache-2.0
"""In which order kernels whose CTAs take several blocks take those of sequences of unequal lengths: what the kernel
before the main one leaves in the workspace."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opdeck.core import registry
from opdeck.core.arrays import TensorView
from opdeck.core.devices.native import NativeDevice
from opdeck.core.fusion import AttentionFusion, Causal, Residual
from opdeck.core.profile.recorder import Recorder, declared_roles
from opdeck.plugins.fmha_fwd import reference
from opdeck.plugins.fmha_fwd.variants import ORDER_GROUP_SEQS, ORDER_ROW_BYTES

BLOCK_M, TILE = 256, (128, 128)
CAPACITY_BYTES = 1 << 20


class OneWorkspace:
    """Stands for Workspaces: the same memory for every launch, which a test may read."""

    def __init__(self) -> None:
        buffer = np.full(CAPACITY_BYTES + 256, 0xFF, np.uint8)
        begin = -buffer.__array_interface__["data"][0] % 256
        self.memory = buffer[begin : begin + CAPACITY_BYTES]
        self.num_bytes: list[int] = []

    def address(self, num_bytes: int, stream: int, like: TensorView) -> int:
        self.num_bytes.append(num_bytes)
        return int(self.memory.__array_interface__["data"][0])

    def order(self, num_seqs: int) -> list[tuple[int, int]]:
        """(first block, sequence) of each, and the end."""
        rows = self.memory.view(np.int32)[: 2 * (num_seqs + 1)].reshape(-1, 2)
        return [(int(first), int(seq)) for first, seq in rows]


def expected_order(lengths: list[tuple[int, int]], mask: AttentionFusion | None) -> list[tuple[int, int]]:
    """Of sequences of (sq, sk) rows."""

    def num_tiles(seq: int) -> int:
        """K tiles of the last block."""
        sq, sk = lengths[seq]
        part = (mask or Residual()).at(seq, 0)
        first_tile = max(sq - 1, 0) // BLOCK_M * 2
        ranges = [part.tile_ranges(tile, TILE, sq, sk) for tile in (first_tile, first_tile + 1) if tile * TILE[0] < sq]
        visited = [row for row in ranges if row.begin < row.end]
        return max(row.end for row in visited) - min(row.begin for row in visited) if visited else 0

    order, first = [], 0
    for begin in range(0, len(lengths), ORDER_GROUP_SEQS):
        group = range(begin, min(begin + ORDER_GROUP_SEQS, len(lengths)))
        for seq in sorted(group, key=lambda seq: (num_tiles(seq), seq)):
            order.append((first, seq))
            first += -(-lengths[seq][0] // BLOCK_M)
    return [*order, (first, len(lengths))]


@pytest.fixture(params=["eager", "random:1"])
def device(request: pytest.FixtureRequest) -> NativeDevice:
    """Not shared, since the tests put another workspace into it."""
    return NativeDevice("emulator:sm_100a", "cpu", schedule=request.param, hazards="strict")


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape).astype(ml_dtypes.bfloat16)


def ordered_call(
    lengths: list[tuple[int, int]], mask: AttentionFusion | None, device: NativeDevice, schedule: str
) -> OneWorkspace:
    """Runs packed sequences, which the oracle judges, and returns the workspace."""
    workspace = OneWorkspace()
    device.workspaces = workspace  # type: ignore[assignment]
    ends = np.cumsum([(0, 0), *lengths], axis=0).astype(np.int32)
    packed = {"cu_seqlens_q": ends[:, 0].copy(), "cu_seqlens_k": ends[:, 1].copy()}
    q, k, v = normal(ends[-1, 0] + 3, 1, 64), normal(ends[-1, 1], 1, 64), normal(ends[-1, 1], 1, 64)
    operator = registry.get("fmha_fwd")
    problem = operator.problem(q, k, v, mask=mask, **packed, device=device)
    rows = (row for row in operator.variants((mask,)) if row.accepts(problem) and row.config["schedule"] == schedule)
    out = np.full_like(q, np.nan)
    operator(q, k, v, mask=mask, **packed, out=out, device=device, variant=next(rows).id, max_ctas=3)
    want, _ = reference.forward(q[None], k[None], v[None], mask, 64**-0.5, packed)
    np.testing.assert_allclose(out.astype(np.float64), want[0], atol=2e-2)
    return workspace


lengths_of = st.lists(st.tuples(st.sampled_from([0, 1, 130, 256, 257, 600]), st.integers(0, 400)), max_size=12)
masks = st.sampled_from([None, Causal()])


@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=lengths_of, mask=masks, schedule=st.sampled_from(["persistent", "dynamic"]))
def test_packed_sequences_come_in_order_of_length(
    lengths: list[tuple[int, int]], mask: AttentionFusion | None, schedule: str, device: NativeDevice
) -> None:
    lengths = [*lengths, (1, 1)]  # so that the call is not empty
    workspace = ordered_call(lengths, mask, device, schedule)
    assert workspace.num_bytes == [ORDER_ROW_BYTES * (len(lengths) + 1)]
    assert workspace.order(len(lengths)) == expected_order(lengths, mask)


@pytest.mark.parametrize("num_seqs", [256, 300])
def test_more_sequences_than_a_group(num_seqs: int, device: NativeDevice) -> None:
    rng = np.random.default_rng(num_seqs)
    lengths = [(int(rng.integers(0, 3)), int(rng.integers(0, 3) ** 7 * 2)) for _ in range(num_seqs)]
    lengths[-1] = (300, 1)
    workspace = ordered_call(lengths, None, device, "persistent")
    assert workspace.order(num_seqs) == expected_order(lengths, None)


def test_what_a_mask_leaves_of_the_keys_counts(device: NativeDevice) -> None:
    """From the top left, 256 queries see 256 of 700 keys; without rows there is no block."""
    lengths, mask = [(256, 700), (512, 512), (0, 600)], Causal(align="top_left")
    assert expected_order(lengths, mask) == [(0, 2), (0, 0), (1, 1), (3, 3)]
    workspace = ordered_call(lengths, mask, device, "dynamic")
    assert workspace.order(len(lengths)) == expected_order(lengths, mask)


@pytest.mark.parametrize("used", ["seqused_q", "seqused_k"])
def test_used_rows_of_padded_sequences(used: str, device: NativeDevice) -> None:
    workspace = OneWorkspace()
    device.workspaces = workspace  # type: ignore[assignment]
    q, k = normal(3, 300, 1, 64), normal(3, 300, 1, 64)
    variant, rows = "fmha_fwd_sm100a_bf16_d64_dynamic_none", np.array([300, 0, 130], np.int32)
    registry.get("fmha_fwd")(q, k, k, **{used: rows}, device=device, variant=variant)
    assert workspace.num_bytes == [2 * ORDER_ROW_BYTES * 3]
    lengths = [(row, 300) if used == "seqused_q" else (300, row) for row in rows.tolist()]
    assert workspace.order(3) == expected_order(lengths, None)


def test_a_profile_by_roles_is_of_the_main_kernel_alone(device: NativeDevice) -> None:
    q, recorder = normal(2, 300, 1, 64), Recorder(device)
    with recorder.recording():
        operator = registry.get("fmha_fwd")
        used = np.array([300, 9], np.int32)
        operator(q, q, q, seqused_k=used, device=device, variant="fmha_fwd_sm100a_bf16_d64_dynamic_none")
    counted = recorder.profile()
    assert {row.launch_idx for row in counted.rows} == {0, 1}
    assert operator.last_launch is not None
    roles = counted.roles(declared_roles(operator.last_launch.variant))
    assert {row.launch_idx for role in roles.values() for row in role.rows} == {1}


def test_without_lengths_nothing_is_ordered(device: NativeDevice) -> None:
    q = normal(2, 300, 1, 64)
    workspace: Any = OneWorkspace()
    device.workspaces = workspace
    registry.get("fmha_fwd")(q, q, q, device=device, variant="fmha_fwd_sm100a_bf16_d64_dynamic_none")
    report = device.last_report()
    assert report is not None
    assert report.num_launches == 1
    assert workspace.num_bytes == []
