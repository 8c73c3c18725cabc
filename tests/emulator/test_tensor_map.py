# SPDX-License-Identifier: Apache-2.0
"""Tensor maps that a kernel makes itself: tensormap.replace, tensormap.cp_fenceproxy, and copies that use them."""

from __future__ import annotations

import numpy as np
import pytest
from emulator_driver import (
    EAGER,
    LAZY,
    RANDOM,
    READ,
    READWRITE,
    WRITE,
    Emulator,
    EmulatorError,
    Schedule,
    Tensor,
    run_body,
)

SCHEDULES = [Schedule(EAGER, hazards=1), Schedule(LAZY, hazards=1), Schedule(RANDOM, 1, hazards=1)]
ROWS, COLUMNS = 5, 16  # of the matrix, int32
BOX_ROWS, BOX_COLUMNS = 4, 8
DECLARATIONS = """
.shared .align 128 .b8 map[128];
.shared .align 256 .b8 tile[256];
.shared .align 8 .b64 full;
"""
ZERO_MAP = """
  mov.u32 %r50, map;
  mul.lo.u32 %r51, %tid, 4;
  add.u32 %r51, %r51, %r50;
  mov.u32 %r52, 0;
  st.shared.b32 [%r51], %r52;
  bar.warp.sync -1;
"""
# Of the map at [AT], in the space SPACE. %p_0 is the matrix.
FIELDS = f"""
  setp.eq.u32 %q0, %tid, 0;
  @!%q0 bra FILLED;
  mov.u32 %r1, 1;       mov.u32 %r2, {COLUMNS};     mov.u32 %r3, {ROWS};
  mov.u32 %r4, {BOX_COLUMNS}; mov.u32 %r5, {BOX_ROWS};
  mov.u64 %d5, {COLUMNS * 4};
  tensormap.replace.tile.global_address.SPACE.b1024.b64 [AT], %p_0;
  tensormap.replace.tile.rank.SPACE.b1024.b32 [AT], %r1;
  tensormap.replace.tile.global_dim.SPACE.b1024.b32 [AT], 0, %r2;
  tensormap.replace.tile.global_dim.SPACE.b1024.b32 [AT], 1, %r3;
  tensormap.replace.tile.box_dim.SPACE.b1024.b32 [AT], 0, %r4;
  tensormap.replace.tile.box_dim.SPACE.b1024.b32 [AT], 1, %r5;
  tensormap.replace.tile.global_stride.SPACE.b1024.b64 [AT], 0, %d5;
  tensormap.replace.tile.element_stride.SPACE.b1024.b32 [AT], 0, %r1;
  tensormap.replace.tile.element_stride.SPACE.b1024.b32 [AT], 1, %r1;
  tensormap.replace.tile.elemtype.SPACE.b1024.b32 [AT], 3;
  tensormap.replace.tile.interleave_layout.SPACE.b1024.b32 [AT], 0;
  tensormap.replace.tile.swizzle_mode.SPACE.b1024.b32 [AT], 1;
  tensormap.replace.tile.swizzle_atomicity.SPACE.b1024.b32 [AT], 0;
  tensormap.replace.tile.fill_mode.SPACE.b1024.b32 [AT], 0;
FILLED:
  bar.warp.sync -1;
"""
IN_SHARED = (
    ZERO_MAP
    + FIELDS.replace("SPACE", "shared::cta").replace("AT", "%r50")
    + "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%p_1], [%r50], 128;"
)
IN_GLOBAL = FIELDS.replace("SPACE", "global").replace("AT", "%p_1") + "fence.proxy.tensormap::generic.release.gpu;"
# The box at column 8, row 3, past the last row with two of its four, to %p_2.
LOAD = """
  fence.proxy.tensormap::generic.acquire.gpu [%p_1], 128;
  @%q0 mbarrier.init.shared.b64 [full], 1;
  @%q0 fence.mbarrier_init.release.cluster;
  bar.warp.sync -1;
  mov.u32 %r10, 8;
  mov.u32 %r11, 3;
  @%q0 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
    [tile+128], [%p_1, {%r10, %r11}], [full];
  @%q0 mbarrier.arrive.expect_tx.shared.b64 %d10, [full], 128;
WAIT:
  mbarrier.try_wait.parity.shared.b64 %q1, [full], 0;
  @!%q1 bra WAIT;
  mul.lo.u32 %r12, %tid, 4;
  mov.u32 %r13, tile;
  add.u32 %r13, %r13, %r12;
  ld.shared.b32 %r14, [%r13+128];
  cvt.u64.u32 %d11, %r12;
  add.s64 %d12, %p_2, %d11;
  st.global.b32 [%d12], %r14;
"""


def aligned_words(num_words: int) -> np.ndarray:
    space = np.zeros(num_words + 32, np.int32)
    first = -space.ctypes.data % 128 // 4
    return space[first : first + num_words]


def load(emulator: Emulator, body: str, schedule: Schedule = SCHEDULES[0]) -> np.ndarray:
    matrix = aligned_words(ROWS * COLUMNS)
    matrix[:] = np.arange(1, ROWS * COLUMNS + 1)
    tensor_map, result = aligned_words(32), np.zeros(32, np.int32)
    tensors = [Tensor(matrix, READ), Tensor(tensor_map, READWRITE), Tensor(result, WRITE)]
    run_body(emulator, body, tensors, schedule=schedule, declarations=DECLARATIONS)
    return result.reshape(BOX_ROWS, BOX_COLUMNS)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: f"{schedule.kind}")
@pytest.mark.parametrize("make", [IN_SHARED, IN_GLOBAL], ids=["shared", "global"])
def test_a_copy_by_a_map_that_the_kernel_made(emulator: Emulator, make: str, schedule: Schedule):
    expected = np.zeros((BOX_ROWS, BOX_COLUMNS), np.int32)
    expected[:2] = np.arange(1, ROWS * COLUMNS + 1).reshape(ROWS, COLUMNS)[3:, 8:]
    swizzled = np.roll(
        expected, BOX_COLUMNS // 2, axis=1
    )  # halves of rows change places where bit 7 of an address is set
    assert (load(emulator, make + LOAD, schedule) == swizzled).all()


@pytest.mark.parametrize(
    ("line", "spoilt", "message"),
    [
        ("global_stride.AT, 0, %d5", "global_stride.AT, 0, 40", "multiple of 16"),
        ("global_dim.AT, 1, %r3", "global_dim.AT, 1, 0", "global_dim is 0"),
        ("elemtype.AT, 3", "elemtype.AT, 16", "elemtype is 16"),
        ("elemtype.AT, 3", "elemtype.AT, %r1", "must be an integer constant"),
        ("box_dim.AT, 1, %r5", "box_dim.AT, 5, %r5", "0 .. 4 wanted"),
        ("rank.AT, %r1", "rank.AT, 2", "the tensor map has rank 3"),
        ("box_dim.AT, 0, %r4", "box_dim.AT, 0, 16", "at most 32 under swizzle"),
        ("fill_mode.AT, 0", "fill_mode.AT, 1", "NaN is not supported"),
        ("rank.AT, %r1", "rank.AS, %r1", "not aligned to 64"),
    ],
)
def test_what_the_host_may_not_encode_a_kernel_may_not_either(emulator: Emulator, line: str, spoilt: str, message: str):
    def written_out(text: str, bits: int) -> str:
        return text.replace("AT", f"global.b1024.b{bits} [%p_1]").replace("AS", f"global.b1024.b{bits} [%p_1+32]")

    bits = 64 if "stride" in line else 32
    assert written_out(line, bits) in IN_GLOBAL
    with pytest.raises(EmulatorError, match=message):
        load(emulator, IN_GLOBAL.replace(written_out(line, bits), written_out(spoilt, bits)) + LOAD)
