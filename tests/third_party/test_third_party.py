# SPDX-License-Identifier: Apache-2.0
"""A distribution that opdeck does not know: installed by pip, checked, compiled into a pack, run by a C host."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import opdeck.abi

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "abi" / "examples"
OPDECK = "import sys; from opdeck.core.cli import main; sys.argv[0] = 'opdeck'; main()"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip installed the distribution."""
    source = shutil.copytree(HERE / "acme", tmp_path_factory.mktemp("source") / "acme")
    folder = tmp_path_factory.mktemp("site")
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--target", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "install", str(source), *options], check=True, timeout=300)
    return folder


def opdeck_command(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-c", OPDECK, *arguments]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)


@pytest.mark.slow
def test_a_good_plugin_passes(site: Path) -> None:
    done = opdeck_command(site, "check-plugin", "acme")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    for fusion in ("acme.log_alibi", "acme.rational_cap", "acme.strided"):
        checks = [line.removeprefix(f"{fusion}: ") for line in lines if line.startswith(f"{fusion}: ")]
        want = ("name and identity", "leaves", "tile ranges", "reference", "fmha_fwd on emulator:sm_100a")
        assert checks == [f"{check}: ok" for check in want]
    want = ("name and identity", "leaves", "reference", "mx_gemm on emulator:sm_100a")
    assert [line for line in lines if "acme.limited_gate" in line] == [
        f"acme.limited_gate: {check}: ok" for check in want
    ]
    assert lines[-1] == "PASS"


@pytest.mark.slow
def test_each_fault_of_a_broken_plugin_is_named(site: Path) -> None:
    done = opdeck_command(site, "check-plugin", "acme_broken")
    assert done.returncode == 1, done.stdout + done.stderr
    for line in (
        "acme_broken.short_window: tile ranges: acme_broken.short_window.tile_ranges of q_block 0, sq 1, sk 1: got ",
        "acme_broken.two_meanings: fmha_fwd on emulator:sm_100a: O of the kernel is not that of `reference`: ",
        "acme_broken.no_sample: leaves: acme_broken.no_sample.table: got no value to try, want a method sample(",
        "acme_broken.two_gates: mx_gemm on emulator:sm_100a: D of the kernel is not that of `reference`: ",
        "acme_broken.neighbours: reference: acme_broken.neighbours.reference: got result 0 that other columns change",
    ):
        assert line in done.stdout
    assert "short_window: fmha_fwd" not in done.stdout  # its ranges might keep a GPU busy for ever
    assert done.stdout.endswith("FAIL\n")


def test_a_plugin_that_is_not_there_is_said(site: Path) -> None:
    done = opdeck_command(site, "check-plugin", "acne")
    assert done.returncode == 1
    assert "plugin: got 'acne', want a plugin that offers fusions: acme|acme_broken" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "selection"),
    [
        ("log_alibi_host", ["--fusion=acme.log_alibi", "--dtype=bf16"]),
        (
            "block_sparse_host",
            ["--fusion=block_sparse[inner=acme.strided]", "--variant=fmha_fwd_sm100a_bf16_d64_block_sparse*"],
        ),
        (
            "limited_gate_host",
            [
                "--fusion=acme.limited_gate",
                "--rows=all",
                "--variant=mx_gemm_sm100a_mxfp8_e4m3_mxfp8_e4m3_mxfp8_e4m3_acme*",
            ],
        ),
    ],
)
def test_a_c_host_runs_it_by_name(site: Path, tmp_path: Path, host: str, selection: list[str]) -> None:
    build = ["aot", "build", "--plugin=acme", "--arch=sm_100a", f"--out={tmp_path}", "--name=acme", *selection]
    built = opdeck_command(site, *build)
    assert built.returncode == 0, built.stdout + built.stderr
    program, library = tmp_path / host, opdeck.abi.library_path().parent
    command = ["cc", "-std=c99", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    command += ["-I", str(opdeck.abi.include_dir()), "-I", str(EXAMPLES), str(HERE / f"{host}.c"), "-o", str(program)]
    command += ["-L", str(library), "-lopdeck", "-lm", f"-Wl,-rpath,{library}"]
    subprocess.run(command, check=True, timeout=120)
    run = [str(program), str(tmp_path / "acme.opdeck.so"), "emulator:sm_100a"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("PASS\n")
