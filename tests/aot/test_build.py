# SPDX-License-Identifier: Apache-2.0
"""Packs: what is in them, that they are the same every time, and what a build refuses."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
from pathlib import Path

import pytest
from copy_plugin.family import SCHEMA, rows
from packs import SCHEMAS, Pack, build_pack

from opdeck.aot import build, toolchain
from opdeck.core.errors import PackError
from opdeck.core.schema import Rule

PLAIN = rows([None])[0]


def misfit(factory: str, variant_id: str = "copy_misfit"):
    return dataclasses.replace(PLAIN, id=variant_id, factory=f"copy_plugin.misfits:{factory}")


def test_every_variant_is_compiled_once(copy_pack: Pack):
    assert sorted(copy_pack.compiled_ids) == sorted(row.id for row in copy_pack.variants)


def test_manifest_agrees_with_the_dumps(copy_pack: Pack):
    manifest = json.loads(copy_pack.path.with_name("copy.json").read_text())
    assert manifest["sha256"] == hashlib.sha256(copy_pack.path.read_bytes()).hexdigest()
    assert (manifest["name"], manifest["dsl_version"]) == ("copy", toolchain.dsl_version())
    assert [kernel["id"] for kernel in manifest["kernels"]] == [row.id for row in copy_pack.variants]
    for kernel in manifest["kernels"]:
        cubin = (copy_pack.path.parent / "copy.kernels" / f"{kernel['id']}.cubin").read_bytes()
        ptx = (copy_pack.path.parent / "copy.kernels" / f"{kernel['id']}.ptx").read_text()
        assert kernel["cubin_sha256"] == hashlib.sha256(cubin).hexdigest()
        assert f".target {kernel['arch']}" in ptx
        assert f".entry opdeck_{kernel['id']}" in ptx
        assert kernel["num_threads"] == 128
        assert 0 < kernel["num_registers"] <= 255
        pack = copy_pack.path.read_bytes()
        assert cubin in pack
        assert ptx.encode() in pack


def test_pack_exports_one_symbol_and_needs_only_libc(copy_pack: Pack):
    names = subprocess.run(["nm", "-D", "--defined-only", copy_pack.path], capture_output=True, text=True, check=True)
    assert [line.split()[-1] for line in names.stdout.splitlines()] == ["opdeck_pack_v1"]
    dynamic = subprocess.run(["readelf", "-d", copy_pack.path], capture_output=True, text=True, check=True).stdout
    needed = {line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "(NEEDED)" in line}
    assert needed <= {"libc.so.6"}
    assert "RUNPATH" not in dynamic
    assert "RPATH" not in dynamic


def test_pack_has_no_path_of_the_machine(copy_pack: Pack):
    content = copy_pack.path.read_bytes()
    for folder in (Path(__file__).parents[2], copy_pack.path.parent, Path.home() / ".cache"):
        assert str(folder).encode() not in content


def test_a_rebuild_from_nothing_gives_the_same_bytes(copy_pack: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPDECK_CACHE_DIR", str(tmp_path / "another cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUTE_DSL_LINEINFO", "1")  # a user's debugging must not get into packs
    again = build_pack(copy_pack.variants, tmp_path / "another folder")
    assert len(again.compiled_ids) == len(copy_pack.variants)
    assert again.path.read_bytes() == copy_pack.path.read_bytes()


def test_a_second_build_compiles_and_links_nothing(copy_pack: Pack, monkeypatch: pytest.MonkeyPatch):
    def no_link(*_: object) -> Path:
        raise AssertionError("linked again")

    monkeypatch.setattr("opdeck.aot.builder.link_pack", no_link)
    before = copy_pack.path.stat()
    again = build_pack(copy_pack.variants, copy_pack.path.parent)
    assert again.compiled_ids == ()
    assert copy_pack.path.stat().st_mtime_ns == before.st_mtime_ns


def test_a_damaged_pack_is_linked_again(copy_pack: Pack, tmp_path: Path):
    first = build_pack(copy_pack.variants[:2], tmp_path)
    content = first.path.read_bytes()
    first.path.write_bytes(content[:-1])
    assert build_pack(copy_pack.variants[:2], tmp_path).path.read_bytes() == content


def test_other_rules_make_another_pack_of_the_same_kernels(copy_pack: Pack, tmp_path: Path):
    narrower = dataclasses.replace(PLAIN, accept=(*PLAIN.accept, Rule("rows", "le", (7,))))
    first = build_pack((PLAIN,), tmp_path).path.read_bytes()
    second = build_pack((narrower,), tmp_path)
    assert second.compiled_ids == ()
    assert second.path.read_bytes() != first


def test_a_spilling_kernel_is_refused(tmp_path: Path):
    with pytest.raises(PackError, match=r"copy_misfit: opdeck_copy_misfit_0 spills: got a stack frame of \d+ bytes"):
        build([misfit("make_spilling")], SCHEMAS, tmp_path, "misfit")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("make_misnamed", "kernel name: got .*, want opdeck_copy_misfit_N"),
        ("make_failing", "no such tile"),
        ("make_dying", "the compiler process died"),
        ("make_nothing", "cannot be found"),
    ],
)
def test_a_failure_names_the_variant(factory: str, message: str, tmp_path: Path):
    with pytest.raises(PackError, match=rf"(?s)copy_misfit: .*{message}"):
        build([PLAIN, misfit(factory)], SCHEMAS, tmp_path, "misfit")


def test_a_header_that_does_not_fit_the_schema_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """32-bit extents, which the DSL makes of a plain 32-bit symbol, are not what libopdeck passes."""
    from opdeck.aot import compile as compile_module
    from opdeck.aot.compile import CompileRequest, compile_variant

    def narrow(param: compile_module.Param):
        import cutlass
        from cutlass.cute.runtime import make_fake_tensor

        if param.name != "x":
            return make_fake(param)
        strides = (cutlass.cute.sym_int(64, divisibility=4), 1)
        return make_fake_tensor(cutlass.Float32, (cutlass.cute.sym_int(32), 128), stride=strides, assumed_align=16)

    make_fake = compile_module._fake_argument
    monkeypatch.setattr(compile_module, "_fake_argument", narrow)
    with pytest.raises(PackError, match=r"tensor structs of opdeck_copy_\w+: got .*int32_t dynamic_shapes"):
        compile_variant(CompileRequest(SCHEMA, PLAIN, tmp_path))


def test_an_empty_pack_is_refused(tmp_path: Path):
    with pytest.raises(PackError, match="variants of a pack: got none"):
        build([], SCHEMAS, tmp_path, "empty")
