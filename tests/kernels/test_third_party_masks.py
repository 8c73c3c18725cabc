# SPDX-License-Identifier: Apache-2.0
"""Masks that opdeck does not know, compiled into its kernels at a first call and run on the emulator."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from packs import chosen_by_c
from third_party_masks import Chunked, Dotted, Gated, HeadLimits, Relative, Rounds, Steps, Striped, Window

from opdeck.aot import build, without_spills
from opdeck.aot.plan import stand_ins
from opdeck.core import dtypes, registry
from opdeck.core.arrays import view
from opdeck.core.devices import Device, LaunchArgs, open_device
from opdeck.core.devices.native import NativeDevice
from opdeck.core.errors import SpillError
from opdeck.core.fusion import AttentionFusion, Causal, Mask
from opdeck.core.fusion.scores import padded_rows
from opdeck.core.variant import Variant
from opdeck.core.verify import compare
from opdeck.plugins.fmha_fwd import cases, reference
from opdeck.plugins.fmha_fwd.cases import Case, Shape

SHAPE = Shape(1, 4, 2, 200, 300, 64)
LIMITS = np.array([0, 1, 150, 300], np.int32)

# Masks of one kernel each, with the run-time values to try on it.
MASKS: dict[str, list[Mask]] = {
    "interval_with_numbers": [Window(40, 10), Window(0, 0), Window(500, 500)],
    "element_by_element": [Striped(3)],
    "interval_with_a_divisor": [Chunked(37, 50), Chunked(64, 0), Chunked(1, -20)],
    "element_with_a_divisor": [Dotted(3), Dotted(64), Dotted(1)],
    "tensor": [HeadLimits(LIMITS), HeadLimits(LIMITS[::-1].copy())],
    "table_of_the_head": [
        Steps(np.stack([LIMITS, 7 + LIMITS[::-1], LIMITS + 1, LIMITS]).copy()),
        Steps(LIMITS[:, None]),
    ],
    "intersection": [Causal() & Window(64, 1), Causal() & Window(0, 500)],
    "mixed_intersection": [Striped(2) & Causal(align="top_left") & HeadLimits(LIMITS)],
}


def check(fusion: AttentionFusion, device: Device) -> Variant:
    """Runs a kernel against the oracle, its multiply-accumulates against its tiles. Returns the variant that ran."""
    operator = registry.get("fmha_fwd")
    inputs = cases.make_inputs(Case(SHAPE, fusion), seed=5)
    operator(inputs.q, inputs.k, inputs.v, mask=fusion, out=inputs.o, lse=inputs.lse, device=device)
    want_o, want_lse = reference.forward(inputs.q, inputs.k, inputs.v, fusion, softmax_scale=SHAPE.d**-0.5)
    tolerance = dtypes.dtype("bf16").tolerance
    assert tolerance is not None
    assert compare(inputs.o, want_o).within(tolerance)
    assert compare(inputs.lse, want_lse).max_abs <= tolerance.max_abs
    launch, report = operator.last_launch, device.last_report()
    assert launch is not None
    assert report is not None
    assert report.mma_macs == cases.expected_macs(Case(SHAPE), replace(launch.variant, fusion=fusion))
    return launch.variant


@pytest.mark.parametrize("kind", list(MASKS))
@pytest.mark.parametrize("arch", ["sm_100a", "sm_90a"])
def test_third_party_mask(arch: str, kind: str) -> None:
    device = open_device(f"emulator:{arch}", schedule="random:3", hazards="strict")
    assert len({check(mask, device) for mask in MASKS[kind]}) == 1


@pytest.mark.parametrize("arch", ["sm_100a", "sm_103a"])
def test_third_party_score_function_with_a_tensor(arch: str) -> None:
    """It multiplies, which takes more registers than a bias does. With K tiles of 128 ptxas 13.0 spilled."""
    gates = padded_rows(np.random.default_rng(3).uniform(0, 2, (1, SHAPE.hq, SHAPE.sq, SHAPE.sk)), "fp32")
    device = open_device(f"emulator:{arch}", schedule="random:3", hazards="strict")
    for fusion in (Gated(gates), Gated(gates) & Causal()):
        check(fusion, device)


def test_a_kernel_that_a_mask_leaves_no_registers_gives_way(tmp_path: Path) -> None:
    """More blocks than SMs go to dynamic kernels. This one spills: calls, packs and C take the individual one."""
    shape = Shape(149, 1, 1, 2, 40, 64)
    mask = Rounds(10, np.random.default_rng(0).integers(-30, 40, (shape.sq, 10), dtype=np.int32))
    inputs = cases.make_inputs(Case(shape, mask), seed=5)
    operator = registry.get("fmha_fwd")
    device = open_device("emulator:sm_100a")
    operator(inputs.q, inputs.k, inputs.v, mask=mask, out=inputs.o, device=device)
    want_o, _ = reference.forward(inputs.q, inputs.k, inputs.v, mask, softmax_scale=shape.d**-0.5)
    tolerance = dtypes.dtype("bf16").tolerance
    assert tolerance is not None
    assert compare(inputs.o, want_o).within(tolerance)
    assert operator.last_launch is not None
    individual = operator.last_launch.variant
    assert individual.config["schedule"] == "individual"

    dynamic = next(
        row
        for row in operator.variants((mask,))
        if individual.stands_in_for(row) and row.config["schedule"] == "dynamic"
    )
    with pytest.raises(SpillError, match=f"{dynamic.id}: "):
        operator(inputs.q, inputs.k, inputs.v, mask=mask, device=device, variant=dynamic.id)
    rows, schemas = (individual, dynamic), {"fmha_fwd": operator.schema}
    assert without_spills(rows, schemas, {dynamic: (individual,)}.get)[0] == (individual,)
    offline = NativeDevice("offline:sm_100a", memory="cpu")
    offline.load_pack(build([individual], schemas, tmp_path, "kept"))
    tensors = {name: view(getattr(inputs, name), name) for name in "qkvo"}
    leaves = tuple(view(leaf.value, leaf.name) for leaf in mask.leaves())
    args = LaunchArgs(tensors, {"softmax_scale": 1.0}, mask, leaves, None)
    assert chosen_by_c(offline, operator.schema, dynamic, args) == individual.id


@pytest.mark.parametrize("arch", ["sm_100a", "sm_103a"])
def test_a_score_function_that_128_keys_leave_no_registers_has_tiles_of_64(arch: str, tmp_path: Path) -> None:
    bias = np.random.default_rng(3).standard_normal((SHAPE.hq, 41), np.float32)
    fusion = Relative(20, bias)
    chosen = check(fusion, open_device(f"emulator:{arch}", schedule="random:3", hazards="strict"))
    assert chosen.config["tile_n"] == 64
    rows = registry.get("fmha_fwd").variants((fusion,))
    wide = next(row for row in rows if row.id == chosen.id.replace("_k64_", "_"))
    schemas = {"fmha_fwd": registry.schema("fmha_fwd")}
    kept, left_out = without_spills([wide], schemas, partial(stand_ins, registry))
    assert (kept, list(left_out)) == ((chosen,), [wide])
