# SPDX-License-Identifier: Apache-2.0
"""cp.async.mbarrier.arrive: an mbarrier that tracks a thread's copies; an mbarrier that a whole warp initialises."""

from __future__ import annotations

import numpy as np
import pytest
from emulator_driver import (
    EAGER,
    LAZY,
    RANDOM,
    READ,
    WRITE,
    Emulator,
    EmulatorError,
    Launch,
    Schedule,
    Tensor,
    run_body,
)

SCHEDULES = [
    Schedule(EAGER, hazards=1),
    Schedule(LAZY, hazards=1),
    *(Schedule(RANDOM, seed, hazards=1) for seed in range(4)),
]
THREADS = 64
DECLARATIONS = """
.shared .align 128 .b8 tile[512];
.shared .align 8 .b64 full;
"""
WAIT = "WAIT: mbarrier.try_wait.parity.shared.b64 %q1, [full], 0;\n @!%q1 bra WAIT;"


def copy(arrive: str, wait: str = WAIT, count: int = THREADS) -> str:
    """Each thread copies two words to shared memory and, past the wait, stores two words that another one copied."""
    return f"""
      mov.u32 %r100, {count};
      setp.lt.u32 %q31, %tid, 32;
      @%q31 mbarrier.init.shared.b64 [full], %r100;
      bar.sync 0;
      mul.lo.u32 %r1, %tid, 4;
      cvt.u64.u32 %d0, %r1;
      add.s64 %d1, %p_0, %d0;
      mov.u32 %r2, tile;
      add.u32 %r3, %r2, %r1;
      cp.async.ca.shared.global [%r3], [%d1], 4;
      cp.async.ca.shared.global [%r3+256], [%d1+256], 4;
      {arrive}
      {wait}
      xor.b32 %r4, %r1, 252;
      add.u32 %r5, %r2, %r4;
      ld.shared.b32 %r6, [%r5];
      ld.shared.b32 %r7, [%r5+256];
      add.s64 %d2, %p_1, %d0;
      st.global.b32 [%d2], %r6;
      st.global.b32 [%d2+256], %r7;
    """


def run(emulator: Emulator, body: str, schedule: Schedule) -> bool:
    x = np.arange(1, 2 * THREADS + 1, dtype=np.uint32)
    y = np.zeros_like(x)
    launch = Launch(block=(THREADS, 1, 1))
    run_body(emulator, body, [Tensor(x, READ), Tensor(y, WRITE)], launch, schedule, declarations=DECLARATIONS)
    return bool((y.reshape(2, -1) == x.reshape(2, -1)[:, ::-1]).all())


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_arrival_comes_when_the_copies_are_done(emulator: Emulator, schedule: Schedule):
    assert run(emulator, copy("cp.async.mbarrier.arrive.noinc.shared.b64 [full];"), schedule)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_incrementing_arrival_leaves_the_count_to_others(emulator: Emulator, schedule: Schedule):
    arrive = "cp.async.mbarrier.arrive.shared.b64 [full];\n mbarrier.arrive.shared.b64 _, [full];"
    assert run(emulator, copy(arrive), schedule)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_second_arrival_counts_too(emulator: Emulator, schedule: Schedule):
    arrive = "cp.async.mbarrier.arrive.noinc.shared.b64 [full];\n" * 2
    assert run(emulator, copy(arrive, count=2 * THREADS), schedule)


def test_missing_wait_is_a_race(emulator: Emulator):
    with pytest.raises(EmulatorError, match="hazard"):
        run(emulator, copy("cp.async.mbarrier.arrive.noinc.shared.b64 [full];", wait=""), Schedule(EAGER, hazards=1))


def test_lanes_of_an_instruction_initialise_once_but_no_later_one_does(emulator: Emulator):
    again = "mbarrier.init.shared.b64 [full], %r100;\n"
    with pytest.raises(EmulatorError, match="already"):
        run(emulator, copy(again), Schedule(EAGER))
