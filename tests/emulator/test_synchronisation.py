# SPDX-License-Identifier: Apache-2.0
"""Barriers, asynchronous copies and schedules: what is right passes under all, what lacks a wait fails under some."""

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

TIMEOUT = 702
SCHEDULES = [Schedule(EAGER), Schedule(LAZY), *(Schedule(RANDOM, seed) for seed in range(8))]
DECLARATIONS = """
.shared .align 128 .b8 tile[4096];
.shared .align 8 .b64 full;
.shared .align 8 .b64 empty;
"""
INIT = """
  mov.u32 %r100, 1;
  setp.eq.u32 %q31, %tid, 0;
  @%q31 mbarrier.init.shared.b64 [full], %r100;
  @%q31 fence.mbarrier_init.release.cluster;
  bar.sync 0;
"""


def bulk_copy(waits: bool) -> str:
    """32 words global -> shared by a bulk copy; every thread stores its word."""
    wait = "WAIT: mbarrier.try_wait.parity.shared.b64 %q1, [full], 0;\n @!%q1 bra WAIT;" if waits else ""
    return (
        INIT
        + f"""
      @!%q31 bra COPIED;
      mbarrier.arrive.expect_tx.shared.b64 _, [full], 128;
      mov.u32 %r1, 128;
      cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [tile], [%p_0], %r1, [full];
    COPIED:
      {wait}
      mul.wide.u32 %d0, %tid, 4;
      cvt.u32.u64 %r2, %d0;
      mov.u32 %r3, tile;
      add.u32 %r3, %r3, %r2;
      ld.shared.b32 %r0, [%r3];
      add.s64 %d1, %p_1, %d0;
      st.global.b32 [%d1], %r0;
      bar.sync 0;
      LAST: mbarrier.try_wait.parity.shared.b64 %q2, [full], 0;
      @!%q2 bra LAST;
    """
    )


def run_copy(emulator: Emulator, waits: bool, schedule: Schedule) -> bool:
    x = np.arange(100, 132, dtype=np.uint32)
    x = np.pad(x, 8)[8:40] if x.ctypes.data % 16 else x
    y = np.zeros(32, np.uint32)
    run_body(emulator, bulk_copy(waits), [Tensor(x), Tensor(y, WRITE)], schedule=schedule, declarations=DECLARATIONS)
    return bool((x == y).all())


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_copy_that_waits(emulator: Emulator, schedule: Schedule):
    assert run_copy(emulator, True, schedule)


def test_copy_that_does_not_wait_is_caught(emulator: Emulator):
    def right(schedule: Schedule) -> bool:
        try:
            return run_copy(emulator, False, schedule)
        except EmulatorError:  # a hazard report is as good
            return False

    assert not right(Schedule(LAZY))
    assert not all(right(Schedule(RANDOM, seed)) for seed in range(8))


def test_deadlock_report_names_the_barrier(emulator: Emulator):
    body = INIT + "FOREVER: mbarrier.try_wait.parity.shared.b64 %q1, [full], 0;\n @!%q1 bra FOREVER;"
    for schedule in SCHEDULES:
        with pytest.raises(EmulatorError) as caught:
            run_body(emulator, body, [], Launch(block=(64, 1, 1)), schedule, declarations=DECLARATIONS)
        assert caught.value.code == TIMEOUT
        text = caught.value.text
        assert text.count("waits for mbarrier at shared address") == 2
        assert "for parity 0 (phase 0, 1 of 1 arrivals and 0 bytes pending)" in text
        assert "mbarrier.try_wait.parity.shared.b64" in text
        assert "PTX line" in text


def test_deadlock_at_a_named_barrier(emulator: Emulator):
    body = "setp.lt.u32 %q0, %tid, 32; @%q0 bar.sync 3, 64;"
    with pytest.raises(EmulatorError, match="named barrier 3, 32 of 64 threads arrived") as caught:
        run_body(emulator, body, [], Launch(block=(64, 1, 1)))
    assert caught.value.code == TIMEOUT


def test_named_barriers_arrive_and_sync(emulator: Emulator):
    y = np.zeros(64, np.uint32)
    body = """
      setp.lt.u32 %q0, %tid, 32;
      @%q0 bra PRODUCE;
      bar.sync 2, 64;
      ld.shared.b32 %r0, [tile];
      mul.wide.u32 %d0, %tid, 4;
      add.s64 %d1, %p_0, %d0;
      st.global.b32 [%d1], %r0;
      bra DONE;
    PRODUCE:
      st.shared.b32 [tile], 17;
      bar.arrive 2, 64;
    DONE:
    """
    for schedule in SCHEDULES:
        y[:] = 0
        run_body(emulator, body, [Tensor(y, WRITE)], Launch(block=(64, 1, 1)), schedule, declarations=DECLARATIONS)
        assert (y[32:] == 17).all()
        assert not y[:32].any()


def test_barrier_counts_must_agree(emulator: Emulator):
    body = """
      setp.lt.u32 %q0, %tid, 32;
      @%q0 bar.arrive 1, 64;
      @!%q0 bar.sync 1, 96;
    """
    with pytest.raises(EmulatorError, match="while others arrived at it with"):
        run_body(emulator, body, [], Launch(block=(96, 1, 1)))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("mov.u32 %r0, 0; mbarrier.init.shared.b64 [full], %r0;", "mbarrier.init count 0"),
        ("mbarrier.arrive.shared.b64 _, [full];", "no mbarrier was initialised"),
        (INIT + "mbarrier.arrive.shared.b64 _, [full], 2;", "2 arrivals, but only 1 of 1 are pending"),
        (INIT + "@%q31 mbarrier.init.shared.b64 [full], %r100;", "an mbarrier lives at shared address"),
        ("mbarrier.init.shared.b64 [full+4], 1;", "is not 8-byte aligned"),
        (INIT + "@%q31 mbarrier.inval.shared.b64 [full]; @%q31 mbarrier.arrive.shared.b64 _, [full];", "no mbarrier"),
    ],
)
def test_misuse_of_an_mbarrier(emulator: Emulator, body: str, message: str):
    with pytest.raises(EmulatorError, match=message):
        run_body(emulator, body, [], declarations=DECLARATIONS)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_phases_alternate(emulator: Emulator, schedule: Schedule):
    """Two warps exchange 16 values through one slot, with a full and an empty barrier."""
    y = np.zeros(16, np.uint32)
    body = """
      mov.u32 %r100, 1;
      mov.u32 %r101, 32;
      setp.eq.u32 %q31, %tid, 0;
      @%q31 mbarrier.init.shared.b64 [full], %r100;
      @%q31 mbarrier.init.shared.b64 [empty], %r101;
      bar.sync 0;
      mov.u32 %r1, 0;
      setp.ge.u32 %q0, %tid, 32;
      @%q0 bra CONSUME;
    PRODUCE:
      shr.u32 %r2, %r1, 0;
      and.b32 %r2, %r2, 1;
      xor.b32 %r2, %r2, 1;
    P_WAIT:
      mbarrier.try_wait.parity.shared.b64 %q1, [empty], %r2;
      @!%q1 bra P_WAIT;
      setp.eq.u32 %q2, %tid, 0;
      @%q2 st.shared.b32 [tile], %r1;
      @%q2 mbarrier.arrive.shared.b64 _, [full];
      add.u32 %r1, %r1, 1;
      setp.lt.u32 %q3, %r1, 16;
      @%q3 bra PRODUCE;
      bra DONE;
    CONSUME:
      and.b32 %r2, %r1, 1;
    C_WAIT:
      mbarrier.try_wait.parity.shared.b64 %q1, [full], %r2;
      @!%q1 bra C_WAIT;
      ld.shared.b32 %r3, [tile];
      mbarrier.arrive.shared.b64 _, [empty];
      mul.wide.u32 %d0, %r1, 4;
      add.s64 %d1, %p_0, %d0;
      st.global.b32 [%d1], %r3;
      add.u32 %r1, %r1, 1;
      setp.lt.u32 %q3, %r1, 16;
      @%q3 bra CONSUME;
    DONE:
    """
    run_body(emulator, body, [Tensor(y, WRITE)], Launch(block=(64, 1, 1)), schedule, declarations=DECLARATIONS)
    assert (y == np.arange(16)).all()


def test_cluster_barrier_and_remote_shared_memory(emulator: Emulator):
    y = np.zeros(4, np.uint32)
    body = """
      mov.u32 %r1, %cluster_ctarank;
      add.u32 %r2, %r1, 1;
      and.b32 %r2, %r2, 3;
      mov.u32 %r3, tile;
      mapa.shared::cluster.u32 %r4, %r3, %r2;
      add.u32 %r5, %r1, 50;
      st.shared::cluster.b32 [%r4], %r5;
      barrier.cluster.arrive.release.aligned;
      barrier.cluster.wait.acquire.aligned;
      ld.shared.b32 %r6, [tile];
      mul.wide.u32 %d0, %r1, 4;
      add.s64 %d1, %p_0, %d0;
      st.global.b32 [%d1], %r6;
    """
    for schedule in SCHEDULES:
        launch = Launch(grid=(4, 1, 1), cluster=(4, 1, 1))
        run_body(emulator, body, [Tensor(y, WRITE)], launch, schedule, declarations=DECLARATIONS)
        assert list(y) == [53, 50, 51, 52]


def test_address_in_a_cta_that_the_cluster_does_not_have(emulator: Emulator):
    body = (
        "mov.u32 %r3, tile; mov.u32 %r2, 5; mapa.shared::cluster.u32 %r4, %r3, %r2; ld.shared::cluster.b32 %r5, [%r4];"
    )
    with pytest.raises(EmulatorError, match="names CTA 5 of a cluster of 1"):
        run_body(emulator, body, [], declarations=DECLARATIONS)


def test_exit_while_a_bulk_store_reads_shared_memory(emulator: Emulator):
    y = np.zeros(64, np.uint32)
    y = y[-y.ctypes.data // 4 % 4 :][:32]
    body = """
      mov.u32 %r1, 16;
      st.shared.b32 [tile], 1;
      st.shared.b32 [tile+4], 2;
      st.shared.b32 [tile+8], 3;
      st.shared.b32 [tile+12], 4;
      fence.proxy.async.shared::cta;
      elect.sync %r2|%q0, -1;
      @!%q0 bra DONE;
      cp.async.bulk.global.shared::cta.bulk_group [%p_0], [tile], %r1;
      cp.async.bulk.commit_group;
      {wait}
    DONE:
    """
    tensors = [Tensor(y, WRITE)]
    for schedule in SCHEDULES:
        text = body.format(wait="cp.async.bulk.wait_group.read 0;")
        run_body(emulator, text, tensors, schedule=schedule, declarations=DECLARATIONS)
        assert list(y[:4]) == [1, 2, 3, 4]
    with pytest.raises(EmulatorError, match="exit-with-bulk-read"):
        run_body(emulator, body.format(wait=""), tensors, schedule=Schedule(hazards=1), declarations=DECLARATIONS)


def test_a_barrier_that_nobody_waits_for_any_more_is_a_hazard(emulator: Emulator):
    body = "bar.arrive 2, 64;"
    run_body(emulator, body, [])
    with pytest.raises(EmulatorError, match=r"exit-with-barrier-arrivals.*32 of 64 threads arrived at barrier 2"):
        run_body(emulator, body, [], schedule=Schedule(hazards=1))


def test_watchdog(emulator: Emulator):
    with pytest.raises(EmulatorError, match="watchdog: more than 1000 warp instructions") as caught:
        run_body(emulator, "AGAIN: bra AGAIN;", [], schedule=Schedule(max_warp_instructions=1000))
    assert caught.value.code == TIMEOUT


def test_random_schedules_are_reproducible(emulator: Emulator):
    """The number of polls differs from seed to seed and is the same for the same seed."""
    x, y = np.zeros(64, np.uint32), np.zeros(32, np.uint32)
    x = x[-x.ctypes.data // 4 % 4 :][:32]

    def count(seed: int) -> int:
        report = run_body(
            emulator,
            bulk_copy(True),
            [Tensor(x, READ), Tensor(y, WRITE)],
            schedule=Schedule(RANDOM, seed),
            declarations=DECLARATIONS,
        )
        return int(report.warp_instructions)

    counts = [count(seed) for seed in range(12)]
    assert counts == [count(seed) for seed in range(12)]
    assert len(set(counts)) > 1
