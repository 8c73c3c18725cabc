# SPDX-License-Identifier: Apache-2.0
"""text.py: tables on the terminal, one line a row, never cut or wrapped: they are piped into grep.

Who calls it: main.py and the commands of families.
"""

from __future__ import annotations

from collections.abc import Sequence


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints left-aligned columns under a header."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
