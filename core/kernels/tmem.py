# SPDX-License-Identifier: Apache-2.0
"""Map of tensor memory: named column ranges, and aliases inside them, checked on a CPU.

Called by: each sm100 kernel.py; unit tests.
Source: PTX ISA 9.x, "Tensor Memory" (512 columns of 128 lanes x 32 bits; tcgen05.alloc takes a power of two >= 32).
Limits: whole columns; imports no CuTe DSL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

TMEM_COLS = 512
MIN_ALLOC_COLS = 32


class TmemError(ValueError):
    """A tensor-memory map that does not fit, or whose aliases leave their region."""


@dataclass(frozen=True)
class Alias:
    """`cols` columns from column `offset_cols` of `region`, used at another time or by agreement of the roles."""

    region: str
    offset_cols: int
    cols: int


@dataclass(frozen=True)
class TmemMap:
    """Regions, in column order, each `cols` wide; aliases share columns of a region."""

    regions: Mapping[str, int]
    aliases: Mapping[str, Alias] = field(default_factory=dict)

    def offset(self, name: str) -> int:
        """First column of a region or alias."""
        if name in self.aliases:
            alias = self.aliases[name]
            return self.offset(alias.region) + alias.offset_cols
        column = 0
        for region, cols in self.regions.items():
            if region == name:
                return column
            column += cols
        raise TmemError(f"tensor memory {name!r}: unknown, want one of {[*self.regions, *self.aliases]}")

    @property
    def used_cols(self) -> int:
        return sum(self.regions.values())

    @property
    def alloc_cols(self) -> int:
        """Columns to ask tcgen05.alloc for."""
        return max(MIN_ALLOC_COLS, 1 << (self.used_cols - 1).bit_length())

    def check(self) -> None:
        """Raises TmemError unless everything fits 512 columns and each alias lies inside its region."""
        for name, cols in self.regions.items():
            if cols < 1:
                raise TmemError(f"tensor memory {name!r}: {cols} columns, want at least 1")
        if self.used_cols > TMEM_COLS:
            raise TmemError(f"tensor memory: {self.used_cols} columns {dict(self.regions)}, want at most {TMEM_COLS}")
        for name, alias in self.aliases.items():
            if name in self.regions or alias.region not in self.regions:
                raise TmemError(f"tensor memory alias {name!r} of {alias.region!r}: want a new name of a known region")
            if alias.offset_cols < 0 or alias.offset_cols + alias.cols > self.regions[alias.region]:
                raise TmemError(
                    f"tensor memory alias {name!r}: columns {alias.offset_cols}..{alias.offset_cols + alias.cols}, "
                    f"want inside the {self.regions[alias.region]} of {alias.region!r}"
                )
