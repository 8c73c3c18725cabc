# SPDX-License-Identifier: Apache-2.0
"""Tensor copies of 4- and 6-bit elements: threads read what a load put into shared memory, write what a store takes.

Source: CUDA driver API, CUtensorMapDataType: 16U4_ALIGN8B, 16U4_ALIGN16B, 16U6_ALIGN16B. It leaves open what stands in
the padding of a slot, so nobody looks at it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from emulator_driver import EAGER, LAZY, RANDOM, READWRITE, WRITE, Emulator, Schedule, Tensor, run_body

ROWS, ELEMS = 5, 256  # of the matrix
BOX_ROWS, BOX_ELEMS = 4, 128
TILE_BYTES = BOX_ROWS * 128
SCHEDULES = (Schedule(EAGER, hazards=2), Schedule(LAZY, hazards=2), Schedule(RANDOM, 3, hazards=2))
DECLARATIONS = f".shared .align 1024 .b8 tile[{TILE_BYTES}];\n.shared .align 8 .b64 full;"


@dataclass(frozen=True)
class Kind:
    """code: of the tensor map. slot_bytes: of 16 elements in shared memory, of which data_bytes hold them."""

    name: str
    code: int
    bits: int
    slot_bytes: int

    @property
    def data_bytes(self) -> int:
        return 2 * self.bits


KINDS = (Kind("16U4_ALIGN8B", 11, 4, 8), Kind("16U4_ALIGN16B", 12, 4, 16), Kind("16U6_ALIGN16B", 13, 6, 16))


def tensor_map(kind: Kind, matrix: np.ndarray, swizzle: int) -> np.ndarray:
    """As a host encodes it: 128 bytes, aligned to 64."""
    words = np.zeros(64, np.uint32)
    words = words[-(words.ctypes.data // 4) % 16 :][:32]
    words[0], words[1] = matrix.ctypes.data & 0xFFFFFFFF, matrix.ctypes.data >> 32
    words[2] = 2 | 1 << 4 | kind.code << 7 | swizzle << 13
    words[3] = matrix.strides[0] >> 4
    words[8], words[9] = ELEMS - 1, ROWS - 1
    words[13] |= (BOX_ELEMS - 1) << 24
    words[14] |= BOX_ROWS - 1
    return words


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """(..., elems) codes, one behind the other, as (..., bytes)."""
    stream = (codes[..., None] >> np.arange(bits) & 1).astype(np.uint8)
    return np.packbits(stream.reshape(*codes.shape[:-1], -1), axis=-1, bitorder="little")


def aligned(data: np.ndarray) -> np.ndarray:
    space = np.zeros(data.nbytes + 128, np.uint8)
    place = space[-space.ctypes.data % 128 :][: data.nbytes].reshape(data.shape)
    place[:] = data
    return place


def slots(tile: np.ndarray, kind: Kind, swizzle: int) -> np.ndarray:
    """The data bytes of each 16 elements: (rows, slots, bytes) of what lies in the tile."""
    row_bytes = BOX_ELEMS // 16 * kind.slot_bytes
    offset = np.arange(BOX_ROWS * row_bytes)
    placed = tile[offset ^ (offset >> 7 & (1 << swizzle) - 1) << 4]
    return placed.reshape(BOX_ROWS, -1, kind.slot_bytes)[..., : kind.data_bytes]


COPY_TILE = """
  mov.u32 %r20, tile;
  mad.lo.u32 %r20, %tid, 16, %r20;
  mad.wide.u32 %d20, %tid, 16, %p_2;
"""
LOAD = """
  setp.eq.u32 %q0, %tid, 0;
  @%q0 mbarrier.init.shared.b64 [full], 1;
  @%q0 fence.mbarrier_init.release.cluster;
  bar.warp.sync -1;
  mov.u32 %r10, 128;
  mov.u32 %r11, 2;
  @%q0 mbarrier.arrive.expect_tx.shared.b64 %d10, [full], TX_BYTES;
  @%q0 cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
    [tile], [%p_0, {%r10, %r11}], [full];
WAIT:
  mbarrier.try_wait.parity.shared.b64 %q1, [full], 0;
  @!%q1 bra WAIT;
  setp.lt.u32 %q2, %tid, LANES;
  @%q2 ld.shared.v4.b32 {%r0, %r1, %r2, %r3}, [%r20];
  @%q2 st.global.v4.b32 [%d20], {%r0, %r1, %r2, %r3};
"""
STORE = """
  ld.global.v4.b32 {%r0, %r1, %r2, %r3}, [%d20];
  st.shared.v4.b32 [%r20], {%r0, %r1, %r2, %r3};
  fence.proxy.async.shared::cta;
  bar.warp.sync -1;
  setp.eq.u32 %q0, %tid, 0;
  mov.u32 %r10, 128;
  mov.u32 %r11, 1;
  @%q0 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%p_0, {%r10, %r11}], [tile];
  @%q0 cp.async.bulk.commit_group;
  @%q0 cp.async.bulk.wait_group 0;
"""
CASES = [(kind, swizzle) for kind in KINDS for swizzle in (0, 3)] + [(KINDS[0], 2)]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: f"{schedule.kind}")
@pytest.mark.parametrize(("kind", "swizzle"), CASES, ids=lambda value: getattr(value, "name", value))
def test_load(emulator: Emulator, kind: Kind, swizzle: int, schedule: Schedule):
    codes = np.random.default_rng(3).integers(0, 1 << kind.bits, (ROWS, ELEMS))
    matrix = aligned(packed(codes, kind.bits))
    tile = np.zeros(TILE_BYTES, np.uint8)
    num_lanes = BOX_ROWS * BOX_ELEMS // 16 * kind.slot_bytes // 16
    tx_bytes = BOX_ROWS * BOX_ELEMS * kind.bits // 8
    load = LOAD.replace("TX_BYTES", str(tx_bytes)).replace("LANES", str(num_lanes))
    tensors = [Tensor(tensor_map(kind, matrix, swizzle)), Tensor(matrix), Tensor(tile, WRITE)]
    run_body(emulator, COPY_TILE + load, tensors, schedule=schedule, declarations=DECLARATIONS)
    wanted = np.zeros((BOX_ROWS, BOX_ELEMS), codes.dtype)
    wanted[: ROWS - 2] = codes[2:, 128:]  # the last row of the box lies outside
    wanted_bytes = packed(wanted, kind.bits).reshape(BOX_ROWS, -1, kind.data_bytes)
    np.testing.assert_array_equal(slots(tile, kind, swizzle), wanted_bytes)


@pytest.mark.parametrize(("kind", "swizzle"), [case for case in CASES if case[0].slot_bytes == 8], ids=str)
def test_store(emulator: Emulator, kind: Kind, swizzle: int):
    rng = np.random.default_rng(4)
    tile = rng.integers(0, 256, TILE_BYTES, np.uint8)
    matrix = aligned(rng.integers(0, 256, (ROWS, ELEMS * kind.bits // 8), np.uint8))
    wanted = matrix.copy()
    wanted[1:5, matrix.shape[1] // 2 :] = slots(tile, kind, swizzle).reshape(BOX_ROWS, -1)
    tensors = [Tensor(tensor_map(kind, matrix, swizzle)), Tensor(matrix, READWRITE), Tensor(tile)]
    run_body(emulator, COPY_TILE + STORE, tensors, schedule=SCHEDULES[0], declarations=DECLARATIONS)
    np.testing.assert_array_equal(matrix, wanted)
