# SPDX-License-Identifier: Apache-2.0
"""What the Python side of libopdeck does by itself: streams, packs of entry points, statuses as exceptions."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from opdeck.core import arrays
from opdeck.core.devices.native import NativeDevice, PackWarning, _error, stream_address
from opdeck.core.devices.workspaces import Workspaces
from opdeck.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    DriverError,
    HazardError,
    OpdeckError,
    PackError,
    Unsupported,
)

OFFLINE = "offline:sm_100a"


@pytest.mark.parametrize(
    ("stream", "address"),
    [
        (None, 0),
        (7, 7),
        (SimpleNamespace(cuda_stream=9), 9),
        (SimpleNamespace(__cuda_stream__=lambda: (0, 11)), 11),
        (SimpleNamespace(__cuda_stream__=(0, 13)), 13),
    ],
)
def test_streams(stream: Any, address: int) -> None:
    tensors = {"q": arrays.view(np.zeros(4, np.float32), "q")}
    assert stream_address(stream, tensors) == address


def test_what_is_no_stream_is_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="stream: got str, want an int, or an object with cuda_stream"):
        stream_address("0", {})


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((1, ArgumentError), (2, Unsupported), (3, DriverError), (4, DriverError), (5, DriverError)),
        *((6, PackError), (7, PackError), (8, HazardError), (9, OpdeckError), (10, OpdeckError)),
    ],
)
def test_statuses_are_exceptions_with_the_librarys_message(status: int, kind: type[OpdeckError]) -> None:
    text = "q: got 96, want 64|128"
    error = _error(status, text)
    assert type(error) is kind
    assert str(error) == text


def test_packs_of_entry_points_are_found_and_a_broken_one_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some_packs").mkdir()
    (tmp_path / "some_packs" / "broken.opdeck.so").write_bytes(b"no ELF")
    distribution = tmp_path / "some_packs-1.0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: some-packs\nVersion: 1.0\n")
    (distribution / "entry_points.txt").write_text("[opdeck.packs]\nsome = some_packs\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(PackWarning, match=r"pack .*some_packs/broken\.opdeck\.so was skipped: ") as caught:
        NativeDevice(OFFLINE, memory="cpu")
    assert len(caught) == 1


def test_packs_that_the_library_skips_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad.opdeck.so").write_bytes(b"no ELF")
    monkeypatch.setenv("OPDECK_PACK_PATH", str(tmp_path))
    with pytest.warns(PackWarning, match=r"packs were skipped: .*bad\.opdeck\.so"):
        NativeDevice(OFFLINE, memory="cpu")


def test_schedules_and_hazards_are_checked() -> None:
    with pytest.raises(ArgumentError, match=r"hazards: got 'maybe', want on\|off\|strict"):
        NativeDevice("emulator:sm_100a", memory="cpu", hazards="maybe")
    with pytest.raises(ArgumentError, match="schedule"):
        NativeDevice("emulator:sm_100a", memory="cpu", schedule="whenever")


def test_the_process_ends_well_with_devices_alive() -> None:
    """At exit Python unloads libopdeck and frees contexts in no order that it promises."""
    code = f"from opdeck.core.devices.native import NativeDevice; kept = NativeDevice({OFFLINE!r}, memory='cpu')"
    for _ in range(3):
        assert subprocess.run([sys.executable, "-c", code], check=False, env=dict(os.environ)).returncode == 0


def test_a_workspace_is_kept_for_a_thread_and_a_stream() -> None:
    workspaces, like = Workspaces(), arrays.view(np.zeros(4, np.float32), "q")
    first = workspaces.address(100, 0, like)
    assert first % 256 == 0
    assert workspaces.address(60, 0, like) == first
    assert workspaces.address(100, 7, like) != first
    elsewhere: list[int] = []
    thread = threading.Thread(target=lambda: elsewhere.append(workspaces.address(100, 0, like)))
    thread.start()
    thread.join()
    assert elsewhere[0] not in (0, first)
    larger = workspaces.address(1000, 0, like)
    ctypes.memset(larger, 0, 1000)
    ctypes.memset(first, 0, 100)  # a launch under way may still use it
    assert workspaces.address(1000, 0, like) == larger != first
