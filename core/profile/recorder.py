# SPDX-License-Identifier: Apache-2.0
"""recorder.py: counts what launches on an emulated device do.

Who calls it: core/cli/profile.py (`opdeck run FAMILY --profile`), benchmarks.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

from opdeck.abi import emulator_path
from opdeck.core.devices import Device
from opdeck.core.emulator.library import EmulatorLibrary
from opdeck.core.errors import ArgumentError
from opdeck.core.kernels.topology import RoleTable
from opdeck.core.profile.counts import Profile
from opdeck.core.variant import Variant


class Recorder:
    """The counters of launches on an emulated device.

    Raises: ArgumentError for a device that is none.
    """

    def __init__(self, device: Device) -> None:
        if not device.name.startswith("emulator:"):
            raise ArgumentError("--profile", device.name, "a device that counts: emulator:ARCH")
        self._library = EmulatorLibrary(emulator_path())
        self._arch = device.target.arch

    @contextmanager
    def recording(self) -> Iterator[None]:
        with self._library.counting():
            yield

    def profile(self) -> Profile:
        """Of the last launch."""
        return self._library.last_profile(self._arch)


def declared_roles(variant: Variant) -> RoleTable:
    """The roles that a compiled variant's kernel declares: those of the Config in the module beside it."""
    package = variant.factory.partition(":")[0].rpartition(".")[0]
    config = importlib.import_module(f"{package}.config").Config
    table: RoleTable = config.of(variant).roles
    return table
