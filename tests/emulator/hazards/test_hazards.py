# SPDX-License-Identifier: Apache-2.0
"""Each kind of hazard: a small kernel that is right, and what must be reported when one line of it is not.

The kernels are ptx/*.ptx. Their comments say how a line may be spoilt, or mended another way:
    LINE // needed: KIND              without it, a hazard of that kind is reported (KIND|KIND: either; error: another
                                      one of the emulator's, where the schedule lets it come first)
    LINE // strict: KIND              without it, a hazard of that kind at the strict level; below, nothing
    LINE // dropped: OTHER -> KIND    with OTHER in its place
    // wrong: LINE -> KIND            with this line added
    // strictly wrong: LINE -> KIND   with this line added, at the strict level; below, nothing
    ... // enough: OTHER              OTHER in its place does as well
    LINE // redundant                 without it, every access is ordered as before: the fingerprint stays
    LINE // harmless                  without it, some are not, but nothing is wrong: the fingerprint changes
A kernel that is right is right at the strict level too.
Every kernel runs under the eager, the lazy and the random schedule: a report must not depend on luck.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from emulator_driver import (
    EAGER,
    LAZY,
    RANDOM,
    READ,
    WRITE,
    Emulator,
    EmulatorError,
    Launch,
    Schedule,
    Tensor,
    run,
)

FOLDER = Path(__file__).parent / "ptx"
SCHEDULES = ((EAGER, 0), (LAZY, 0), (RANDOM, 1), (RANDOM, 2))
ON, STRICT = 1, 2
SHAPES = {  # CTAs, threads of a CTA, CTAs of a cluster
    "registers": (1, 64, 1),
    "shared": (1, 64, 1),
    "mbarrier": (1, 64, 1),
    "phases": (1, 64, 1),
    "bulk": (1, 64, 1),
    "bulk_exit": (1, 32, 1),
    "cp_async": (1, 64, 1),
    "cluster": (2, 32, 2),
    "cluster_init": (2, 32, 2),
    "cluster_launch": (3, 32, 1),
    "global": (2, 32, 1),
    "global_reads": (3, 32, 1),
    "tensor_map": (1, 64, 1),
    "tmem": (1, 256, 1),
    "mma": (1, 128, 1),
    "wgmma": (1, 128, 1),
    "wgmma_registers": (1, 128, 1),
}
NUM_WORDS = 64


@dataclass(frozen=True)
class Variant:
    """A kernel as it is run. level: of the hazard checks. kinds: the reports wanted; none where it is right."""

    kernel: str
    name: str
    text: str
    level: int
    kinds: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kernel}: {self.name}{', strict' if self.level == STRICT else ''}"


def spoilt(lines: list[str], idx: int) -> Iterator[tuple[str, str, int, str]]:
    """(name, replacement of the line, level, kinds joined by |) for each annotation of a line."""
    code, *notes = re.sub(r"^\s*// ", " // ", lines[idx]).split(" // ")
    for note in notes:
        if match := re.fullmatch(r"needed: (\S+)", note):
            yield f"without line {idx + 1}: {code.strip()}", "", ON, match[1]
        elif match := re.fullmatch(r"strict: (\S+)", note):
            yield f"accepted without line {idx + 1}: {code.strip()}", "", ON, ""
            yield f"without line {idx + 1}: {code.strip()}", "", STRICT, match[1]
        elif match := re.fullmatch(r"dropped: (.*) -> (\S+)", note):
            yield f"line {idx + 1} dropped: {match[1]}", match[1], ON, match[2]
        elif match := re.fullmatch(r"wrong: (.*) -> (\S+)", note):
            yield f"line {idx + 1} added: {match[1]}", match[1], ON, match[2]
        elif match := re.fullmatch(r"strictly wrong: (.*) -> (\S+)", note):
            yield f"accepted line {idx + 1} added: {match[1]}", match[1], ON, ""
            yield f"line {idx + 1} added: {match[1]}", match[1], STRICT, match[2]
        elif note in ("redundant", "harmless"):
            yield f"{note} line {idx + 1}: {code.strip()}", "", ON, ""
        elif match := re.fullmatch(r"enough: (.*)", note):
            yield f"line {idx + 1} mended: {match[1]}", match[1], ON, ""


def variants(kernel: str) -> Iterator[Variant]:
    text = (FOLDER / f"{kernel}.ptx").read_text()
    yield Variant(kernel, "right", text, ON)
    yield Variant(kernel, "right", text, STRICT)
    lines = text.split("\n")
    for idx in range(len(lines)):
        for name, line, level, kinds in spoilt(lines, idx):
            changed = "\n".join([*lines[:idx], line, *lines[idx + 1 :]])
            yield Variant(kernel, name, changed, level, tuple(filter(None, kinds.split("|"))))


VARIANTS = [variant for path in sorted(FOLDER.glob("*.ptx")) for variant in variants(path.stem)]


def launch(emulator: Emulator, variant: Variant, schedule: tuple[int, int]) -> int:
    """Runs the kernel; the fingerprint of its happens-before order."""
    arch = re.search(r"^\.target (\w+)", variant.text, re.MULTILINE)
    assert arch is not None
    emulator.use_device(arch[1])
    library = emulator.load(variant.text)
    source, target = np.arange(NUM_WORDS, dtype=np.uint32), np.zeros(NUM_WORDS, dtype=np.uint32)
    tensors = [Tensor(source, READ, "source"), Tensor(target, WRITE, "target")]
    num_params = len(re.findall(r"\.param \.u64 \w+[,)]", variant.text))
    pointers = [ctypes.c_uint64(t.array.ctypes.data) for t in tensors[:num_params]]
    grid, block, cluster = SHAPES[variant.kernel]
    shape = Launch((grid, 1, 1), (block, 1, 1), (cluster, 1, 1))
    try:
        options = Schedule(*schedule, hazards=variant.level)
        return run(emulator, library.kernel("hazard_kernel"), shape, pointers, tensors, options).hb_fingerprint
    finally:
        emulator.check(emulator.lib.cuLibraryUnload(library.handle))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_reported_or_right(emulator: Emulator, variant: Variant):
    for schedule in SCHEDULES:
        if not variant.kinds:
            launch(emulator, variant, schedule)
            continue
        with pytest.raises(EmulatorError) as caught:
            launch(emulator, variant, schedule)
        found = re.search(r"hazard \[(.*?)\]", caught.value.text)
        kind = found[1] if found else "error"
        assert kind in variant.kinds, f"{schedule}: {caught.value.text}"


SAME_ACCESSES = [v for v in VARIANTS if not v.kinds and not v.name.startswith("accepted")]


@pytest.mark.parametrize("variant", SAME_ACCESSES, ids=str)
def test_fingerprint_tells_what_is_ordered(emulator: Emulator, variant: Variant):
    right = next(v for v in VARIANTS if v.kernel == variant.kernel)
    is_same = launch(emulator, variant, SCHEDULES[0]) == launch(emulator, right, SCHEDULES[0])
    assert is_same == (not variant.name.startswith("harmless"))


def test_every_kind_has_a_kernel():
    """The kinds are those that the emulator's source can report."""
    source = Path(__file__).parents[3] / "core" / "emulator" / "src" / "hazard"
    text = "".join(path.read_text() for path in sorted(source.glob("*.cpp")))
    kinds = set(re.findall(r'"([a-z]+(?:-[a-z]+)+)"', text))
    assert kinds == {kind for variant in VARIANTS for kind in variant.kinds} - {"error"}


def test_report_names_both_sides(emulator: Emulator):
    (variant,) = [v for v in VARIANTS if v.kernel == "shared" and "added: @%p1 st.shared" in v.name]
    with pytest.raises(EmulatorError) as caught:
        launch(emulator, variant, SCHEDULES[0])
    writer, other = "CTA (0, 0, 0), warp 1", "`st.shared.b32` at PTX line 23 of warp 0, CTA (0, 0, 0)"
    for part in (writer, "PTX line 24", other, "shared address 0x"):
        assert part in caught.value.text
