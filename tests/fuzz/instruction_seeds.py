# SPDX-License-Identifier: Apache-2.0
"""Seeds of fuzz_ptx_instruction: a file for each form of an instruction that docs/coverage.md is made from.

Usage: python tests/fuzz/instruction_seeds.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import opdeck.abi
from opdeck.core.emulator.coverage import forms, instructions
from opdeck.core.emulator.library import DEVICES, EmulatorLibrary


def write_seeds(folder: Path) -> int:
    """How many."""
    folder.mkdir(parents=True, exist_ok=True)
    library = EmulatorLibrary(opdeck.abi.emulator_path())
    count = 0
    for instruction in instructions(library):
        for form in forms(library, instruction.name):
            opcode = ".".join((instruction.name, *form))
            targets = [arch for arch in DEVICES if library.probe(arch, opcode).accepted]
            if targets:
                (folder / f"{count:05}").write_text(f"{targets[0]} {opcode}\n")
                count += 1
    return count


if __name__ == "__main__":
    print(write_seeds(Path(sys.argv[1])), "seeds")
