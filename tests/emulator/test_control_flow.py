# SPDX-License-Identifier: Apache-2.0
"""Divergence and reconvergence, loops, elect, indexed branches, exits."""

from __future__ import annotations

import numpy as np
import pytest
from emulator_driver import RANDOM, WRITE, Emulator, EmulatorError, Launch, Schedule, Tensor, run_body

STORE = """
  mul.wide.u32 %d0, %tid, 4;
  add.s64 %d1, %p_0, %d0;
  st.global.b32 [%d1], %r0;
"""
LANES = np.arange(32)


def per_lane(emulator: Emulator, body: str, **words: object) -> np.ndarray:
    y = np.full(32, 0xDEAD, np.uint32)
    run_body(emulator, body + STORE, [Tensor(y, WRITE)], **words)  # type: ignore[arg-type]
    return y


def test_both_sides_of_a_branch(emulator: Emulator):
    body = """
      and.b32 %r1, %tid, 1;
      setp.eq.u32 %q0, %r1, 0;
      @%q0 bra EVEN;
      mov.u32 %r0, 100;
      bra JOIN;
    EVEN:
      mov.u32 %r0, 200;
    JOIN:
      add.u32 %r0, %r0, %tid;
    """
    assert (per_lane(emulator, body) == np.where(LANES % 2 == 0, 200, 100) + LANES).all()


def test_lanes_reconverge_behind_a_branch(emulator: Emulator):
    body = """
      setp.lt.u32 %q0, %tid, 5;
      @%q0 bra FEW;
      mov.u32 %r1, 1;
      bra JOIN;
    FEW:
      mov.u32 %r1, 2;
    JOIN:
      activemask.b32 %r0;
    """
    assert (per_lane(emulator, body) == 0xFFFFFFFF).all()


def test_loops_of_different_lengths(emulator: Emulator):
    body = """
      mov.u32 %r0, 0;
      mov.u32 %r1, 0;
    LOOP:
      add.u32 %r0, %r0, %r1;
      add.u32 %r1, %r1, 1;
      setp.le.u32 %q0, %r1, %tid;
      @%q0 bra LOOP;
      shfl.sync.idx.b32 %r2, %r0, 31, 31, -1;
      add.u32 %r0, %r0, %r2;
    """
    triangle = LANES * (LANES + 1) // 2
    assert (per_lane(emulator, body) == triangle + triangle[31]).all()


def test_code_that_lies_behind_the_join(emulator: Emulator):
    """The cold block stands at the end: its lanes come back to a shuffle that the others wait at."""
    body = """
      mov.u32 %r0, 1;
      setp.eq.u32 %q0, %tid, 7;
      @%q0 bra COLD;
    BACK:
      shfl.sync.idx.b32 %r0, %r0, 7, 31, -1;
      bra DONE;
    COLD:
      mov.u32 %r0, 77;
      bra BACK;
    DONE:
    """
    assert (per_lane(emulator, body) == 77).all()


def test_lane_that_waits_for_another_lane_of_its_warp(emulator: Emulator):
    """Forward progress: lane 0 spins until lane 1, behind the loop, arrives."""
    body = """
      mov.u32 %r5, 1;
      setp.eq.u32 %q0, %tid, 0;
      @%q0 mbarrier.init.shared.b64 [barrier], %r5;
      bar.warp.sync -1;
      setp.ne.u32 %q1, %tid, 0;
      @%q1 bra ARRIVE;
    SPIN:
      mbarrier.try_wait.parity.shared.b64 %q2, [barrier], 0;
      @!%q2 bra SPIN;
      mov.u32 %r0, 5;
      bra JOIN;
    ARRIVE:
      setp.eq.u32 %q3, %tid, 1;
      @%q3 mbarrier.arrive.shared.b64 _, [barrier];
      mov.u32 %r0, 6;
    JOIN:
    """
    expected = np.where(LANES == 0, 5, 6)
    declarations = ".shared .align 8 .b64 barrier;"
    assert (per_lane(emulator, body, declarations=declarations) == expected).all()
    for seed in range(4):
        got = per_lane(emulator, body, declarations=declarations, schedule=Schedule(RANDOM, seed))
        assert (got == expected).all()


def test_elect_picks_one_lane(emulator: Emulator):
    body = """
      mov.u32 %r0, 0;
      elect.sync %r1|%q0, -1;
      @%q0 mov.u32 %r0, 1;
    """
    got = per_lane(emulator, body)
    assert got[0] == 1
    assert got.sum() == 1


@pytest.mark.parametrize("launch", [Launch(), Launch(block=(8, 2, 2))])
def test_indexed_branch(emulator: Emulator, launch: Launch):
    body = """
      mov.u32 %r5, %tid.y;
      mov.u32 %r6, %tid.z;
      mad.lo.u32 %r5, %r6, 2, %r5;
      mov.u32 %r7, %ntid.x;
      mad.lo.u32 %tid, %r5, %r7, %tid;
      rem.u32 %r1, %tid, 3;
    TABLE: .branchtargets A, B, C;
      brx.idx %r1, TABLE;
    A: mov.u32 %r0, 10;
      bra JOIN;
    B: mov.u32 %r0, 11;
      bra JOIN;
    C: mov.u32 %r0, 12;
    JOIN:
    """
    assert (per_lane(emulator, body, launch=launch) == 10 + LANES % 3).all()


def test_indexed_branch_out_of_range(emulator: Emulator):
    body = "TABLE: .branchtargets A;\n brx.idx %tid, TABLE;\nA:\n"
    with pytest.raises(EmulatorError, match=r"brx\.idx index 1 of 1 targets"):
        per_lane(emulator, body)


def test_lanes_that_exit_are_not_waited_for(emulator: Emulator):
    y = np.zeros(32, np.uint32)
    body = """
      setp.ge.u32 %q0, %tid, 16;
      @%q0 exit;
      bar.sync 0;
      vote.sync.ballot.b32 %r0, %q0, 0xffff;
      mov.u32 %r0, 9;
    """
    run_body(emulator, body + STORE, [Tensor(y, WRITE)])
    assert (y == np.where(LANES < 16, 9, 0)).all()


def test_guard_false_in_all_lanes_skips(emulator: Emulator):
    body = "mov.u32 %r0, 4; setp.gt.u32 %q0, %tid, 99; @%q0 trap; @!%q0 mov.u32 %r0, 3;"
    assert (per_lane(emulator, body) == 3).all()


def test_shuffle_from_a_lane_that_does_not_take_part(emulator: Emulator):
    body = """
      mov.u32 %r0, 1;
      setp.lt.u32 %q0, %tid, 4;
      @%q0 shfl.sync.idx.b32 %r0, %r0, 9, 31, 0xf;
    """
    with pytest.raises(EmulatorError, match="reads lane 9, which does not execute the shuffle"):
        per_lane(emulator, body)


def test_partial_warp(emulator: Emulator):
    y = np.zeros(40, np.uint32)
    body = "mov.u32 %r0, 1; bar.sync 0;"
    run_body(emulator, body + STORE, [Tensor(y, WRITE)], Launch(block=(40, 1, 1)))
    assert y.sum() == 40


def test_clusters_that_wait_for_later_ones(emulator: Emulator):
    """CTA 0 spins on a flag that the last CTA sets: CTAs must run side by side."""
    flag = np.zeros(1, np.uint32)
    body = """
      mov.u32 %r1, %ctaid.x;
      setp.eq.u32 %q0, %r1, 3;
      @%q0 st.global.b32 [%p_0], 1;
    SPIN:
      ld.acquire.gpu.global.b32 %r2, [%p_0];
      setp.eq.u32 %q1, %r2, 0;
      @%q1 bra SPIN;
    """
    report = run_body(
        emulator, body, [Tensor(flag, 3)], Launch(grid=(4, 1, 1)), Schedule(max_warp_instructions=100_000_000)
    )
    assert report.num_ctas == 4
