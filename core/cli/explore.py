# SPDX-License-Identifier: Apache-2.0
"""explore.py: `opdeck run FAMILY --explore=SECONDS`.

Who calls it: the commands of families.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from opdeck.core.devices import Device, open_device
from opdeck.core.emulator.explore import Outputs, explore
from opdeck.core.errors import ArgumentError

ExploreOption = Annotated[
    float | None,
    typer.Option("--explore", min=1e-3, help="Seconds to run it under other schedules for, comparing bits; emulator."),
]


def print_exploration(where: Device, hazards: str | None, seconds: float, call: Callable[[Device], Outputs]) -> bool:
    """Runs call(device) under one schedule after another and prints what came out; whether all agreed.

    Raises: ArgumentError for a device that is not emulated.
    """
    if not where.name.startswith("emulator:"):
        raise ArgumentError("--explore", where.name, "a device that has schedules: emulator:ARCH")
    found = explore(lambda schedule: call(open_device(where.name, schedule, hazards)), seconds)
    print(f"{'explored':<18}{found}")
    return not found.failure
