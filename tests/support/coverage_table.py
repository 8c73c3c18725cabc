# SPDX-License-Identifier: Apache-2.0
"""docs/coverage.md: each instruction that the emulator knows, what of it is decoded, and what tests it.

`python tests/support/coverage_table.py` writes it. Instructions, sections, modifiers, types and targets come from the
emulator's decode functions (opdeck.core.emulator.coverage); tests from the PTX in tests/truth and tests/emulator.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import opdeck.abi
from opdeck.core.emulator.coverage import TYPES, Form, Instruction, forms, instructions
from opdeck.core.emulator.library import DEVICES, EmulatorLibrary

ROOT = Path(__file__).parents[2]
DOC = ROOT / "docs" / "coverage.md"
TRUTH = ROOT / "tests" / "truth"
PTX_TESTS = ROOT / "tests" / "emulator"
HEADER = """# What the emulator knows of PTX

Made by `python tests/support/coverage_table.py` from the emulator's own decode functions, which are asked one opcode
after the other; `tests/emulator/test_coverage.py` holds it to them. Sections are those of the PTX ISA manual, release
9.0. What is not here, or a modifier that is not, stops a kernel when it is loaded, with the PTX line and, where the
instruction is known, the section.

- *modifiers*, *types*: those for which at least one form is accepted, a target behind them where not all of the
  instruction's have them. They are no product: which go together is checked when a kernel is decoded.
- *tests*: `truth` and a number are unit kernels whose answers are an H200's, bit for bit or within a stated bound;
  names are files in tests/emulator with kernels that use the instruction.
- Values in operands (descriptors, tensor maps, masks) have checks of their own, when the instruction executes.

"""


def order(section: str) -> tuple[list[int], str]:
    """Sections in the manual's order."""
    return [int(part) for part in section.split(" ")[0].rstrip(",").split(".")], section


def targets_of(library: EmulatorLibrary, name: str, form: Form) -> tuple[str, ...]:
    return tuple(arch for arch in DEVICES if library.probe(arch, ".".join((name, *form))).accepted)


def listed(modifiers: Iterable[str], targets: dict[str, set[str]]) -> str:
    """The modifiers as code, each with its targets where they are not all of the instruction's.

    Of names that differ in their numbers alone, and are many, the first and the last.
    """
    everywhere = set().union(*targets.values())
    alike: dict[tuple[str, frozenset[str]], list[str]] = {}
    for modifier in modifiers:
        pattern = re.sub(r"n\d+", "n", modifier) if re.match(r"m\d+n\d+k", modifier) else modifier
        alike.setdefault((pattern, frozenset(targets[modifier])), []).append(modifier)
    words = []
    for (_, some), names in alike.items():
        where = f" ({', '.join(sorted(some))})" if some != everywhere else ""
        words.append(f"`.{names[0]}`" + (f" ... `.{names[-1]}` ({len(names)})" if len(names) > 1 else "") + where)
    return " ".join(words)


def table_row(library: EmulatorLibrary, instruction: Instruction, tests: Sequence[str]) -> str:
    """One row, of an instruction that is decoded."""
    targets: dict[str, set[str]] = {}
    for form in forms(library, instruction.name):
        for modifier in form or ("",):
            targets.setdefault(modifier, set()).update(targets_of(library, instruction.name, form))
    types = [modifier for modifier in targets if modifier in TYPES]
    others = [modifier for modifier in targets if modifier and modifier not in TYPES]
    archs = [arch for arch in DEVICES if any(arch in some for some in targets.values())]
    where = "all" if len(archs) == len(DEVICES) else ", ".join(archs)
    cells = (f"`{instruction.name}`", listed(others, targets), listed(types, targets), where, ", ".join(tests))
    return f"| {' | '.join(cells)} |"


class TestTexts:
    """Which kernels of the tests use an instruction."""

    def __init__(self, names: Iterable[str]) -> None:
        sys.path.insert(0, str(TRUTH))
        import elementwise
        import memory_units
        import tensor_units

        self._names = set(names)
        units = (*elementwise.UNITS, *memory_units.UNITS)
        bodies = [unit.body for unit in units]
        bodies += [unit.ptx for unit in (*tensor_units.TMA_UNITS, *tensor_units.WGMMA_UNITS)]
        self._truth = [self.used(body) for body in bodies]
        files = [*PTX_TESTS.glob("test_*.py"), *PTX_TESTS.rglob("*.ptx")]
        refusals = {"test_refusals.py", "test_coverage.py"}  # load kernels that never run
        self._files = {path.name: self.used(path.read_text()) for path in sorted(files) if path.name not in refusals}

    def used(self, text: str) -> set[str]:
        """Instructions of the table that the text has, each as its longest name."""
        found = set()
        for opcode in re.findall(r"(?<![\w.%$])[a-z][a-z0-9]*(?:\.[\w:]+)*", text):
            while opcode and opcode not in self._names:
                opcode = opcode.rpartition(".")[0]
            found.add(opcode)
        return found

    def of(self, name: str) -> list[str]:
        """For the column of tests."""
        truth = sum(name in used for used in self._truth)
        return ([f"truth {truth}"] if truth else []) + [file for file, used in self._files.items() if name in used]


def is_decoded(library: EmulatorLibrary, name: str) -> bool:
    return any("this instruction (" not in library.probe(arch, name).refusal for arch in DEVICES)


def coverage_document() -> str:
    """The whole of docs/coverage.md."""
    library = EmulatorLibrary(opdeck.abi.emulator_path())
    table = instructions(library)
    texts = TestTexts(row.name for row in table)
    decoded = [row for row in table if is_decoded(library, row.name)]
    refused = [row for row in table if row not in decoded]
    text = HEADER + f"{len(decoded)} instructions are decoded, {len(refused)} are refused by name.\n"
    for section in sorted({row.section for row in decoded}, key=order):
        text += f"\n## {section}\n\n| instruction | modifiers | types | targets | tests |\n|---|---|---|---|---|\n"
        rows = [row for row in decoded if row.section == section]
        text += "".join(table_row(library, row, texts.of(row.name)) + "\n" for row in rows)
    text += "\n## Refused by name\n\n"
    for section in sorted({row.section for row in refused}, key=order):
        text += f"- {section}: {' '.join(f'`{row.name}`' for row in refused if row.section == section)}\n"
    return text


if __name__ == "__main__":
    DOC.write_text(coverage_document())
