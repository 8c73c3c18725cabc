# SPDX-License-Identifier: Apache-2.0
"""Tensor memory: allocation, bounds, who may reach which lanes, loads and stores under all schedules."""

from __future__ import annotations

import numpy as np
import pytest
from emulator_driver import EAGER, LAZY, RANDOM, WRITE, Emulator, EmulatorError, Launch, Schedule, Tensor, run_body
from tmem_frame import ALLOC, FREE, framed

DECLARATIONS = ".shared .align 8 .b32 slot;"
BLOCK = Launch(block=(128, 1, 1))


def failure(emulator: Emulator, body: str, *schedule: Schedule) -> str:
    with pytest.raises(EmulatorError) as caught:
        run_body(emulator, body, [], BLOCK, *schedule, declarations=DECLARATIONS)
    return caught.value.text


@pytest.mark.parametrize(
    "schedule", [Schedule(EAGER), Schedule(LAZY), *(Schedule(RANDOM, s) for s in range(4))], ids=str
)
def test_store_and_load(emulator: Emulator, schedule: Schedule):
    y = np.zeros((128, 2), np.uint32)
    body = """
      mul.lo.u32 %r0, %tid, 10;
      add.u32 %r1, %r0, 1;
      tcgen05.st.sync.aligned.32x32b.x2.b32 [%r102], {%r0, %r1};
      tcgen05.wait::st.sync.aligned;
      tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r2, %r3}, [%r102];
      tcgen05.wait::ld.sync.aligned;
      mul.wide.u32 %d0, %tid, 8;
      add.s64 %d1, %p_0, %d0;
      st.global.v2.b32 [%d1], {%r2, %r3};
    """
    run_body(emulator, framed(body), [Tensor(y, WRITE)], BLOCK, schedule, declarations=DECLARATIONS)
    assert (y == np.arange(128)[:, None] * 10 + [0, 1]).all()


def test_store_without_its_wait_is_caught(emulator: Emulator):
    """Under the lazy schedule the load finds what was there before: poison."""
    y = np.zeros(128, np.uint32)
    body = """
      tcgen05.st.sync.aligned.32x32b.x1.b32 [%r102], {%tid};
      tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r2}, [%r102];
      tcgen05.wait::st.sync.aligned;
      mul.wide.u32 %d0, %tid, 4;
      add.s64 %d1, %p_0, %d0;
      st.global.b32 [%d1], %r2;
    """
    run_body(emulator, framed(body), [Tensor(y, WRITE)], BLOCK, Schedule(LAZY), declarations=DECLARATIONS)
    assert (y == 0xFFFFFFFF).all()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r0}, [%r102+64];", "columns 64 .. 64 are not allocated"),
        ("tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r0, %r1}, [%r102+63];", "columns 63 .. 64 are not allocated"),
        (
            "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r0}, [%r100];",
            "at TMEM lane 0 for 32 lanes, want them inside its lanes",
        ),
        (
            "add.u32 %r5, %r102, %tid; tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r0}, [%r5];",
            "different tensor memory addresses",
        ),
        ("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [slot];", "issued by 32 threads"),
    ],
)
def test_illegal_access(emulator: Emulator, body: str, message: str):
    assert message in failure(emulator, framed(body))


def test_exit_with_columns_allocated(emulator: Emulator):
    assert "exited with 64 columns of tensor memory allocated" in failure(emulator, ALLOC.format(columns=64))


@pytest.mark.parametrize("columns", [0, 16, 48, 1024])
def test_allocation_size(emulator: Emulator, columns: int):
    assert f"allocation of {columns} columns" in failure(emulator, ALLOC.format(columns=columns))


def test_dealloc_of_another_size(emulator: Emulator):
    body = ALLOC.format(columns=64) + FREE.format(columns=32)
    assert "no allocation of 32 columns starts at tensor memory column 0" in failure(emulator, body)


def test_alloc_after_relinquish(emulator: Emulator):
    again = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 32;"
    body = ALLOC.format(columns=64) + f"@%q30 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n@%q30 {again}"
    assert "after tcgen05.relinquish_alloc_permit" in failure(emulator, body)


def test_allocation_that_never_fits_is_a_deadlock(emulator: Emulator):
    body = ALLOC.format(columns=512) + "@%q30 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 32;"
    assert "waits for tensor memory" in failure(emulator, body)


READ_AFTER_FREE = f"""
  {ALLOC.format(columns=64)}
  tcgen05.st.sync.aligned.32x32b.x1.b32 [%r102], {{%tid}};
  tcgen05.wait::st.sync.aligned;
  {FREE.format(columns=64)}
  bar.sync 0;
  tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r2}}, [%r102];
  tcgen05.wait::ld.sync.aligned;
"""


@pytest.mark.parametrize("schedule", [EAGER, LAZY, RANDOM])
def test_tensor_memory_that_was_given_back_is_a_hazard_to_read(emulator: Emulator, schedule: int):
    text = failure(emulator, READ_AFTER_FREE, Schedule(schedule, hazards=1))
    assert "[tmem-freed]: tensor memory columns 0 .. 0 were given back" in text


def test_without_hazards_tensor_memory_that_was_given_back_keeps_its_data(emulator: Emulator):
    y = np.zeros(128, np.uint32)
    store = "mul.wide.u32 %d0, %tid, 4; add.s64 %d1, %p_0, %d0; st.global.b32 [%d1], %r2;"
    run_body(emulator, READ_AFTER_FREE + store, [Tensor(y, WRITE)], BLOCK, declarations=DECLARATIONS)
    assert (y == np.arange(128)).all()


def test_setmaxnreg_that_differs_in_a_warpgroup_is_a_hazard(emulator: Emulator):
    body = "setp.lt.u32 %q0, %tid, 32; @%q0 setmaxnreg.dec.sync.aligned.u32 64;"
    text = failure(emulator, body, Schedule(EAGER, hazards=1))
    assert "[setmaxnreg-differs]" in text
    assert "warp 1 of CTA (0, 0, 0) 0 registers and warp 0 of its warpgroup 64" in text
    run_body(emulator, body, [], BLOCK, declarations=DECLARATIONS)  # without hazards
