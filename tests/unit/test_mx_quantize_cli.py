# SPDX-License-Identifier: Apache-2.0
"""`opdeck run mx_quantize` and `opdeck explain mx_quantize`: flags, verification, exit statuses, messages."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from opdeck.core.arrays import as_numpy
from opdeck.core.cli.main import command_line
from opdeck.core.devices import LaunchArgs
from opdeck.core.devices.cpu import CpuLauncher
from opdeck.core.errors import OpdeckError

SMALL = ["--m=5", "--k=96", "--l=2", "--dtype=fp16", "--device=cpu"]


def invoke(verb: str, *arguments: str) -> Any:
    return CliRunner().invoke(command_line(), [verb, "mx_quantize", *SMALL, *arguments])


def test_run_prints_what_ran_and_passes() -> None:
    result = invoke("run", "--format=nvfp4")
    assert result.exit_code == 0, result.output
    lines = dict(line.split(maxsplit=1) for line in result.output.splitlines() if " " in line)
    assert lines["variant"] == "mx_quantize_cpu_fp16_nvfp4"
    assert result.output.splitlines()[-1] == "PASS"


def test_a_wrong_result_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = CpuLauncher.__call__

    def launch_and_spoil(self: CpuLauncher, args: LaunchArgs) -> None:
        launch(self, args)
        as_numpy(args.tensors["d_block_scale"]).view(np.uint8)[0, 0, 0, 511] = 1  # of no row: padding

    monkeypatch.setattr(CpuLauncher, "__call__", launch_and_spoil)
    result = invoke("run")
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == "FAIL"


@pytest.mark.parametrize("verb", ["run", "explain"])
@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--format=int4", "format: got 'int4', want mxfp8_e4m3|"),
        ("--dtype=fp8", "--dtype: got 'fp8', want fp32|fp16|bf16"),
        ("--k=40", "x: got shape (2, 5, 40), want (M, K) or (L, M, K), K a multiple of 32"),
        ("--m=1000000000", "--l, --m, --k: got a tensor (2, 1000000000, 96), want one of less than 2^33 elements"),
    ],
)
def test_wrong_flags_are_named(verb: str, flag: str, message: str) -> None:
    result = invoke(verb, flag)
    assert isinstance(result.exception, OpdeckError)
    assert message in str(result.exception)


def test_explain_gives_the_reasons() -> None:
    result = invoke("explain", "--format=mxfp4")
    assert result.exit_code == 0, result.output
    assert re.search(r"^mx_quantize_cpu_fp16_mxfp4 +chosen +format=mxfp4$", result.output, re.MULTILINE)
    assert "\nmx_quantize_cpu_fp16_nvfp4: dtype.S: got e8m0, want ue4m3\n" in result.output
    assert re.search(r"^arch: got cpu, want sm_90a \(\d+ variants, such as mx_quantize_sm90a_", result.output, re.M)
