# SPDX-License-Identifier: Apache-2.0
"""find.py: from a device string, or from where the arrays are, to a device.

Who calls it: operator.py for each call; the CLI.
Order: the `device` argument, then OPDECK_DEVICE, then the arrays' device.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable

from opdeck.core.arch import GPU_ARCHS
from opdeck.core.arrays import TensorView
from opdeck.core.devices.base import Device
from opdeck.core.devices.cpu import CpuDevice
from opdeck.core.errors import ArgumentError, ArgumentTypeError

DEVICE_VARIABLE = "OPDECK_DEVICE"
EMULATED = tuple(f"emulator:{row.name}" for row in GPU_ARCHS)


def device_for(device: Device | str | None, tensors: Iterable[TensorView]) -> Device:
    """The device of a call, which all tensors must be on.

    Raises: ArgumentError naming the tensor that is elsewhere, or the device that is none.
    """
    views = list(tensors)
    found = _open_any(device if device is not None else os.environ.get(DEVICE_VARIABLE) or _common_device(views))
    for tensor in views:
        if tensor.device != found.memory:
            want = f"one on {found.memory}, for device {found.name}"
            raise ArgumentError(tensor.argument, f"an array on {tensor.device}", want)
    return found


def _open_any(device: Device | str) -> Device:
    if isinstance(device, str):
        return open_device(device)
    if not hasattr(device, "launcher"):
        raise ArgumentTypeError("device", repr(device), "a device string or a Device")
    return device


def _common_device(tensors: list[TensorView]) -> str:
    first = tensors[0]
    for tensor in tensors:
        if tensor.device != first.device:
            want = f"one on {first.device}, as {first.argument} is"
            raise ArgumentError(tensor.argument, f"an array on {tensor.device}", want)
    return first.device


def open_device(name: str, schedule: str | None = None, hazards: str | None = None) -> Device:
    """The device of a string: "cuda:N", "emulator:sm_100a|sm_103a|sm_90a" or "cpu".

    schedule ("eager", "lazy", "random[:SEED]") and hazards ("on", "off", "strict") are the emulator's; None takes
    OPDECK_SCHEDULE and OPDECK_HAZARDS.
    Raises: ArgumentError for a string that is none, DriverError when there is no such device here.
    """
    if not isinstance(name, str):
        raise ArgumentTypeError("device", repr(name), "a device string")
    for argument, text in (("schedule", schedule), ("hazards", hazards)):
        if text is not None and not isinstance(text, str):
            raise ArgumentTypeError(argument, repr(text), "a str or None")
    return _opened(name, schedule, hazards)


@functools.lru_cache(maxsize=64)
def _opened(name: str, schedule: str | None, hazards: str | None) -> Device:
    if name == "cpu":
        return CpuDevice()
    from opdeck.core.devices.native import NativeDevice  # loads libopdeck

    if re.fullmatch(r"cuda:\d+", name):
        return NativeDevice(name, memory=name)
    if name in EMULATED:
        return NativeDevice(name, memory="cpu", schedule=schedule, hazards=hazards)
    raise ArgumentError("device", repr(name), "|".join(("cuda:N", *EMULATED, "cpu")))
