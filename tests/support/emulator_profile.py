# SPDX-License-Identifier: Apache-2.0
"""The counters of the emulator's last session, by ctypes: for the emulator's own tests."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from emulator_driver import Emulator

COUNTS = (
    "completed",
    "blocked",
    "false_polls",
    "macs",
    "global_read_bytes",
    "global_write_bytes",
    "shared_read_bytes",
    "shared_write_bytes",
    "remote_shared_bytes",
    "shared_wavefronts",
    "extra_wavefronts",
    "tmem_read_bytes",
    "tmem_write_bytes",
)


class Row(ctypes.Structure):
    """opdeck_emu_profile_row."""

    _fields_ = [
        *((name, ctypes.c_char_p) for name in ("kernel", "opcode", "pipe")),
        *((name, ctypes.c_uint32) for name in ("launch_idx", "warp_idx", "op_idx", "ptx_line")),
        *((name, ctypes.c_uint64) for name in COUNTS),
    ]


class Profile:
    """The rows, with sums over those that a condition picks."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows

    def sum(self, count: str, where: Callable[[Row], bool] = lambda row: True) -> int:
        return sum(getattr(row, count) for row in self.rows if where(row))

    def pipe(self, name: str) -> int:
        """Instructions of a pipe."""
        return self.sum("completed", lambda row: row.pipe == name.encode())

    def opcode(self, start: str, count: str = "completed") -> int:
        return self.sum(count, lambda row: row.opcode.startswith(start.encode()))


def last_profile(emulator: Emulator) -> Profile:
    rows, num_rows = ctypes.POINTER(Row)(), ctypes.c_uint64()
    emulator.check(emulator.lib.opdeck_emu_last_profile(ctypes.byref(rows), ctypes.byref(num_rows)))
    kept = [Row.from_buffer_copy(rows[i]) for i in range(num_rows.value)]
    return Profile(kept)
