# SPDX-License-Identifier: Apache-2.0
"""cpu.py: the device of the reference variants. Their entries are Python functions on numpy arrays.

Who calls it: operator.py, through device_for.
"""

from __future__ import annotations

from typing import Any

from opdeck.core.arch import CPU
from opdeck.core.arrays import TensorView, as_numpy
from opdeck.core.devices.base import LaunchArgs
from opdeck.core.problem import Target
from opdeck.core.schema import FamilySchema
from opdeck.core.variant import Variant


class CpuDevice:
    name = "cpu"
    memory = "cpu"
    target = Target(CPU.name, num_sms=0)

    def launcher(self, schema: FamilySchema, variant: Variant) -> CpuLauncher:
        return CpuLauncher(variant.make())

    def last_report(self) -> None:
        return None


class CpuLauncher:
    """Calls entry(tensors, scalars, fusion): numpy views by name, and the fusion with numpy leaves."""

    def __init__(self, entry: Any) -> None:
        self._entry = entry

    def prepare(self, args: LaunchArgs) -> None:
        """Nothing is left to do."""

    def __call__(self, args: LaunchArgs) -> None:
        fusion = args.fusion
        if fusion is not None:
            leaves = [as_numpy(leaf) if isinstance(leaf, TensorView) else leaf for leaf in args.leaves]
            fusion = fusion.with_leaves(leaves)
        self._entry({name: as_numpy(tensor) for name, tensor in args.tensors.items()}, args.scalars, fusion)
