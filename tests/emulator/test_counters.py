# SPDX-License-Identifier: Apache-2.0
"""Counters: kernels written by hand whose instructions, bytes and bank conflicts are known."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import numpy as np
import pytest
from emulator_driver import EAGER, LAZY, RANDOM, READ, WRITE, Emulator, Launch, Schedule, Tensor, run_body
from emulator_profile import Profile, last_profile

import opdeck.core.emulator

SHARED = ".shared .align 16 .b8 buffer[16384];"
COUNTED = Schedule(profile=1)
ONE_WARP = Launch()


def profile_of(emulator: Emulator, body: str, tensors=(), launch: Launch = ONE_WARP, **kwargs) -> Profile:
    """The counters of one launch. Those of the frame of run_body: a load for each tensor, a mov and a ret a warp."""
    kwargs.setdefault("schedule", COUNTED)
    run_body(emulator, body, list(tensors), launch, **kwargs)
    return last_profile(emulator)


def test_instructions_by_pipe(emulator: Emulator):
    body = """
      cvt.rn.f32.u32 %r0, %tid;
      add.f32 %r1, %r0, %r0;
      fma.rn.f32 %r2, %r1, %r0, %r1;
      mov.b64 %d0, {%r1, %r2};
      mul.rn.f32x2 %d1, %d0, %d0;
      ex2.approx.ftz.f32 %r3, %r2;
      rcp.approx.f32 %r3, %r3;
      max.f32 %r4, %r3, %r2;
      add.u32 %r5, %tid, 1;
      xor.b32 %r5, %r5, 3;
      setp.lt.u32 %q0, %tid, 16;
      selp.b32 %r6, %r5, %tid, %q0;
      fma.rn.f16x2 %r7, %r5, %r5, %r5;
      shfl.sync.idx.b32 %r8, %r7, 0, 31, -1;
      bar.sync 0;
      @%q0 bra DONE;
      add.f64 %d2, %d0, %d1;
    DONE:
    """
    profile = profile_of(emulator, body, launch=Launch(grid=(3, 1, 1), block=(64, 1, 1)))
    warps = 6
    by_pipe = {
        "convert": 1,
        "fp32": 2,
        "move": 2,
        "f32x2": 1,
        "mufu": 2,
        "compare": 3,
        "integer": 2,
        "half": 1,
        "shuffle": 1,
        "sync": 1,
        "control": 2,
        "fp64": 1,  # in the second half of the warp 0 of a CTA, and in all of warp 1
        "skipped": 0,
    }
    # No lane of warp 1 takes the branch, whose guard is false in all of them.
    by_warp = {name: warps * count for name, count in by_pipe.items()} | {"control": 9, "skipped": 3}
    assert {name: profile.pipe(name) for name in by_warp} == by_warp
    assert profile.sum("completed") == sum(by_warp.values())
    assert profile.pipe("unknown") == 0


def test_rows_say_warp_and_line(emulator: Emulator):
    profile = profile_of(
        emulator, "setp.lt.u32 %q0, %tid, 32;\n@%q0 add.u32 %r0, %tid, 1;", launch=Launch(block=(96, 1, 1))
    )
    adds = [row for row in profile.rows if row.opcode == b"add.u32"]
    assert [(row.warp_idx, row.completed, row.kernel) for row in adds] == [(0, 1, b"run")]
    skips = [row for row in profile.rows if row.pipe == b"skipped"]
    assert [(row.warp_idx, row.completed) for row in skips] == [(1, 1), (2, 1)]
    assert adds[0].ptx_line > 1


@pytest.mark.parametrize(
    ("access", "lane_bytes", "stride_bytes", "wavefronts", "extra"),
    [
        ("u8", 1, 1, 1, 0),
        ("u32", 4, 4, 1, 0),
        ("u32", 4, 0, 1, 0),  # a broadcast
        ("u32", 4, 8, 2, 1),
        ("u32", 4, 12, 1, 0),  # an odd number of words meets every bank once
        ("u32", 4, 16, 4, 3),
        ("u32", 4, 128, 32, 31),
        ("v2.u32", 8, 8, 2, 0),
        ("v2.u32", 8, 16, 4, 2),
        ("v4.u32", 16, 16, 4, 0),
        ("v4.u32", 16, 32, 8, 4),
        ("v4.u32", 16, 128, 32, 28),
        ("v4.u32", 16, 0, 4, 0),
    ],
)
def test_bank_conflicts(
    emulator: Emulator, access: str, lane_bytes: int, stride_bytes: int, wavefronts: int, extra: int
):
    registers = ", ".join(f"%r{i}" for i in range(int(access[1]) if access[0] == "v" else 1))
    registers = f"{{{registers}}}" if access[0] == "v" else registers
    zeros = "\n".join(f"mov.b32 %r{i}, 0;" for i in range(4))
    body = f"""
      mov.u32 %r10, buffer;
      mad.lo.u32 %r11, %tid, {stride_bytes}, %r10;
      {zeros}
      st.shared.{access} [%r11], {registers};
      bar.warp.sync -1;
      ld.shared.{access} {registers}, [%r11];
    """
    profile = profile_of(emulator, body, declarations=SHARED)
    for opcode, count in (("st.shared", "shared_write_bytes"), ("ld.shared", "shared_read_bytes")):
        assert profile.opcode(opcode, count) == 32 * lane_bytes
        assert profile.opcode(opcode, "shared_wavefronts") == wavefronts
        assert profile.opcode(opcode, "extra_wavefronts") == extra
    assert profile.pipe("shared_memory") == 2


@pytest.mark.parametrize(("stride_bytes", "extra"), [(16, 0), (128, 28), (144, 0)])
def test_matrix_rows_conflict(emulator: Emulator, stride_bytes: int, extra: int):
    """Rows of 16 bytes that lie 128 bytes apart are in the same banks; 16 bytes of padding help."""
    body = f"""
      mov.u32 %r10, buffer;
      mad.lo.u32 %r11, %tid, {stride_bytes}, %r10;
      mov.b32 %r0, 0; mov.b32 %r1, 0; mov.b32 %r2, 0; mov.b32 %r3, 0;
      stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r11], {{%r0, %r1, %r2, %r3}};
      ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r0, %r1, %r2, %r3}}, [%r11];
    """
    profile = profile_of(emulator, body, declarations=SHARED)
    assert profile.sum("shared_wavefronts") == 2 * (4 + extra)
    assert profile.sum("extra_wavefronts") == 2 * extra
    assert (profile.sum("shared_read_bytes"), profile.sum("shared_write_bytes")) == (512, 512)


def test_global_bytes_of_threads(emulator: Emulator):
    """By the space of each address, generic or not; half of the lanes is masked."""
    x, y = np.zeros(64, np.uint32), np.zeros(64, np.uint32)
    body = """
      setp.lt.u32 %q0, %tid, 16;
      mul.wide.u32 %d0, %tid, 8;
      add.u64 %d1, %p_0, %d0;
      add.u64 %d2, %p_1, %d0;
      mov.u32 %r10, buffer;
      mad.lo.u32 %r11, %tid, 8, %r10;
      cvt.u64.u32 %d3, %r11;
      cvta.shared.u64 %d3, %d3;
      @%q0 ld.v2.u32 {%r0, %r1}, [%d1];
      @%q0 st.v2.u32 [%d3], {%r0, %r1};
      @%q0 st.global.v2.u32 [%d2], {%r0, %r1};
      @%q0 red.global.add.u32 [%d2], 1;
    """
    profile = profile_of(emulator, body, [Tensor(x, READ), Tensor(y, WRITE)], declarations=SHARED)
    assert profile.sum("global_read_bytes") == 16 * 8
    assert profile.sum("global_write_bytes") == 16 * (8 + 4)
    assert profile.sum("shared_write_bytes") == 16 * 8
    assert profile.opcode("st.v2", "shared_wavefronts") == 1
    assert (profile.pipe("atomic"), profile.pipe("global_memory")) == (1, 3)


BULK = """
  mov.u32 %r10, buffer;
  mov.u32 %r12, barrier;
  setp.eq.u32 %q0, %tid, 0;
  @%q0 mbarrier.init.shared.b64 [%r12], 1;
  @%q0 fence.mbarrier_init.release.cluster;
  bar.sync 0;
  @%q0 mbarrier.arrive.expect_tx.shared.b64 %d9, [%r12], 512;
  @%q0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r10], [%p_0], 512, [%r12];
WAIT:
  mbarrier.try_wait.parity.shared.b64 %q1, [%r12], 0;
  @!%q1 bra WAIT;
  cp.async.bulk.global.shared::cta.bulk_group [%p_1], [%r10], 512;
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
"""


@pytest.mark.parametrize(
    "schedule", [Schedule(kind, seed, profile=1) for kind, seed in ((EAGER, 0), (LAZY, 0), (RANDOM, 1), (RANDOM, 2))]
)
def test_bulk_copies_and_waits(emulator: Emulator, schedule: Schedule):
    """A store that all lanes issue alike is one instruction and one copy. Tries that block are no instructions."""
    x, y = np.arange(128, dtype=np.uint32), np.zeros(128, np.uint32)
    declarations = SHARED + "\n.shared .align 8 .b64 barrier;"
    profile = profile_of(emulator, BULK, [Tensor(x), Tensor(y, WRITE)], schedule=schedule, declarations=declarations)
    assert (y == x).all()
    assert (profile.pipe("tma"), profile.opcode("cp.async.bulk.shared")) == (2, 1)
    assert (profile.sum("global_read_bytes"), profile.sum("shared_write_bytes")) == (512, 512)
    assert (profile.sum("global_write_bytes"), profile.sum("shared_read_bytes")) == (512, 512)
    assert profile.sum("shared_wavefronts") == 0
    waits, false_polls = profile.opcode("mbarrier.try_wait"), profile.sum("false_polls")
    assert waits == 1 + false_polls
    if schedule.kind == LAZY:
        assert profile.opcode("mbarrier.try_wait", "blocked") > 0
    if schedule.kind == EAGER:
        assert (false_polls, profile.sum("blocked")) == (0, 0)


def test_tensor_memory_bytes(emulator: Emulator):
    body = """
      setp.lt.u32 %q30, %tid, 32;
      @%q30 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 32;
      bar.sync 0;
      ld.shared.b32 %r100, [slot];
      shr.u32 %r101, %tid, 5;
      shl.b32 %r101, %r101, 21;
      add.u32 %r102, %r100, %r101;
      mov.u32 %r0, %tid;
      tcgen05.st.sync.aligned.32x32b.x2.b32 [%r102], {%r0, %r0};
      tcgen05.wait::st.sync.aligned;
      tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r1}, [%r102];
      tcgen05.wait::ld.sync.aligned;
      bar.sync 0;
      @%q30 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r100, 32;
    """
    launch = Launch(block=(128, 1, 1))
    profile = profile_of(emulator, body, launch=launch, declarations=".shared .align 8 .b32 slot;")
    assert (profile.sum("tmem_write_bytes"), profile.sum("tmem_read_bytes")) == (4 * 256, 4 * 128)
    assert profile.pipe("tmem") == 8
    assert profile.opcode("ld.shared", "shared_wavefronts") == 4


def test_remote_shared_bytes(emulator: Emulator):
    """Each CTA of a pair writes into the other one's memory; those bytes have no wavefronts here."""
    body = """
      mov.u32 %r0, %cluster_ctarank;
      xor.b32 %r0, %r0, 1;
      mov.u32 %r10, buffer;
      mad.lo.u32 %r10, %tid, 4, %r10;
      mapa.shared::cluster.u32 %r11, %r10, %r0;
      barrier.cluster.arrive;
      barrier.cluster.wait;
      st.shared::cluster.u32 [%r11], %tid;
      barrier.cluster.arrive;
      barrier.cluster.wait;
    """
    launch = Launch(grid=(2, 1, 1), cluster=(2, 1, 1))
    profile = profile_of(emulator, body, launch=launch, declarations=SHARED)
    assert (profile.sum("shared_write_bytes"), profile.sum("remote_shared_bytes")) == (256, 256)
    assert profile.sum("shared_wavefronts") == 0


def test_nothing_is_counted_unasked(emulator: Emulator):
    assert profile_of(emulator, "add.u32 %r0, %tid, 1;").rows
    assert not profile_of(emulator, "add.u32 %r0, %tid, 1;", schedule=Schedule()).rows


def test_every_instruction_has_a_pipe(emulator: Emulator):
    emulator.lib.opdeck_emu_pipe.restype = ctypes.c_char_p
    sources = sorted((Path(opdeck.core.emulator.__file__).parent / "src" / "isa").glob("*.cpp"))
    names = {name for source in sources for name in re.findall(r'table\["([^"]+)"\]', source.read_text())}
    assert len(names) > 100
    assert [name for name in sorted(names) if emulator.lib.opdeck_emu_pipe(name.encode()) is None] == []
    assert emulator.lib.opdeck_emu_pipe(b"addition.f32") is None
