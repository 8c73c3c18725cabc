# SPDX-License-Identifier: Apache-2.0
"""opdeck.core.devices: where kernels run: a GPU, the emulator of one, or (the references) the CPU."""

from opdeck.core.devices.base import Device, LaunchArgs, Launcher, LaunchReport
from opdeck.core.devices.find import device_for, open_device

__all__ = ["Device", "LaunchArgs", "LaunchReport", "Launcher", "device_for", "open_device"]
