# SPDX-License-Identifier: Apache-2.0
"""Limits of the hazard checks: a kernel that exceeds one is stopped, never waved through; and what has none."""

from __future__ import annotations

import numpy as np
import pytest
from emulator_driver import EAGER, LAZY, WRITE, Emulator, EmulatorError, Launch, Schedule, Tensor, run_body

ON = 1


def launch(emulator: Emulator, body: str, declarations: str, num_threads: int = 32, kind: int = EAGER) -> None:
    y = np.zeros(1 << 14, np.uint32)
    y = y[-(y.ctypes.data // 4) % 4 :]  # bulk copies want 16 bytes
    options = Schedule(kind, hazards=ON)
    shape = Launch(block=(num_threads, 1, 1))
    run_body(emulator, body, [Tensor(y, WRITE)], shape, options, declarations=declarations)


GROUPS = """
  setp.ne.u32 %q0, %tid, 0;
  @%q0 bra END;
  mov.u32 %r0, 0;
  st.shared.v4.u32 [tile], {{%r0, %r0, %r0, %r0}};
  st.shared.v4.u32 [other], {{%r0, %r0, %r0, %r0}};
  fence.proxy.async.shared::cta;
  cp.async.bulk.global.shared::cta.bulk_group [%p_0], [tile], 16;
  cp.async.bulk.commit_group;
  mov.u64 %d0, %p_0;
OTHERS:
  add.s64 %d0, %d0, 16;
  cp.async.bulk.global.shared::cta.bulk_group [%d0], [other], 16;
  cp.async.bulk.commit_group;
  add.u32 %r0, %r0, 1;
  setp.lt.u32 %q2, %r0, 300;
  @%q2 bra OTHERS;
  cp.async.bulk.wait_group.read {allowed};
  st.shared.u32 [tile], %r0;
  cp.async.bulk.wait_group 0;
END:
"""
TILES = ".shared .align 16 .b8 tile[16];\n.shared .align 16 .b8 other[16];"


@pytest.mark.parametrize("kind", [EAGER, LAZY])
def test_a_wait_may_allow_many_groups(emulator: Emulator, kind: int):
    launch(emulator, GROUPS.format(allowed=300), TILES, kind=kind)
    with pytest.raises(EmulatorError, match="shared-race"):
        launch(emulator, GROUPS.format(allowed=301), TILES, kind=kind)


def test_a_barrier_may_be_used_again_before_all_have_left_it(emulator: Emulator):
    """Warps 2 and 3 complete two generations of barrier 1 while warp 0 has not come out of the one before."""
    words = ".shared .align 4 .b8 words[16];"
    body = """
      shr.u32 %r0, %tid, 5;
      setp.ge.u32 %q0, %r0, 2;
      @%q0 bra LATER;
      setp.ne.u32 %q1, %tid, 32;
      @!%q1 st.shared.u32 [words], %r0;
      bar.sync 1, 64;
      ld.shared.u32 %r1, [words];
      bar.arrive 2, 128;
      bra END;
    LATER:
      bar.sync 1, 64;
      bar.sync 1, 64;
      bar.sync 2, 128;
    END:
    """
    launch(emulator, body, words, 128)
    late = body.replace("bar.arrive 2, 128;", "ld.shared.u32 %r2, [words+4];\n bar.arrive 2, 128;")
    late = late.replace("LATER:", "LATER:\n setp.ne.u32 %q2, %tid, 64;\n @!%q2 st.shared.u32 [words+4], %r0;")
    with pytest.raises(EmulatorError, match="hazard"):
        launch(emulator, late, words, 128)


def test_time_of_a_warp_ends(emulator: Emulator):
    body = """
      mov.u32 %r0, 0;
      st.shared.u32 [words], %r0;
    LOOP:
      st.volatile.shared.u32 [words], %r0;
      add.u32 %r0, %r0, 1;
      setp.lt.u32 %q0, %r0, 1100000;
      @%q0 bra LOOP;
    """
    with pytest.raises(EmulatorError, match="hazard checks: an agent's time exceeds 1048575"):
        launch(emulator, "setp.ne.u32 %q1, %tid, 0; @%q1 bra END;" + body + "END:", ".shared .b32 words;")


def test_agents_run_out(emulator: Emulator):
    """A bulk load on each of many mbarriers: an agent each."""
    body = """
      mov.u32 %r0, 0;
      mov.u32 %r1, bytes;
      add.u32 %r2, %r1, 40960;
      setp.ne.u32 %q0, %tid, 0;
      @%q0 bra END;
    LOOP:
      mbarrier.init.shared.b64 [%r1], 1;
      fence.mbarrier_init.release.cluster;
      mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 16;
      cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r2], [%p_0], 16, [%r1];
    WAIT:
      mbarrier.try_wait.parity.shared.b64 %q2, [%r1], 0;
      @!%q2 bra WAIT;
      add.u32 %r1, %r1, 8;
      add.u32 %r2, %r2, 16;
      add.u32 %r0, %r0, 1;
      setp.lt.u32 %q1, %r0, 4100;
      @%q1 bra LOOP;
    END:
    """
    x = np.zeros(64, np.uint32)
    x = x[-(x.ctypes.data // 4) % 4 :]
    declarations = ".shared .align 16 .b8 bytes[110000];"
    with pytest.raises(EmulatorError, match="hazard checks: more than 4095 agents in a cluster"):
        run_body(emulator, body, [Tensor(x)], schedule=Schedule(hazards=ON), declarations=declarations)
