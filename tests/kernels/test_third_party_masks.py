# SPDX-License-Identifier: Apache-2.0
"""Masks that opdeck does not know, compiled into its kernels at a first call and run on the emulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from third_party_masks import Chunked, Dotted, HeadLimits, Striped, Window

from opdeck.core import dtypes, registry
from opdeck.core.devices import open_device
from opdeck.core.fusion import Causal, Mask
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
    "intersection": [Causal() & Window(64, 1), Causal() & Window(0, 500)],
    "mixed_intersection": [Striped(2) & Causal(align="top_left") & HeadLimits(LIMITS)],
}


@pytest.mark.parametrize("kind", list(MASKS))
@pytest.mark.parametrize("arch", ["sm_100a", "sm_90a"])
def test_third_party_mask(arch: str, kind: str) -> None:
    device = open_device(f"emulator:{arch}", schedule="random:3", hazards="strict")
    operator = registry.get("fmha_fwd")
    variants = set()
    for mask in MASKS[kind]:
        inputs = cases.make_inputs(Case(SHAPE, mask), seed=5)
        operator(inputs.q, inputs.k, inputs.v, mask=mask, out=inputs.o, lse=inputs.lse, device=device)
        want_o, want_lse = reference.forward(inputs.q, inputs.k, inputs.v, mask, softmax_scale=SHAPE.d**-0.5)
        tolerance = dtypes.dtype("bf16").tolerance
        assert tolerance is not None
        assert compare(inputs.o, want_o).within(tolerance)
        assert compare(inputs.lse, want_lse).max_abs <= tolerance.max_abs
        assert operator.last_launch is not None
        variants.add(operator.last_launch.variant)
        report = device.last_report()
        assert report is not None
        assert report.mma_macs == cases.expected_macs(Case(SHAPE), replace(operator.last_launch.variant, fusion=mask))
    assert len(variants) == 1
