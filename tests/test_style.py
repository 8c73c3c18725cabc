# SPDX-License-Identifier: Apache-2.0
"""Lint, types, and the license line of each file, as tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("core", "plugins", "abi", "aot")
LICENSE_LINE = "SPDX-License-Identifier: Apache-2.0"
LICENSED_SUFFIXES = {".py", ".c", ".h", ".cc", ".cpp", ".hpp", ".txt", ".cmake"}


def run_tool(*arguments: object, **environment: str) -> None:
    command = [sys.executable, "-m", *(str(argument) for argument in arguments)]
    result = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, f"{result.stdout[-8000:]}\n{result.stderr[-2000:]}"


def source_files() -> list[Path]:
    folders = [*(ROOT / name for name in PACKAGES), ROOT / "tests"]
    return [path for folder in folders for path in folder.rglob("*") if path.suffix in LICENSED_SUFFIXES]


def test_ruff_finds_nothing():
    run_tool("ruff", "check", *PACKAGES, "tests")


@pytest.mark.slow
def test_types_hold(tmp_path: Path):
    """mypy sees the packages as an install lays them out: `opdeck` is no folder of the checkout."""
    (tmp_path / "opdeck").mkdir()
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tmp_path / "opdeck" / name, ignore=shutil.ignore_patterns("*.so"))
    packages = [word for name in PACKAGES for word in ("-p", f"opdeck.{name}")]
    run_tool(
        *("mypy", "--config-file", ROOT / "pyproject.toml", "--cache-dir", tmp_path / "cache"),
        *("--namespace-packages", "--explicit-package-bases", *packages),
        MYPYPATH=str(tmp_path),
    )


def test_every_source_names_its_license():
    missing = [path for path in source_files() if LICENSE_LINE not in path.read_text(errors="replace")[:200]]
    assert source_files()
    assert missing == []
