# SPDX-License-Identifier: Apache-2.0
"""opdeck.abi: the cffi module, the files that it finds, and numbers that C and Python share."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import opdeck.abi
from opdeck.core.dtypes import dtype

HEADER = opdeck.abi.include_dir() / "opdeck.h"


def test_library_is_of_this_header():
    _, lib = opdeck.abi.lib()
    major, minor = (int(re.search(rf"VERSION_{part} (\d+)", HEADER.read_text())[1]) for part in ("MAJOR", "MINOR"))
    assert lib.opdeck_version() == major << 16 | minor


def test_every_status_of_the_header_has_a_name():
    ffi, lib = opdeck.abi.lib()
    enum = re.search(r"typedef enum opdeck_status \{(.*?)\}", HEADER.read_text(), re.S)[1]
    rows = re.findall(r"OPDECK_(\w+) = (\d+)", enum)
    assert len(rows) == 11
    for name, value in rows:
        assert ffi.string(lib.opdeck_status_name(int(value))).decode() == name
        assert getattr(lib, f"OPDECK_{name}") == int(value)


def test_shim_compiles_from_its_listed_sources_alone(tmp_path: Path):
    for source in opdeck.abi.shim_sources():
        (tmp_path / source.name).write_bytes(source.read_bytes())
    command = ["cc", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fPIC", "-c", "shim.c"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
    assert (tmp_path / "shim.o").is_file()


def test_dtype_numbers_are_those_of_the_packs():
    (pack_header,) = (path for path in opdeck.abi.shim_sources() if path.name == "pack.h")
    rows = re.findall(r"OPDECK_DT_(\w+) = (\d+)", pack_header.read_text())
    assert len(rows) >= 13
    for name, number in rows:
        assert dtype(name.lower()).number == int(number)


def test_import_opens_no_library():
    script = "import opdeck.abi; assert 'libopdeck' not in open('/proc/self/maps').read()"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, env={**os.environ})


def test_emulator_path_follows_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPDECK_EMULATOR_LIB", "/somewhere/libopdeck_emu.so")
    assert opdeck.abi.emulator_path() == Path("/somewhere/libopdeck_emu.so")
