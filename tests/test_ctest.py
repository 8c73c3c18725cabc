# SPDX-License-Identifier: Apache-2.0
"""The tests written in C and C++, and what a C project does with an installed opdeck, as tests of pytest."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

CONSUMER_CMAKE = """\
cmake_minimum_required(VERSION 3.24)
project(consumer LANGUAGES C)
find_package(opdeck 0.1 REQUIRED CONFIG)
add_executable(consumer consumer.c)
target_link_libraries(consumer PRIVATE opdeck::opdeck)
"""

# A host that finds no device still answers queries, and says why it cannot make a context.
CONSUMER_C = """\
#include <opdeck.h>
#include <stdio.h>
int main(void) {
  opdeck_ctx *ctx = NULL;
  opdeck_ctx_desc desc = {.struct_size = sizeof desc, .device = "no-such-device"};
  opdeck_status status = opdeck_ctx_create(&desc, &ctx);
  printf("%s\\n", opdeck_last_error());
  return status == OPDECK_INVALID_ARGUMENT && ctx == NULL ? 0 : 1;
}
"""


def run(*command: object, timeout_s: int = 1200) -> str:
    """Output of a command, which must succeed."""
    words = [str(word) for word in command]
    result = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert result.returncode == 0, f"{' '.join(words)}:\n{result.stdout[-6000:]}\n{result.stderr[-6000:]}"
    return result.stdout


@pytest.fixture(scope="module")
def build_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cmake")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    run(
        "cmake",
        "-S",
        ROOT,
        "-B",
        folder,
        *generator,
        "-DOPDECK_TESTS=ON",
        f"-DCMAKE_INSTALL_PREFIX={folder / 'prefix'}",
    )
    run("cmake", "--build", folder, "--parallel", os.cpu_count() or 1)
    seeds = folder / "tests" / "fuzz" / "instruction_seeds"
    run(sys.executable, ROOT / "tests" / "fuzz" / "instruction_seeds.py", seeds)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_ctest_passes(build_dir: Path):
    output = run("ctest", "--test-dir", build_dir, "--output-on-failure", "--no-tests=error", "--timeout", 600)
    print(output)
    assert "100% tests passed" in output


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_an_installed_opdeck_is_found_by_cmake_and_runs(build_dir: Path, tmp_path: Path):
    run("cmake", "--install", build_dir)
    prefix = build_dir / "prefix"
    (tmp_path / "CMakeLists.txt").write_text(CONSUMER_CMAKE)
    (tmp_path / "consumer.c").write_text(CONSUMER_C)
    run("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path / "build")
    assert "no-such-device" in run(tmp_path / "build" / "consumer")
