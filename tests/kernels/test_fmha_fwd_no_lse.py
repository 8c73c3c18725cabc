# SPDX-License-Identifier: Apache-2.0
"""A call that wants no LSE: the kernel gets a NULL tensor, of which no head's row may be written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from opdeck.core import registry
from opdeck.core.arch import GPU_ARCHS
from opdeck.core.devices import open_device
from opdeck.plugins.fmha_fwd import case_table, cases
from opdeck.plugins.fmha_fwd.cases import Case

# More than one head and batch: only their rows' addresses are not NULL.
CASE = next(case for case in case_table.cases() if case.shape.b > 1 and case.shape.hq > 1 and case.fusion is not None)


@pytest.mark.parametrize("arch", [arch.name for arch in GPU_ARCHS])
@pytest.mark.parametrize("case", [CASE], ids=lambda case: case.id)
def test_output_is_that_of_a_call_with_lse(arch: str, case: Case, pack: Path) -> None:
    device = open_device(f"emulator:{arch}", hazards="strict")
    device.load_pack(pack)
    fmha_fwd, inputs = registry.get("fmha_fwd"), cases.make_inputs(case, seed=3)
    operands = (inputs.q, inputs.k, inputs.v)
    with_lse, _ = fmha_fwd(*operands, mask=case.fusion, return_lse=True, device=device)
    without = fmha_fwd(*operands, mask=case.fusion, device=device)
    assert np.array_equal(without.view(np.uint16), with_lse.view(np.uint16))
