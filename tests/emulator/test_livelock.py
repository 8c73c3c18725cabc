# SPDX-License-Identifier: Apache-2.0
"""Warps that poll: asynchronous work goes on beside them, and what nobody will change is reported as a livelock."""

from __future__ import annotations

import numpy as np
import pytest
from emulator_driver import (
    EAGER,
    LAZY,
    RANDOM,
    READWRITE,
    WRITE,
    Emulator,
    EmulatorError,
    Launch,
    Schedule,
    Tensor,
    run_body,
)

TIMEOUT = 702
MAX_WARP_INSTRUCTIONS = 200_000  # a livelock is found long before
SCHEDULES = [
    Schedule(kind, seed, MAX_WARP_INSTRUCTIONS) for kind, seed in ((EAGER, 0), (LAZY, 0), (RANDOM, 1), (RANDOM, 2))
]
DECLARATIONS = """
.shared .align 128 .b8 tile[128];
.shared .align 8 .b64 full;
.shared .align 4 .b32 flag;
"""
INIT = """
  setp.eq.u32 %q31, %tid, 0;
  @%q31 mbarrier.init.shared.b64 [full], 1;
  @%q31 st.shared.u32 [flag], 0;
  bar.sync 0;
"""
TEST_WAIT = "POLL: mbarrier.test_wait.parity.shared.b64 %q1, [full], 0;\n nanosleep.u32 20;\n @!%q1 bra POLL;"
VOLATILE = "POLL: ld.volatile.shared.u32 %r1, [flag];\n setp.eq.u32 %q1, %r1, 0;\n @%q1 bra POLL;"
LOCK = "POLL: atom.shared.cas.b32 %r1, [flag], 1, 2;\n setp.ne.u32 %q1, %r1, 1;\n @%q1 bra POLL;"
ONE_LANE = "setp.ne.u32 %q2, %tid, 0;\n @%q2 bra DONE;\n" + VOLATILE + "DONE: bar.warp.sync 0xffffffff;"


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("hazards", [0, 1])
def test_copy_completes_while_all_poll(emulator: Emulator, schedule: Schedule, hazards: int):
    """Under lazy nothing else makes the copy complete."""
    x, y = np.arange(64, dtype=np.uint32), np.zeros(32, np.uint32)
    x = x[-(x.ctypes.data // 4) % 4 :][:32]  # a bulk copy wants 16 bytes
    body = (
        INIT
        + """
      @%q31 mbarrier.arrive.expect_tx.shared.b64 _, [full], 128;
      @%q31 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [tile], [%p_0], 128, [full];
    """
        + TEST_WAIT
        + """
      mul.wide.u32 %d0, %tid, 4;
      mov.u64 %d1, tile;
      add.s64 %d1, %d1, %d0;
      ld.shared.u32 %r0, [%d1];
      add.s64 %d2, %p_1, %d0;
      st.global.u32 [%d2], %r0;
    """
    )
    options = Schedule(schedule.kind, schedule.seed, MAX_WARP_INSTRUCTIONS, hazards)
    run_body(emulator, body, [Tensor(x), Tensor(y, WRITE)], schedule=options, declarations=DECLARATIONS)
    assert (x == y).all()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize(
    ("poll", "words"),
    [
        (TEST_WAIT, "`mbarrier.test_wait.parity.shared.b64` of PTX line"),
        (TEST_WAIT, "for parity 0 (phase 0, 1 of 1 arrivals and 0 bytes pending)"),
        (VOLATILE, "`ld.volatile.shared.u32` of PTX line"),
        (LOCK, "`atom.shared.cas.b32` of PTX line"),
        (ONE_LANE, "lanes 0xfffffffe stand at PTX line"),
    ],
    ids=["test_wait", "its mbarrier", "volatile", "lock", "one lane"],
)
def test_livelock_names_what_is_polled(emulator: Emulator, schedule: Schedule, poll: str, words: str):
    with pytest.raises(EmulatorError, match="livelock: each warp waits, or polls what no other will") as caught:
        run_body(emulator, INIT + poll, [], Launch(block=(32, 1, 1)), schedule, declarations=DECLARATIONS)
    assert caught.value.code == TIMEOUT
    assert "` polls `" in caught.value.text
    assert words in caught.value.text


def test_waits_and_polls_are_told_apart(emulator: Emulator):
    body = INIT + "setp.lt.u32 %q0, %tid, 32; @%q0 bar.sync 3, 64; @%q0 bra END;" + VOLATILE + "END:"
    with pytest.raises(EmulatorError, match="livelock") as caught:
        run_body(emulator, body, [], Launch(block=(64, 1, 1)), SCHEDULES[0], declarations=DECLARATIONS)
    assert caught.value.text.count("` polls `") == 1
    assert caught.value.text.count(" waits for named barrier 3") == 1


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_poll_sees_a_plain_store(emulator: Emulator, schedule: Schedule):
    """The writer works for longer than it takes to find out that the others poll."""
    y = np.zeros(64, np.uint32)
    body = (
        INIT
        + """
      setp.ge.u32 %q0, %tid, 32;
      @%q0 bra POLL;
      mov.u32 %r2, 0;
    WORK:
      add.u32 %r2, %r2, 1;
      setp.lt.u32 %q3, %r2, 3000;
      @%q3 bra WORK;
      @%q31 st.volatile.shared.u32 [flag], %r2;
    """
        + VOLATILE
        + """
      mul.wide.u32 %d0, %tid, 4;
      add.s64 %d1, %p_0, %d0;
      st.global.u32 [%d1], %r1;
    """
    )
    run_body(emulator, body, [Tensor(y, WRITE)], Launch(block=(64, 1, 1)), schedule, declarations=DECLARATIONS)
    assert (y == 3000).all()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_clusters_answer_each_other(emulator: Emulator, schedule: Schedule):
    """Two CTAs pass a counter to and fro in global memory: each polls while the other one works."""
    x, y = np.zeros(1, np.uint32), np.zeros(2, np.uint32)
    body = """
      mov.u32 %r0, %ctaid.x;
      mov.u32 %r1, %r0;
    POLL:
      ld.relaxed.gpu.global.u32 %r2, [%p_0];
      setp.ne.u32 %q0, %r2, %r1;
      @%q0 bra POLL;
      add.u32 %r2, %r2, 1;
      setp.ne.u32 %q1, %tid, 0;
      @%q1 bra SENT;
      st.relaxed.gpu.global.u32 [%p_0], %r2;
    SENT:
      add.u32 %r1, %r1, 2;
      setp.lt.u32 %q2, %r1, 20;
      bar.warp.sync 0xffffffff;
      @%q2 bra POLL;
      mul.wide.u32 %d0, %r0, 4;
      add.s64 %d1, %p_1, %d0;
      @!%q1 st.global.u32 [%d1], %r1;
    """
    x[0] = 0
    run_body(emulator, body, [Tensor(x, READWRITE), Tensor(y, WRITE)], Launch(grid=(2, 1, 1)), schedule)
    assert list(y) == [20, 21]
    assert x[0] == 20


@pytest.mark.parametrize(
    "poll",
    [
        "POLL: add.u32 %r2, %r2, 1;\n ld.volatile.shared.u32 %r1, [flag];\n setp.lt.u32 %q1, %r2, 5000;\n"
        " @%q1 bra POLL;",
        "mov.u32 %r3, %clock;\nPOLL: mov.u32 %r2, %clock;\n sub.u32 %r2, %r2, %r3;\n setp.lt.u32 %q1, %r2, 5000;\n"
        " @%q1 bra POLL;",
        "POLL: atom.shared.add.u32 %r2, [flag], 1;\n setp.lt.u32 %q1, %r2, 5000;\n @%q1 bra POLL;",
    ],
    ids=["counts", "reads the clock", "changes memory"],
)
def test_loops_that_end_are_no_livelock(emulator: Emulator, poll: str):
    for schedule in SCHEDULES:
        body = INIT + "mov.u32 %r2, 0;\n" + poll
        options = Schedule(schedule.kind, schedule.seed, 2_000_000)
        run_body(emulator, body, [], schedule=options, declarations=DECLARATIONS)
