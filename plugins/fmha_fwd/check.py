# SPDX-License-Identifier: Apache-2.0
"""check.py: whether a kernel with a fusion agrees with the float64 oracle, for `opdeck check-plugin`.

Who calls it: opdeck.core.plugin_check, through the family's row in plugin.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from opdeck.core import registry
from opdeck.core.devices import open_device
from opdeck.core.errors import OpdeckError
from opdeck.core.fusion import AttentionFusion, Extent
from opdeck.core.verify import compare
from opdeck.plugins.fmha_fwd import cases, reference
from opdeck.plugins.fmha_fwd.cases import Case, Shape

# Ragged, of two tiles each way, key heads shared.
CASE = Case(Shape(b=2, hq=4, hk=2, sq=200, sk=300, d=64))
SCHEDULES = ("eager", "random:1")


class WrongResultError(OpdeckError):
    """A kernel and the oracle disagree."""


def check_fusion(fusion: AttentionFusion, device_name: str) -> None:
    """Runs the kernel of the fusion, on an emulator under two schedules and with strict hazard checks.

    Raises: WrongResultError, or what the call raises.
    """
    shape = CASE.shape
    sampled = fusion.sample(Extent(shape.b, shape.hq, shape.sq, shape.sk), np.random.default_rng(0))
    on_emulator = device_name.startswith("emulator:")
    for schedule in SCHEDULES if on_emulator else (None,):
        device = open_device(device_name, schedule, "strict" if on_emulator else None)
        inputs, operator = cases.make_inputs(CASE, seed=0), registry.get("fmha_fwd")
        o, lse = operator(inputs.q, inputs.k, inputs.v, mask=sampled, return_lse=True, device=device)
        want_o, want_lse = reference.forward(inputs.q, inputs.k, inputs.v, sampled, softmax_scale=shape.d**-0.5)
        limits = dict(zip(("O", "LSE"), CASE.tolerances, strict=True))
        for name, got, want in (("O", o, want_o), ("LSE", lse, want_lse)):
            errors = compare(got, want)
            if not errors.within(limits[name]):
                raise WrongResultError(f"{name} of the kernel is not that of `reference`: {errors}")
        report, launch = device.last_report(), operator.last_launch
        if report is not None and launch is not None:
            want_macs = cases.expected_macs(CASE, replace(launch.variant, fusion=sampled))
            if report.mma_macs != want_macs:
                raise WrongResultError(f"tiles: the kernel did {report.mma_macs} MACs, `tile_ranges` says {want_macs}")
