# SPDX-License-Identifier: Apache-2.0
"""base.py: what a device offers to operators.

Who calls it: operator.py; cpu.py and native.py implement it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from opdeck.core.arrays import TensorView
from opdeck.core.fusion import Fusion
from opdeck.core.problem import Target
from opdeck.core.schema import FamilySchema
from opdeck.core.variant import Variant


@dataclass(frozen=True)
class LaunchArgs:
    """The arguments of one launch. leaves: the fusion's run-time arguments, tensors as views.

    stream: as the user gave it; None is the current one.
    """

    tensors: Mapping[str, TensorView]
    scalars: Mapping[str, float]
    fusion: Fusion | None
    leaves: tuple[TensorView | float | int, ...]
    stream: Any


@dataclass(frozen=True)
class LaunchReport:
    """What the emulator counted in a launch, of num_launches kernels. MACs are those of wgmma and tcgen05.mma."""

    cubin_sha256: str
    num_launches: int
    num_ctas: int
    warp_instructions: int
    mma_macs: int
    tma_load_bytes: int
    tma_store_bytes: int


@dataclass(frozen=True)
class KernelResources:
    """What a CTA of a compiled kernel takes. num_registers: a thread's at launch."""

    smem_bytes: int
    num_registers: int
    num_threads: int


class Launcher(Protocol):
    """A variant ready to run. All calls have tensors of the same signatures."""

    def prepare(self, args: LaunchArgs) -> None:
        """Does all that a first launch would do before it launches."""
        ...

    def __call__(self, args: LaunchArgs) -> None: ...


class Device(Protocol):
    """A place where variants run. name: "cuda:0". memory: where its arrays must be, "cpu" or "cuda:N"."""

    @property
    def name(self) -> str: ...

    @property
    def memory(self) -> str: ...

    @property
    def target(self) -> Target: ...

    def can_launch(self, variant: Variant) -> bool:
        """Whether the variant's kernel is loaded, or could be compiled."""
        ...

    def launcher(self, schema: FamilySchema, variant: Variant) -> Launcher:
        """Gets the variant's kernel: loaded, from the cache, or compiled now."""
        ...

    def cubin_sha256(self, variant: Variant) -> str | None:
        """Hex digits of the hash of the variant's loaded cubin; None where there is none."""
        ...

    def resources(self, variant: Variant) -> KernelResources | None:
        """What the variant's loaded kernel takes; None where there is none."""
        ...

    def last_report(self) -> LaunchReport | None:
        """Counts of the device's last launch; None where nothing counts."""
        ...
