# SPDX-License-Identifier: Apache-2.0
"""`opdeck run mx_gemm` and `opdeck explain mx_gemm`: flags, verification, exit statuses, messages."""

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

SMALL = ["--m=5", "--n=6", "--k=96", "--device=cpu"]


def invoke(verb: str, *arguments: str) -> Any:
    return CliRunner().invoke(command_line(), [verb, "mx_gemm", *arguments])


@pytest.mark.parametrize(
    ("flags", "variant"),
    [
        (["--a_format=nvfp4", "--d_format=fp32"], "mx_gemm_cpu_ue4m3_none"),
        (["--a_format=mxfp6_e3m2", "--b_format=mxfp4", "--l=2", "--bias", "--verify"], "mx_gemm_cpu_e8m0_none"),
        (["--alpha=0.5", "--beta=-2", "--bias", "--activation=gated_silu"], "mx_gemm_cpu_e8m0_gated_silu"),
        (["--n=64", "--d_format=mxfp8_e5m2", "--activation=gated_silu"], "mx_gemm_cpu_e8m0_to_e8m0_gated_silu"),
        (["--n=32", "--d_format=nvfp4", "--d_scale=0.5", "--bias"], "mx_gemm_cpu_e8m0_to_ue4m3_none"),
    ],
)
def test_run_prints_what_ran_and_passes(flags: list[str], variant: str) -> None:
    result = invoke("run", *SMALL, *flags)
    assert result.exit_code == 0, result.output
    lines = dict(line.split(maxsplit=1) for line in result.output.splitlines() if " " in line)
    assert lines["variant"] == variant
    assert result.output.splitlines()[-1] == "PASS"
    assert "SNR" in lines["A"]


@pytest.mark.parametrize("spoil", [lambda d: d * 1.05, lambda d: d * float("nan")], ids=["off", "nan"])
def test_a_wrong_result_fails(spoil: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = CpuLauncher.__call__

    def launch_and_spoil(self: CpuLauncher, args: LaunchArgs) -> None:
        launch(self, args)
        d = as_numpy(args.tensors["d"])
        d[0, 0, 0] = spoil(float(d[0, 0, 0]))

    monkeypatch.setattr(CpuLauncher, "__call__", launch_and_spoil)
    result = invoke("run", *SMALL)
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == "FAIL"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--a_format=int4"], "--a_format: got 'int4', want mxfp8_e4m3|"),
        (["--d_format=fp8"], "--d_format: got 'fp8', want fp16|bf16|fp32"),
        (
            ["--n=32", "--d_format=mxfp4", "--d_scale=2"],
            "d_scale: got 2.0, want None: mxfp4 has no scale of the tensor",
        ),
        (["--d_format=mxfp4"], "--n: got 6 columns of D, want a multiple of 32, for mxfp4"),
        (["--d_scale=2"], "d_scale: got 2.0, want None: bf16 has no scale of the tensor"),
        (["--m=1000000", "--n=1000000"], "a tensor (1, 1000000, 1000000), want one of less than 2^33 elements"),
        (["--b_format=int4"], "--b_format: got 'int4', want mxfp8_e4m3|"),
        (["--activation=swish"], "--activation: got 'swish', want none|relu|gelu|silu|gated_silu"),
        (["--a_format=nvfp4", "--b_format=mxfp4"], "b: got mxfp4, want a format with the scales of a's nvfp4, ue4m3"),
        (["--k=40"], "--k: got 40, want a multiple of 32"),
        (["--n=5", "--activation=gated_silu"], "b: got N = 5 in shape (1, 5, 96), want a multiple of 2"),
        (["--m=4000000", "--k=4096"], "a tensor (1, 4000000, 4096), want one of less than 2^33 elements"),
    ],
)
def test_wrong_flags_are_named(flags: list[str], message: str) -> None:
    result = invoke("run", *SMALL, *flags)
    assert isinstance(result.exception, OpdeckError)
    assert message in str(result.exception)


def test_explain_gives_the_reasons() -> None:
    result = invoke("explain", *SMALL, "--a_format=mxfp4")
    assert result.exit_code == 0, result.output
    assert re.search(r"^mx_gemm_cpu_e8m0_none +chosen +block=32$", result.output, re.MULTILINE)
    assert "\ndtype.S: got e8m0, want ue4m3 (3 variants, such as mx_gemm_cpu_ue4m3_none)\n" in result.output
    assert re.search(
        r"^arch: got cpu, want sm_103a \(\d+ variants, such as mx_gemm_sm103a", result.output, re.MULTILINE
    )


def test_a_wrong_scale_of_d_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = CpuLauncher.__call__

    def launch_and_spoil(self: CpuLauncher, args: LaunchArgs) -> None:
        launch(self, args)
        if "d_block_scale" in args.tensors:
            as_numpy(args.tensors["d_block_scale"]).view(np.uint8)[0, 0, 0, 511] = 1  # of no row: padding

    monkeypatch.setattr(CpuLauncher, "__call__", launch_and_spoil)
    result = invoke("run", *SMALL, "--n=32", "--d_format=mxfp8_e4m3")
    assert result.exit_code == 1
    assert "not the fp32 D's" in result.output
