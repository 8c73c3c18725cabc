# SPDX-License-Identifier: Apache-2.0
"""Another PTX for a loaded kernel, the last report, the default watchdog: what the mutation gate stands on."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator

import numpy as np
import pytest
from emulator_driver import WRITE, Emulator, EmulatorError, Launch, Schedule, Tensor, module_text, run

from opdeck.abi import emulator_path
from opdeck.core.emulator.library import EmulatorLibrary
from opdeck.core.errors import DriverError


def store(value: int) -> str:
    return module_text(f"mov.u32 %r0, {value}; st.global.b32 [%p_0], %r0;", 1)


class Loaded:
    """The kernel that stores 1, loaded and registered as its own cubin."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self.sha256 = hashlib.sha256(store(1).encode()).hexdigest()
        emulator.register(store(1).encode(), store(1))
        self.library = emulator.load(store(1))
        emulator.use_device("sm_100a")

    def stored(self, schedule: Schedule = Schedule()) -> int:  # noqa: B008 (frozen)
        y = np.zeros(1, np.uint32)
        pointer = ctypes.c_uint64(y.ctypes.data)
        run(self.emulator, self.library.kernel("run"), Launch(block=(1, 1, 1)), [pointer], [Tensor(y, WRITE)], schedule)
        return int(y[0])


@pytest.fixture
def tools() -> EmulatorLibrary:
    return EmulatorLibrary(emulator_path())


@pytest.fixture
def loaded(emulator: Emulator, tools: EmulatorLibrary) -> Iterator[Loaded]:
    loaded = Loaded(emulator)
    yield loaded
    tools.replace_ptx(loaded.sha256, store(1))
    emulator.check(emulator.lib.cuLibraryUnload(loaded.library.handle))


def test_a_loaded_kernel_runs_the_other_text(loaded: Loaded, tools: EmulatorLibrary):
    assert loaded.stored() == 1
    tools.replace_ptx(loaded.sha256, store(2))
    assert loaded.stored() == 2
    tools.replace_ptx(loaded.sha256, store(1))
    assert loaded.stored() == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (store(2).replace("st.global.b32", "st.global.b33"), "b33"),
        (store(2).replace("entry run(", "entry walk("), "no kernel 'run'"),
    ],
    ids=["malformed", "another kernel"],
)
def test_a_text_that_is_refused_changes_nothing(loaded: Loaded, tools: EmulatorLibrary, text: str, reason: str):
    with pytest.raises(DriverError, match=reason):
        tools.replace_ptx(loaded.sha256, text)
    assert loaded.stored() == 1


def test_an_unknown_cubin_has_no_text_to_replace(tools: EmulatorLibrary):
    with pytest.raises(DriverError, match=f"no PTX is registered for the cubin {'0' * 64}"):
        tools.replace_ptx("0" * 64, store(2))


def test_the_last_report_is_that_of_the_session_that_ended(loaded: Loaded, tools: EmulatorLibrary):
    loaded.stored()
    report = tools.last_report()
    assert tools.text(report.cubin_sha256) == loaded.sha256
    assert (report.num_launches, report.num_ctas) == (1, 1)
    assert report.warp_instructions > 0


def test_the_default_watchdog_holds_where_a_session_sets_none(loaded: Loaded, tools: EmulatorLibrary):
    tools.set_defaults(max_warp_instructions=2)
    try:
        with pytest.raises(EmulatorError, match="watchdog: more than 2 warp instructions"):
            loaded.stored(Schedule(max_warp_instructions=0))
        assert loaded.stored(Schedule(max_warp_instructions=1000)) == 1
    finally:
        tools.set_defaults()
    assert loaded.stored(Schedule(max_warp_instructions=0)) == 1
