# SPDX-License-Identifier: Apache-2.0
"""The flags of `opdeck run fmha_fwd` that say which kernel runs how often."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from opdeck.core.cli.main import command_line

PROBLEM = ("--b=1", "--h=2", "--q=300", "--k=40", "--d=64", "--dtype=bf16", "--device=emulator:sm_100a")


def run(*flags: str) -> dict[str, str]:
    """The lines of the output by their names."""
    result = CliRunner().invoke(command_line(), ["run", "fmha_fwd", *PROBLEM, *flags])
    assert result.exit_code == 0, result.output
    return {line[:18].strip(): line[18:].strip() for line in result.output.splitlines()}


@pytest.mark.parametrize(("flags", "num_ctas"), [((), 4), (("--sm-count=3",), 3), (("--sm-count=9",), 4)])
def test_persistent(flags: tuple[str, ...], num_ctas: int):
    shown = run("--persistent", *flags)
    assert shown["variant"] == "fmha_fwd_sm100a_bf16_d64_persistent_none"
    assert shown["CTAs"] == str(num_ctas)


def test_kernel_filter_takes_the_first_that_matches():
    assert run()["variant"] == "fmha_fwd_sm100a_bf16_d64_none"
    assert run("--kernel-filter=persist.*_none$")["variant"] == "fmha_fwd_sm100a_bf16_d64_persistent_none"


def test_repeated_launches_on_copies_and_resources():
    shown = run("--warmup_iterations=1", "--iterations=2", "--tensor_ring_buffers=2", "--verbose")
    assert int(shown["shared memory"].split()[0]) > 64 << 10
    assert shown["threads"] == "512 a CTA, launched with 128 registers each"
    assert "k_stages=4" in shown["config"]
