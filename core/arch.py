# SPDX-License-Identifier: Apache-2.0
"""arch.py: the architectures that kernels are compiled for, and the CPU, where the references run.

Who calls it: variant rows, selection, devices, opdeck.aot.
"""

from __future__ import annotations

from dataclasses import dataclass

from opdeck.core.errors import ArgumentError


@dataclass(frozen=True)
class Arch:
    """One target. name: of the compiler's --gpu-arch. slug: part of variant ids. number: the rule field "arch"."""

    name: str
    slug: str
    number: int

    @property
    def is_gpu(self) -> bool:
        return self.number != 0


ARCHS: tuple[Arch, ...] = (
    Arch("sm_100a", "sm100a", 100),
    Arch("sm_103a", "sm103a", 103),
    Arch("sm_90a", "sm90a", 90),
    Arch("cpu", "cpu", 0),
)
GPU_ARCHS: tuple[Arch, ...] = tuple(row for row in ARCHS if row.is_gpu)
CPU = ARCHS[-1]


def arch(name: str, argument: str = "arch") -> Arch:
    """The row of a name.

    Raises: ArgumentError naming `argument` when there is none.
    """
    for row in ARCHS:
        if row.name == name:
            return row
    raise ArgumentError(argument, repr(name), "|".join(row.name for row in ARCHS))
