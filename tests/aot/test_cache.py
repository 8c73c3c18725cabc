# SPDX-License-Identifier: Apache-2.0
"""The cache: what changes a key and what does not, `ensure`, and processes that build the same at once."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from copy_plugin.family import NUM_COLS, SCHEMA, Affine, rows

from opdeck.aot import ensure, toolchain
from opdeck.aot.cache import kernel_key
from opdeck.aot.compile import CompileRequest
from opdeck.aot.worker import compile_all
from opdeck.core.errors import PackError
from opdeck.core.fusion.identity import source_hashes
from opdeck.core.schema import Rule

PLAIN = rows([None])[0]


def key(**changes: object) -> str:
    return kernel_key(CompileRequest(SCHEMA, dataclasses.replace(PLAIN, **changes), Path()))


def test_key_depends_on_what_the_kernel_depends_on():
    keys = [
        key(),
        key(config={"num_threads": 64}),
        key(arch="sm_90a"),
        key(dtype="fp16"),
        key(static_dims={}),
        key(factory="copy_plugin.misfits:make_misnamed"),
        key(fusion=Affine(np.zeros(NUM_COLS, np.float32))),
    ]
    assert len(set(keys)) == len(keys)


def test_key_does_not_depend_on_acceptance_or_leaf_values():
    assert key(accept=(Rule("rows", "le", (7,)),)) == key()
    affine = Affine(np.zeros(NUM_COLS, np.float32), num_times=1)
    assert key(fusion=affine) == key(fusion=Affine(np.ones(NUM_COLS, np.float32), num_times=5))


def test_key_depends_on_the_dsl_version_and_on_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    module = tmp_path / "edited_kernel.py"
    module.write_text("import edited_helper\ndef make(variant): ...\n")
    helper = tmp_path / "edited_helper.py"
    helper.write_text("WIDTH = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    keys = []
    for width in (1, 2, 1):
        helper.write_text(f"WIDTH = {width}\n")
        importlib.invalidate_caches()
        source_hashes.cache_clear()
        keys.append(key(factory="edited_kernel:make"))
    assert keys[0] != keys[1]
    assert keys[0] == keys[2]
    monkeypatch.setattr(toolchain, "dsl_version", lambda: "4.8.99")
    assert key(factory="edited_kernel:make") != keys[2]


def test_ensure_compiles_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPDECK_CACHE_DIR", str(tmp_path))
    pack = ensure(PLAIN, SCHEMA)
    assert pack.name == f"{PLAIN.id}.opdeck.so"
    content, made = pack.read_bytes(), pack.stat().st_mtime_ns
    assert ensure(PLAIN, SCHEMA) == pack
    assert (pack.read_bytes(), pack.stat().st_mtime_ns) == (content, made)


def test_processes_that_build_the_same_at_once_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPDECK_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "support"))
    script = (
        "from copy_plugin.family import SCHEMA, rows\n"
        "from opdeck.aot import ensure\n"
        "print(ensure(rows([None])[0], SCHEMA))\n"  # not under `if __name__`: any script may do so
    )
    command = [sys.executable, "-c", script]
    racers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) for _ in range(3)]
    paths = {racer.communicate(timeout=300)[0].strip() for racer in racers}
    assert [racer.returncode for racer in racers] == [0, 0, 0]
    assert len(paths) == 1
    assert Path(paths.pop()).stat().st_size > 0
    assert not [path for path in tmp_path.rglob(".*")]


def test_a_failed_compile_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPDECK_CACHE_DIR", str(tmp_path))
    row = dataclasses.replace(PLAIN, id="copy_misfit", factory="copy_plugin.misfits:make_failing")
    with pytest.raises(PackError, match="no such tile"):
        ensure(row, SCHEMA)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_fusion_of_the_program_that_runs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A compiler process does not run the caller's program, so it has no such class."""
    affine = Affine(np.zeros(NUM_COLS, np.float32)).without_values()
    monkeypatch.setattr(Affine, "__module__", "__main__")
    request = CompileRequest(SCHEMA, dataclasses.replace(PLAIN, fusion=affine), tmp_path)
    with pytest.raises(PackError, match="got Affine, a class of the program that runs, want one of a module that"):
        list(compile_all([request], num_jobs=1))


def test_a_missing_compiler_is_named_before_anything_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPDECK_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("OPDECK_CC", "no-such-compiler")
    with pytest.raises(PackError, match="OPDECK_CC: got 'no-such-compiler', want the command of a C compiler"):
        ensure(PLAIN, SCHEMA)
    monkeypatch.setenv("OPDECK_CC", "cc '")
    with pytest.raises(PackError, match=r"OPDECK_CC: got .*, want the command of a C compiler .No closing quotation"):
        ensure(PLAIN, SCHEMA)
    monkeypatch.delenv("OPDECK_CC")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PackError, match="found no cc, gcc or clang; set OPDECK_CC"):
        ensure(PLAIN, SCHEMA)


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OPDECK_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(PackError, match=r"writing a pack: .*file.* .compiled kernels are kept in OPDECK_CACHE_DIR"):
        ensure(PLAIN, SCHEMA)


def test_a_missing_dsl_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(toolchain, "DSL_DISTRIBUTION", "no-such-dsl")
    with pytest.raises(PackError, match=r"needs no-such-dsl, which is not installed: pip install 'opdeck\[jit\]'"):
        key()
