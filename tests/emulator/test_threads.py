# SPDX-License-Identifier: Apache-2.0
"""Clusters over threads: a run is the same however many take part, and clusters that communicate stay in one."""

from __future__ import annotations

import numpy as np
import pytest
from emulator_driver import RANDOM, READWRITE, WRITE, Emulator, EmulatorError, Launch, Schedule, Tensor, run_body

CTA_ADDRESS = """
  mov.u32 %r10, %ctaid.x;
  mul.wide.u32 %d10, %r10, 4;
  add.s64 %d11, %p_0, %d10;
"""
# Element i of the output: the warp of CTA i that wrote last, which only the schedule decides.
LAST_WARP = (
    CTA_ADDRESS
    + """
  shr.u32 %r0, %tid, 5;
  st.shared.u32 [last], %r0;
  bar.sync 0;
  ld.shared.u32 %r1, [last];
  st.global.u32 [%d11], %r1;
"""
)
# CTA 0 waits until CTA 1 has raised a flag.
WAIT_FOR_FLAG = (
    CTA_ADDRESS
    + """
  setp.ne.u32 %q0, %r10, 0;
  @%q0 bra RAISE;
LOOK:
  {look}
  setp.eq.u32 %q1, %r0, 0;
  @%q1 bra LOOK;
  bra DONE;
RAISE:
  st.global.u32 [%p_0], 1;
DONE:
"""
)


def last_warps(emulator: Emulator, seed: int) -> list[int]:
    y = np.zeros(64, np.uint32)
    launch = Launch(grid=(y.size, 1, 1), block=(256, 1, 1))
    report = run_body(
        emulator,
        LAST_WARP,
        [Tensor(y, WRITE)],
        launch,
        Schedule(RANDOM, seed),
        declarations=".shared .align 4 .b8 last[4];",
    )
    assert report.num_ctas == y.size
    return y.tolist()


def test_the_seed_alone_decides(emulator: Emulator, monkeypatch: pytest.MonkeyPatch):
    runs = []
    for num_threads in (1, 2, 7):
        monkeypatch.setenv("OPDECK_EMULATOR_THREADS", str(num_threads))
        runs.append(last_warps(emulator, seed=3))
    assert runs[0] == runs[1] == runs[2]
    assert len(set(runs[0])) > 4  # each CTA has a schedule of its own
    assert last_warps(emulator, seed=4) != runs[0]


def test_clusters_run_at_the_same_time(emulator: Emulator, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPDECK_EMULATOR_THREADS", "2")
    flag = np.zeros(1, np.uint32)
    body = WAIT_FOR_FLAG.format(look="ld.global.u32 %r0, [%p_0];")
    run_body(
        emulator,
        body,
        [Tensor(flag, READWRITE)],
        Launch(grid=(2, 1, 1), block=(1, 1, 1)),
        Schedule(max_warp_instructions=10**9),
    )
    assert flag[0] == 1


@pytest.mark.parametrize(
    "look",
    [
        "ld.acquire.gpu.global.u32 %r0, [%p_0];",
        "ld.global.cv.u32 %r0, [%p_0];",
        "membar.gl; ld.global.u32 %r0, [%p_0];",
        "atom.global.or.b32 %r0, [%p_0], 0;",
    ],
)
def test_clusters_that_communicate_start_beside_each_other(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch, look: str
):
    monkeypatch.setenv("OPDECK_EMULATOR_THREADS", "1")
    flag = np.zeros(1, np.uint32)
    run_body(
        emulator, WAIT_FOR_FLAG.format(look=look), [Tensor(flag, READWRITE)], Launch(grid=(2, 1, 1), block=(1, 1, 1))
    )
    assert flag[0] == 1


def test_atomics_of_many_clusters(emulator: Emulator, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPDECK_EMULATOR_THREADS", "4")
    total = np.zeros(1, np.uint32)
    body = """
      mov.u32 %r0, 0;
    MORE:
      red.global.add.u32 [%p_0], 1;
      add.u32 %r0, %r0, 1;
      setp.lt.u32 %q0, %r0, 100;
      @%q0 bra MORE;
    """
    run_body(emulator, body, [Tensor(total, READWRITE)], Launch(grid=(32, 1, 1)))
    assert total[0] == 32 * 32 * 100


def test_the_first_cluster_that_fails_is_reported(emulator: Emulator, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPDECK_EMULATOR_THREADS", "4")
    y = np.zeros(3, np.uint32)
    for _ in range(8):
        with pytest.raises(EmulatorError, match=r"CTA \(3, 0, 0\)"):
            run_body(emulator, CTA_ADDRESS + "st.global.u32 [%d11], 1;", [Tensor(y, WRITE)], Launch(grid=(512, 1, 1)))


@pytest.mark.parametrize("value", ["0", "two", "2x"])
def test_a_number_of_threads_that_is_none(emulator: Emulator, monkeypatch: pytest.MonkeyPatch, value: str):
    monkeypatch.setenv("OPDECK_EMULATOR_THREADS", value)
    with pytest.raises(EmulatorError, match=f"OPDECK_EMULATOR_THREADS is '{value}'"):
        run_body(emulator, "", [])


def test_clusters_that_all_poll_are_a_livelock(emulator: Emulator, monkeypatch: pytest.MonkeyPatch):
    """A thread whose cluster polls goes on for as long as another one's may change what it reads, and no longer."""
    flag = np.zeros(3, np.uint32)
    body = CTA_ADDRESS + "LOOK: ld.global.u32 %r0, [%d11];\n setp.eq.u32 %q1, %r0, 0;\n @%q1 bra LOOK;"
    for num_threads in (1, 2, 3):
        monkeypatch.setenv("OPDECK_EMULATOR_THREADS", str(num_threads))
        with pytest.raises(EmulatorError, match="livelock") as caught:
            run_body(emulator, body, [Tensor(flag, READWRITE)], Launch(grid=(3, 1, 1), block=(1, 1, 1)))
        assert caught.value.text.count("` polls `ld.global.u32`") == 1
