# SPDX-License-Identifier: Apache-2.0
"""devices.py: the device that a command runs on.

Who calls it: the commands of families.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from opdeck.core.devices import Device, open_device
from opdeck.core.devices.find import DEVICE_VARIABLE
from opdeck.core.errors import DriverError

NO_GPU_DEVICE = "emulator:sm_100a"

DeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        help=f"cuda:N, emulator:ARCH or cpu. Default: {DEVICE_VARIABLE}, else a GPU, else {NO_GPU_DEVICE}.",
    ),
]
ScheduleOption = Annotated[
    str | None,
    typer.Option("--schedule", help="When the emulator completes asynchronous work: eager, lazy or random[:SEED]."),
]
HazardsOption = Annotated[
    str | None, typer.Option("--hazards", help="Whether the emulator looks for hazards: on, off, strict.")
]


def command_device(name: str | None, schedule: str | None, hazards: str | None) -> Device:
    """The device named, else that of OPDECK_DEVICE, else a GPU where there is one, else the emulator, and says so."""
    named = name or os.environ.get(DEVICE_VARIABLE)
    if named:
        return open_device(named, schedule, hazards)
    try:
        return open_device("cuda:0")
    except DriverError:
        typer.echo(f"no GPU here: this runs on {NO_GPU_DEVICE}", err=True)
        return open_device(NO_GPU_DEVICE, schedule, hazards)
