# SPDX-License-Identifier: Apache-2.0
"""profile.py: what a launch of fmha_fwd cost, by warp role, from the emulator's counters.

Who calls it: commands.py (`opdeck run fmha_fwd --profile`), benchmarks/fmha_slots.py.
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
from opdeck.core.profile import Profile
from opdeck.core.profile.report import Table, Work, report
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


def roles(variant: Variant) -> RoleTable:
    """The roles that a compiled variant's kernel declares."""
    package = variant.factory.partition(":")[0].rpartition(".")[0]
    config = importlib.import_module(f"{package}.config").Config
    table: RoleTable = config.of(variant).roles
    return table


def work(variant: Variant, profile: Profile) -> Work:
    """The tiles of scores that a launch visited: S = Q K^T and O = P V of each."""
    tile_m, tile_n = int(variant.config["tile_m"]), int(variant.config["tile_n"])
    d_qk, d_v = int(variant.config["d_qk"]), int(variant.config["d_v"])
    tile_macs = tile_m * tile_n * (d_qk + d_v)
    unit = f"tile of {tile_m} x {tile_n} scores, d {d_qk}" + (f" and {d_v}" if d_v != d_qk else "")
    return Work(unit, profile.sum("macs") // tile_macs)


def lines(variant: Variant, profile: Profile) -> Iterator[Table | str]:
    """The report of a launch."""
    return report(profile, profile.roles(roles(variant)), work(variant, profile))
