# SPDX-License-Identifier: Apache-2.0
"""docs/coverage.md is what the emulator's decode functions say, and every instruction in it has a test."""

from __future__ import annotations

import coverage_table
import pytest
from emulator_driver import Emulator, EmulatorError, module_text

import opdeck.abi
from opdeck.core.emulator.coverage import forms, instructions
from opdeck.core.emulator.library import EmulatorLibrary


@pytest.fixture(scope="module")
def library() -> EmulatorLibrary:
    return EmulatorLibrary(opdeck.abi.emulator_path())


def without_tests(document: str) -> list[str]:
    """Without the column of tests, which any new test may change: the command writes it anew."""
    return [line.rsplit("|", 2)[0] if line.startswith("|") else line for line in document.splitlines()]


def test_document_is_what_the_emulator_decodes():
    made = coverage_table.coverage_document()
    command = "python tests/support/coverage_table.py"
    assert without_tests(coverage_table.DOC.read_text()) == without_tests(made), f"run {command}"


def test_every_instruction_has_a_test(library: EmulatorLibrary):
    table = instructions(library)
    texts = coverage_table.TestTexts(row.name for row in table)
    decoded = [row.name for row in table if coverage_table.is_decoded(library, row.name)]
    assert len(decoded) > 100
    assert [name for name in decoded if not texts.of(name)] == []


def test_refused_instructions_name_their_line_and_section(emulator: Emulator, library: EmulatorLibrary):
    refused = [row for row in instructions(library) if not coverage_table.is_decoded(library, row.name)]
    assert refused
    for name, section in refused:
        text = module_text(f"{name}.b32 %r0, %r1;", 0)
        line = text[: text.index(name + ".b32")].count("\n") + 1
        with pytest.raises(EmulatorError) as caught:
            emulator.load(text)
        assert f"PTX line {line}: `{name}.b32`: not supported" in caught.value.text
        assert f'(PTX ISA, "{section}")' in caught.value.text


@pytest.mark.parametrize(
    ("name", "form", "targets"),
    [
        ("add", "rn.ftz.f32x2", ("sm_100a", "sm_103a")),
        ("ld", "global.v8.b32", ("sm_100a", "sm_103a")),
        ("ld", "global.v4.b32", ("sm_90a", "sm_100a", "sm_103a")),
        ("redux", "sync.min.NaN.f32", ("sm_100a", "sm_103a")),
        ("tcgen05.ld", "red.sync.aligned.32x32b.x2.max.f32", ("sm_103a",)),
        ("tcgen05.mma", "cta_group::1.kind::i8", ("sm_100a",)),
        ("wgmma.mma_async", "sync.aligned.m64n256k16.f32.bf16.bf16", ("sm_90a",)),
        ("wgmma.mma_async", "sync.aligned.m64n4k16.f32.bf16.bf16", ()),
        ("shl", "s32", ()),
        *(
            (name, type_, ())
            for name in ("ld.global", "st.global", "mov")
            for type_ in ("f16", "bf16x2", "f32x2", "tf32")
        ),
        *((name, "b8", ()) for name in ("mov", "selp", "setp.eq")),
        ("mov", "pred", ("sm_90a", "sm_100a", "sm_103a")),
        ("selp", "pred", ()),
        ("setp", "lt.b32", ()),
        ("setp", "lo.s32", ()),
        ("setp", "ltu.u32", ()),
        ("setp", "lt.ftz.f16", ()),
        ("set", "lo.u32.s32", ()),
        ("set", "lt.ftz.u32.bf16", ()),
        ("ld", "global.v2.b128", ()),
        ("ld", "global.v8.b16", ()),
        ("ld", "shared.v8.b32", ()),
        ("mad", "rn.f32x2", ()),
        ("add", "ftz.bf16x2", ()),
        ("fma", "rn.sat.bf16", ()),
        ("fma", "rn.sat.relu.f16", ()),
        ("ex2", "approx.ftz.f16", ()),
        ("ex2", "approx.bf16", ()),
        ("ex2", "approx.ftz.bf16", ("sm_90a", "sm_100a", "sm_103a")),
    ],
)
def test_targets_of_a_form(library: EmulatorLibrary, name: str, form: str, targets: tuple[str, ...]):
    assert coverage_table.targets_of(library, name, tuple(form.split("."))) == targets


@pytest.mark.parametrize(
    ("name", "modifiers"),
    [
        ("tcgen05.ld", {"32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2", "x1", "x128", "pack::16b", "red", "NaN"}),
        ("tcgen05.mma", {"kind::f16", "kind::mxf4nvf4", "block_scale", "scale_vec::4X", "cta_group::2"}),
        ("cvt", {"rn", "rna", "rzi", "satfinite", "relu", "e2m1x2", "ue8m0x2", "tf32", "f64", "u8"}),
        ("max", {"NaN", "xorsign", "abs", "s16", "f16x2", "f64"}),
    ],
)
def test_the_search_finds_modifiers_wherever_they_stand(library: EmulatorLibrary, name: str, modifiers: set[str]):
    assert modifiers <= {modifier for form in forms(library, name) for modifier in form}
