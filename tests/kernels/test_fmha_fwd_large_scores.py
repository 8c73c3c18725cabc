# SPDX-License-Identifier: Apache-2.0
"""Equal scores far from 0: the row maximum times the scale is rounded, by up to 1/8 here, and no tile may notice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from opdeck.core import registry
from opdeck.core.arch import GPU_ARCHS
from opdeck.core.devices import open_device
from opdeck.plugins.fmha_fwd import cases
from opdeck.plugins.fmha_fwd.cases import Case, Shape

NUM_KEYS = 600  # five K tiles: the weight of the first is rescaled four times


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("arch", [arch.name for arch in GPU_ARCHS])
@pytest.mark.parametrize("case", [Case(Shape(1, 1, 1, 8, NUM_KEYS, 64), dtype="fp16")], ids=lambda case: case.id)
def test_output_is_the_mean_of_v(arch: str, case: Case, sign: float, pack: Path) -> None:
    device = open_device(f"emulator:{arch}", hazards="strict")
    device.load_pack(pack)
    inputs = cases.make_inputs(case, seed=5)
    inputs.q[...], inputs.k[...] = 500.0, sign * 500.0
    v = inputs.v + np.float16(1.0)
    o, lse = registry.get("fmha_fwd")(inputs.q, inputs.k, v, return_lse=True, device=device)
    mean = v.astype(np.float64).mean(axis=1, keepdims=True)
    assert np.abs(o - mean).max() < 1e-3
    score = sign * 64 * 500.0**2 / 8
    assert np.abs(lse - (score + np.log(NUM_KEYS))).max() <= 2 * np.spacing(np.float32(abs(score)))
