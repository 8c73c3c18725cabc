# SPDX-License-Identifier: Apache-2.0
"""`opdeck run --explore` and `--profile` on kernels that are right, and on one whose results depend on the schedule."""

from __future__ import annotations

import re

import numpy as np
import pytest
from typer.testing import CliRunner

from opdeck.core.cli.explore import print_exploration
from opdeck.core.cli.main import command_line
from opdeck.core.devices import Device, open_device
from opdeck.core.errors import ArgumentError

SMALL = ("--b=1", "--h=1", "--q=130", "--k=130", "--d=64", "--dtype=bf16", "--device=emulator:sm_100a")


def test_a_right_kernel_passes():
    result = CliRunner().invoke(command_line(), ["run", "fmha_fwd", *SMALL, "--explore=0.5"])
    assert result.exit_code == 0, result.output
    found = re.search(r"explored +(\d+) schedules in .* s, (\d+) happens-before orders: the same bits", result.output)
    assert found is not None, result.output
    assert int(found[1]) >= 2
    assert int(found[2]) >= 1


def test_a_right_product_passes_and_is_counted():
    """Four tiles of 128 x N of a product of 256 x 256, or eight: 512 / 32 steps of K of each."""
    problem = ("--m=256", "--n=256", "--k=512", "--device=emulator:sm_100a")
    result = CliRunner().invoke(command_line(), ["run", "mx_gemm", *problem, "--explore=0.5", "--profile"])
    assert result.exit_code == 0, result.output
    assert re.search(r"explored +\d+ schedules in .*: the same bits", result.output) is not None, result.output
    work = re.search(r"a step of K 32 of a tile of 128 x (\d+) \((\d+) of them\)", result.output)
    assert work is not None, result.output
    assert int(work[1]) * int(work[2]) == 2 * 256 * 512 // 32
    rows = re.findall(r"^(epilogue|mma|load|idle) +\d+ ", result.output, re.MULTILINE)
    assert rows == ["epilogue", "mma", "load", "idle"]


def test_each_schedule_is_a_device_of_its_own(capsys: pytest.CaptureFixture[str]):
    devices: list[Device] = []

    def call(device: Device) -> list[np.ndarray]:
        devices.append(device)
        return [np.array([1.0, float(len(devices) == 3)])]

    assert not print_exploration(open_device("emulator:sm_90a"), "strict", 60, call)
    named = [open_device("emulator:sm_90a", schedule, "strict") for schedule in ("eager", "lazy", "random:1")]
    assert devices == named
    assert "random:1 fails: 1 elements of output 0 differ, first (1,): 1.0, under eager 0.0" in capsys.readouterr().out


def test_only_emulated_devices_have_schedules():
    with pytest.raises(ArgumentError, match="--explore: got cpu"):
        print_exploration(open_device("cpu"), None, 1, lambda _: [])
