# SPDX-License-Identifier: Apache-2.0
"""explore(): what only some schedules show is found, and named so that it can be run again."""

from __future__ import annotations

import numpy as np
import pytest
from emulator_driver import WRITE, Emulator, EmulatorError, Launch, Tensor, run_body
from emulator_driver import Schedule as Options

from opdeck.core.emulator import explore
from opdeck.core.emulator.library import Schedule
from opdeck.core.errors import ArgumentError, HazardError

DECLARATIONS = ".shared .align 4 .b32 last;"
# The warp that stores last; eager and lazy run them in order.
RACE = """
  shr.u32 %r0, %tid, 5;
  st.shared.u32 [last], %r0;
  bar.sync 0;
  ld.shared.u32 %r1, [last];
  setp.eq.u32 %q0, %tid, 0;
  @%q0 st.global.u32 [%p_0], %r1;
"""
# ... which hangs when that is warp 0.
HANG = RACE.replace(
    "bar.sync 0;\n", "bar.sync 0;\nHANG: ld.shared.u32 %r1, [last];\nsetp.eq.u32 %q1, %r1, 0;\n@%q1 bra HANG;\n"
)
# Warps that write words of their own in any order.
APART = """
  mul.wide.u32 %d0, %tid, 4;
  add.s64 %d1, %p_0, %d0;
  st.global.u32 [%d1], %tid;
"""


class Subject:
    """Runs a body of two warps; under: the schedules so far."""

    def __init__(self, emulator: Emulator, body: str, hazards: int) -> None:
        self.emulator, self.body, self.hazards = emulator, body, hazards
        self.under: list[str] = []

    def __call__(self, text: str) -> list[np.ndarray]:
        self.under.append(text)
        schedule, y = Schedule.parse(text), np.zeros(64, np.uint32)
        options = Options(Schedule.NAMES.index(schedule.name), schedule.seed, hazards=self.hazards)
        launch = Launch(block=(64, 1, 1))
        try:
            run_body(self.emulator, self.body, [Tensor(y, WRITE)], launch, options, declarations=DECLARATIONS)
        except EmulatorError as error:
            raise HazardError(error.text) from error
        return [y]


def test_goes_on_until_the_time_is_up(emulator: Emulator):
    subject = Subject(emulator, APART, hazards=1)
    found = explore(subject, 0.2)
    assert found.failure == ""
    assert list(found.schedules) == subject.under
    assert subject.under[:4] == ["eager", "lazy", "random:1", "random:2"]
    assert found.seconds >= 0.2
    assert found.num_orders == 1
    assert "the same bits under all" in str(found)


def test_a_result_that_some_seeds_change(emulator: Emulator):
    subject = Subject(emulator, RACE, hazards=0)
    found = explore(subject, 60)
    assert found.schedules[:3] == ("eager", "lazy", "random:1")
    assert "1 elements of output 0 differ, first (0,): 0, under eager 1" in found.failure
    assert f"--schedule={found.schedules[-1]}" in str(found)
    values = [int(subject(schedule)[0][0]) for schedule in found.schedules]
    assert values == [1] * (len(values) - 1) + [0]  # the schedule named is the one that shows it


def test_a_hang_that_some_seeds_show(emulator: Emulator):
    found = explore(Subject(emulator, HANG, hazards=0), 60)
    assert "livelock" in found.failure
    assert found.schedules[-1].startswith("random:")


def test_a_hazard_is_found_at_once(emulator: Emulator):
    found = explore(Subject(emulator, RACE, hazards=1), 60)
    assert found.schedules == ("eager",)
    assert "shared-race" in found.failure


def test_orders_are_counted(emulator: Emulator):
    """A strong store that another warp reads before or after: two orders."""
    body = """
      setp.eq.u32 %q0, %tid, 0;
      @%q0 st.volatile.shared.u32 [last], 1;
      bar.sync 0;
      setp.eq.u32 %q1, %tid, 32;
      @%q1 st.volatile.shared.u32 [last], 2;
      @%q0 ld.volatile.shared.u32 %r1, [last];
    """
    found = explore(Subject(emulator, body, hazards=1), 0.3)
    assert found.failure == ""
    assert found.num_orders == 2


def test_time_must_be_positive(emulator: Emulator):
    with pytest.raises(ArgumentError, match="seconds"):
        explore(Subject(emulator, APART, hazards=0), 0)
