# SPDX-License-Identifier: Apache-2.0
"""What a wheel holds, and that it works without the checkout: libraries, headers, what packs are linked from."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# An editable install of opdeck, should there be one, must not answer for the wheel.
USE_WHEEL = """\
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "_editable_" not in finder.__module__]
for name in [name for name in sys.modules if name.partition(".")[0] == "opdeck"]:
    del sys.modules[name]
sys.path.insert(0, {folder!r})
import opdeck.abi, opdeck.aot
from opdeck.core import registry
files = [opdeck.abi.library_path(), opdeck.abi.emulator_path(), *opdeck.abi.shim_sources()]
for path in (opdeck.abi.__file__, opdeck.aot.__file__, opdeck.core.__file__, *files):
    assert str(path).startswith({folder!r}), path
ffi, lib = opdeck.abi.lib()
assert lib.opdeck_version() >> 16 == lib.OPDECK_VERSION_MAJOR
assert "fmha_fwd" in registry.families()
assert "cutlass" not in sys.modules
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--no-deps", "--no-build-isolation", "--quiet", f"-Cbuild-dir={folder / 'build'}", "-w", str(folder)]
    environment = {**os.environ, "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count())}
    subprocess.run([sys.executable, "-m", "pip", "wheel", str(ROOT), *options], env=environment, check=True)
    (path,) = folder.glob("opdeck-*.whl")
    return path


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_wheel_has_what_it_needs_and_no_more(wheel: Path):
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in ("lib/libopdeck.so", "lib/libopdeck_emu.so", "include/opdeck.h", "src/shim.c", "py.typed"):
        assert f"opdeck/abi/{name}" in names
    assert "opdeck/__init__.py" not in names
    assert not [name for name in names if name.startswith("opdeck/core/emulator/src/") or "test" in name]
    tags = wheel.name.split("-", 2)[2]
    assert tags.startswith("py3-none-linux_")


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_wheel_works_without_the_checkout(wheel: Path, tmp_path: Path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    script = USE_WHEEL.format(folder=str(tmp_path))
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
