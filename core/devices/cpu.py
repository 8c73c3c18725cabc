# SPDX-License-Identifier: Apache-2.0
"""cpu.py: the device of the reference variants. Their entries are Python functions on numpy arrays.

Who calls it: operator.py, through device_for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from opdeck.core.arch import CPU
from opdeck.core.arrays import TensorView, as_numpy, write_packed
from opdeck.core.devices.base import LaunchArgs
from opdeck.core.dtypes import dtype
from opdeck.core.errors import ArgumentError
from opdeck.core.problem import Target
from opdeck.core.schema import FamilySchema
from opdeck.core.variant import Variant


class CpuDevice:
    name = "cpu"
    memory = "cpu"
    target = Target(CPU.name, num_sms=0)

    def can_launch(self, variant: Variant) -> bool:
        return True

    def launcher(self, schema: FamilySchema, variant: Variant) -> CpuLauncher:
        outputs = tuple(arg.name for arg in schema.args if arg.kind == "tensor" and arg.access != "read")
        return CpuLauncher(variant.make(), outputs)

    def cubin_sha256(self, variant: Variant) -> None:
        return None

    def resources(self, variant: Variant) -> None:
        return None

    def last_report(self) -> None:
        return None


class CpuLauncher:
    """Calls entry(tensors, scalars, fusion): numpy views by name, and the fusion with numpy leaves."""

    def __init__(self, entry: Any, outputs: tuple[str, ...]) -> None:
        self._entry = entry
        self._outputs = outputs

    def prepare(self, args: LaunchArgs) -> None:
        """Nothing is left to do."""

    def __call__(self, args: LaunchArgs) -> None:
        fusion = args.fusion
        if fusion is not None:
            leaves = [as_numpy(leaf) if isinstance(leaf, TensorView) else leaf for leaf in args.leaves]
            fusion = fusion.with_leaves(leaves)
        arrays = {name: as_numpy(tensor) for name, tensor in args.tensors.items()}
        self._check_aliases(arrays, args.tensors)
        self._entry(arrays, args.scalars, fusion)
        for name in self._outputs:
            if name in arrays and dtype(args.tensors[name].dtype).bits < 8:
                write_packed(args.tensors[name], arrays[name])

    def _check_aliases(self, arrays: Mapping[str, npt.NDArray[Any]], tensors: Mapping[str, TensorView]) -> None:
        """Refuses an output in another tensor's memory, as libopdeck does."""
        for name in self._outputs:
            for other in arrays:
                if other != name and name in arrays and np.shares_memory(arrays[name], arrays[other]):
                    got = f"the memory of {tensors[other].argument}"
                    raise ArgumentError(tensors[name].argument, got, "memory of its own")
