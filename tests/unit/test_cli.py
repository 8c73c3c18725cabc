# SPDX-License-Identifier: Apache-2.0
"""The command line: flags of CUTLASS example 77, exit statuses, messages."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from opdeck.core.arrays import as_numpy
from opdeck.core.cli.main import command_line
from opdeck.core.devices import LaunchArgs
from opdeck.core.devices.cpu import CpuLauncher
from opdeck.core.errors import OpdeckError
from opdeck.core.fusion import Causal
from opdeck.plugins.fmha_fwd import commands
from opdeck.plugins.fmha_fwd.cases import Lengths, Shape

SMALL = ["--b=1", "--h", "2", "--h_k=1", "--q=5", "--k", "7", "--d=64", "--device=cpu"]


def run(*arguments: str) -> Any:
    return CliRunner().invoke(command_line(), ["run", "fmha_fwd", *arguments])


def test_run_prints_what_ran_and_passes() -> None:
    result = run(*SMALL, "--mask=causal,residual", "--causal-type=qend", "--dtype", "fp16", "--verify")
    assert result.exit_code == 0, result.output
    lines = dict(line.split(maxsplit=1) for line in result.output.splitlines() if " " in line)
    assert lines["variant"] == "fmha_fwd_cpu_fp16_causal_bottom_right"
    assert lines["problem"] == "b1_h2_hk1_q5_k7_d64"
    assert result.output.splitlines()[-1] == "PASS"


@pytest.mark.parametrize("spoilt", ["o", "lse"])
def test_a_wrong_result_fails(spoilt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = CpuLauncher.__call__

    def launch_and_spoil(self: CpuLauncher, args: LaunchArgs) -> None:
        launch(self, args)
        as_numpy(args.tensors[spoilt])[0, 0, 0] *= 1.5

    monkeypatch.setattr(CpuLauncher, "__call__", launch_and_spoil)
    result = run(*SMALL)
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == "FAIL"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--mask=banded"],
            "--mask: got 'banded', want a comma-separated list of no|residual|causal and canonical names",
        ),
        (["--causal-type=left"], "--causal-type: got 'left', want qbegin|qend"),
        (["--dtype=int4"], "--dtype: got 'int4', want fp16|bf16|"),
        (["--dtype=fp32"], "q: got dtype fp32, want fp16|bf16|fp8_e4m3"),
        (["--out-dtype=bf16"], "out: got dtype bf16, want fp16, the dtype of q"),
        (["--kernel-filter=["], "--kernel-filter: got '[', want a regular expression (unterminated"),
        (["--q=999999999999"], "--d: got a tensor (1, 999999999999, 2, 64), want one of less than 2^36 elements"),
        (["--b=99999999999", "--k=99999999999"], "want one of less than 2^36 elements"),
        (["--init-style=x"], "--init-style: got 'x', want r|1|d|s|n"),
        (["--h=3", "--h_k=2"], "q: got hq = 3, want a multiple of hk = 2"),
        (["--device=tpu"], "device: got 'tpu', want cuda:N|"),
        (["--mask=causal,relu"], "--mask: got 'causal,relu', want a comma-separated list"),
        (["--varlen-q="], "--varlen-q: got '', want rows of each sequence"),
        (["--varlen-q=3:x"], "--varlen-q: got '3:x', want rows of each sequence"),
        (["--varlen-k=3:4"], "--k: got 7, want nothing"),
        (["--kernel-filter=sm100"], "--kernel-filter=sm100 leaves none of the variants that accept it, fmha_fwd_cpu_"),
        (["--persistent"], "--persistent leaves none of the variants that accept it, fmha_fwd_cpu_fp16_none"),
    ],
)
def test_wrong_values_are_named(flags: list[str], message: str) -> None:
    result = run(*SMALL, *flags)
    assert isinstance(result.exception, OpdeckError)
    assert message in str(result.exception)


def test_unknown_flags_and_errors_of_the_process() -> None:
    command = [sys.executable, "-c", "from opdeck.core.cli import main; main()", "run", "fmha_fwd"]
    unknown = subprocess.run([*command, "--no-such-flag"], capture_output=True, text=True, check=False)
    assert unknown.returncode == 2
    assert "No such option" in unknown.stderr
    wrong = subprocess.run([*command, *SMALL, "--mask=x"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("opdeck: --mask: got 'x'")


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        ((), Shape(64, 16, 16, 256, 256, 128)),
        ((None, None, None, 512, None, 64), Shape(32, 32, 32, 512, 512, 64)),
        ((None, 4, 2, None, 32768, 128), Shape(1, 4, 2, 32768, 32768, 128)),
        ((3, 4, None, 17, 257, 128), Shape(3, 4, 4, 17, 257, 128)),
        ((1, 1, 1, 16, 0, 64), Shape(1, 1, 1, 16, 0, 64)),
        ((1, None, 2, 16, None, None, 128), Shape(1, 16, 2, 16, 16, 192, 128)),
        ((1, 1, 1, 16, 16, None, 64, 32), Shape(1, 1, 1, 16, 16, 96, 64)),
    ],
)
def test_defaults_are_those_of_example_77(given: tuple[Any, ...], shape: Shape) -> None:
    assert commands._shape(commands._Sizes(*given)) == shape


def test_varlen_splits_rows_unevenly_and_lists_are_taken_as_they_are() -> None:
    def lengths(**flags: Any) -> Lengths:
        case = commands._case(commands._Sizes(d=64, **flags), None, ("bf16", ""), seed=0)
        if case.lengths.q is not None:
            assert (case.shape.b, case.shape.sq, case.shape.sk) == (1, sum(case.lengths.q), sum(case.lengths.k))
        return case.lengths

    assert lengths(b=2, q=100) == Lengths()
    assert lengths(b=3, q=100, k=200, varlen=True) == Lengths((110, 90, 100), (220, 180, 200))
    assert lengths(varlen_q="17:0", varlen_k="5:6") == Lengths((17, 0), (5, 6))
    assert lengths(varlen_k="5:6") == Lengths((5, 6), (5, 6))
    assert lengths(varlen_q="5:6", k=10) == Lengths((5, 6), (11, 9))


def test_fusions_by_name_run_with_drawn_values() -> None:
    for mask in ("softcap&window[right=none]", "bias[dtype=bf16],causal", "prefix_lm&sink"):
        result = run(*SMALL, f"--mask={mask}")
        assert result.exit_code == 0, result.output
        assert result.output.splitlines()[-1] == "PASS"


def test_masks_combine() -> None:
    assert commands._fusion("softcap,causal,residual", "qend").canonical_name == "softcap&causal[align=bottom_right]"
    assert commands._fusion("no", "qbegin") is None
    assert commands._fusion("residual", "qbegin") is None
    assert commands._fusion("causal,residual", "qbegin") == Causal(align="top_left")
    assert commands._fusion("causal", "qend") == Causal()


@pytest.mark.parametrize("flags", [(), ("--varlen-q=3:0:2", "--varlen-k=5:200:0")])
def test_keys_in_pages(flags: tuple[str, ...]) -> None:
    sizes = () if flags else ("--b=2", "--q=3", "--k=130")
    result = run(*sizes, *flags, "--h=1", "--d=16", "--page=128", "--device=cpu")
    assert result.exit_code == 0, result.output
    assert "_pages128" in result.output
    assert result.output.endswith("PASS\n")


def test_init_styles() -> None:
    rng = np.random.default_rng(0)
    assert set(commands._fill((4, 64), "1", rng).flat) == {1.0}
    assert set(commands._fill((4, 64), "n", rng).flat) == {0.0}
    assert list(commands._fill((3, 128), "d", rng).flat[:6]) == [0, 1, 2, 3, 0, 1]
    assert list(commands._fill((6, 128), "s", rng)[:, 0]) == [0, 1, 2, 3, 0, 1]
    assert abs(commands._fill((4, 64), "r", rng)).max() > 1.5


def test_a_launch_need_not_be_timed() -> None:
    result = run(*SMALL, "--iterations=0")
    assert result.exit_code == 0, result.output
    assert "time a launch" not in result.output
    assert result.output.splitlines()[-1] == "PASS"


def test_list_and_explain() -> None:
    listed = CliRunner().invoke(
        command_line(), ["list", "fmha_fwd", "--arch=sm_90a", "--fusion=causal[align=top_left]"]
    )
    assert [line.split()[0] for line in listed.output.splitlines()[1:]] == [
        f"fmha_fwd_sm90a_{dtype}_d{d}_causal_top_left" for dtype in ("fp16", "bf16") for d in (64, 128)
    ]
    explained = CliRunner().invoke(command_line(), ["explain", "fmha_fwd", *SMALL]).output
    assert re.search(r"^arch: got cpu, want sm_100a \(\d+ variants, such as fmha_fwd_sm100a_", explained, re.MULTILINE)
    assert re.search(r"^variant .*\nfmha_fwd_cpu_fp16_none +chosen\n", explained, re.MULTILINE)


def test_explain_puts_the_chosen_variant_first() -> None:
    """Also one that comes behind others, to which it is preferred."""
    many_blocks = ["--b=149", "--h=1", "--q=4", "--k=4", "--d=64", "--device=emulator:sm_100a"]
    explained = CliRunner().invoke(command_line(), ["explain", "fmha_fwd", *many_blocks]).output
    assert re.findall(r"^(\w+) +(chosen|accepts) ", explained, re.MULTILINE)[:2] == [
        ("fmha_fwd_sm100a_fp16_d64_persistent_none", "chosen"),
        ("fmha_fwd_sm100a_fp16_d64_none", "accepts"),
    ]


def test_version() -> None:
    result = CliRunner().invoke(command_line(), ["--version"])
    assert result.exit_code == 0
    assert result.output == f"opdeck {importlib.metadata.version('opdeck')}\n"
