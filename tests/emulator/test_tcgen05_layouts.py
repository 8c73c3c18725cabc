# SPDX-License-Identifier: Apache-2.0
"""Layouts of tcgen05.ld, st and cp, written down here from the figures of the PTX ISA manual (9.7.16, "Data Movement
Shape", "tcgen05.cp") as numpy index arrays: threads write memory, and read what the instruction under test moved."""

from __future__ import annotations

import numpy as np
import pytest
from emulator_driver import WRITE, Emulator, EmulatorError, Launch, Schedule, Tensor, run_body
from tmem_frame import framed

BLOCK = Launch(block=(128, 1, 1))
SHARED_BYTES = 8192
DECLARATIONS = (
    f".shared .align 8 .b32 slot;\n.shared .align 8 .b64 done;\n.shared .align 1024 .b8 source[{SHARED_BYTES}];"
)


def cells(shape: str, num_registers: int) -> np.ndarray:
    """(32 threads, registers, 2): lane and column of each register, the warp's first lane and the address being 0.

    A row of 64, 128 or 256 bits is laid across threads two, four or four at a time, eight rows a register or pair; what
    follows is the manual's figures read row by row.
    """
    out = np.full((32, num_registers, 2), -1)
    if shape == "32x32b":
        for lane, column in np.ndindex(32, num_registers):
            out[lane, column] = lane, column
        return out
    words_a_row = {"16x64b": 2, "16x128b": 4, "16x256b": 8}[shape]
    for repeat in range(num_registers * 32 // (16 * words_a_row)):
        for lane, word in np.ndindex(16, words_a_row):
            upper, row = divmod(lane, 8)
            if shape == "16x64b":  # four threads a row pair: lanes 0-7 in the even ones, 8-15 in the odd ones
                thread, register = 4 * row + 2 * word + upper, 0
            elif shape == "16x128b":  # a thread a word; lanes 8-15 in the second register
                thread, register = 4 * row + word, upper
            else:  # a thread two words; lanes 8-15 in the second pair
                thread, register = 4 * row + word // 2, 2 * upper + word % 2
            registers_a_repeat = words_a_row // 2
            out[thread, repeat * registers_a_repeat + register] = lane, repeat * words_a_row + word
    assert (out >= 0).all()
    return out


def vector(first: int, count: int) -> str:
    return "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"


SHAPES = [("32x32b", 8, 8), ("16x64b", 4, 4), ("16x128b", 4, 8), ("16x256b", 2, 8)]


@pytest.mark.parametrize("half", [0, 16])
@pytest.mark.parametrize(("shape", "repeats", "registers"), SHAPES[1:], ids=lambda x: str(x))
def test_load_of_a_16_lane_shape(emulator: Emulator, shape: str, repeats: int, registers: int, half: int):
    """Words 1000 * lane + column are stored by 32x32b, which is a lane a thread."""
    columns = 32
    fill = "\n".join(f"mad.lo.u32 %r{i}, %tid, 1000, {i};" for i in range(columns))
    body = f"""
      {fill}
      tcgen05.st.sync.aligned.32x32b.x{columns}.b32 [%r102], {vector(0, columns)};
      tcgen05.wait::st.sync.aligned;
      add.u32 %r103, %r102, {half << 16};
      tcgen05.ld.sync.aligned.{shape}.x{repeats}.b32 {vector(40, registers)}, [%r103];
      tcgen05.wait::ld.sync.aligned;
      mad.wide.u32 %d0, %tid, {4 * registers}, %p_0;
    """ + "\n".join(f"st.global.b32 [%d0+{4 * i}], %r{40 + i};" for i in range(registers))
    out = np.zeros((4, 32, registers), np.uint32)
    run_body(emulator, framed(body), [Tensor(out, WRITE)], BLOCK, declarations=DECLARATIONS)
    lane, column = np.moveaxis(cells(shape, registers), -1, 0)
    warps = np.arange(4)[:, None, None]
    np.testing.assert_array_equal(out, (32 * warps + half + lane) * 1000 + column)


@pytest.mark.parametrize(("shape", "repeats", "registers"), SHAPES, ids=lambda x: str(x))
def test_store_of_a_shape(emulator: Emulator, shape: str, repeats: int, registers: int):
    """The other way: the shape stores, 32x32b loads; cells that the shape does not have keep what they had."""
    columns = 16
    fill = "\n".join(f"mov.b32 %r{i}, 0x7777;" for i in range(columns))
    values = "\n".join(f"mad.lo.u32 %r{40 + i}, %tid, 1000, {i};" for i in range(registers))
    body = f"""
      {fill}
      tcgen05.st.sync.aligned.32x32b.x{columns}.b32 [%r102], {vector(0, columns)};
      tcgen05.wait::st.sync.aligned;
      {values}
      tcgen05.st.sync.aligned.{shape}.x{repeats}.b32 [%r102], {vector(40, registers)};
      tcgen05.wait::st.sync.aligned;
      tcgen05.ld.sync.aligned.32x32b.x{columns}.b32 {vector(60, columns)}, [%r102];
      tcgen05.wait::ld.sync.aligned;
      mad.wide.u32 %d0, %tid, {4 * columns}, %p_0;
    """ + "\n".join(f"st.global.b32 [%d0+{4 * i}], %r{60 + i};" for i in range(columns))
    out = np.zeros((4, 32, columns), np.uint32)
    run_body(emulator, framed(body), [Tensor(out, WRITE)], BLOCK, declarations=DECLARATIONS)
    expected = np.full((4, 32, columns), 0x7777)
    lane, column = np.moveaxis(cells(shape, registers), -1, 0)
    for warp in range(4):
        thread = 32 * warp + np.arange(32)[:, None]
        expected[warp, lane, column] = thread * 1000 + np.arange(registers)
    np.testing.assert_array_equal(out, expected)


def registers_text(first: int, count: int, base: str) -> str:
    """Stores `count` registers of a thread one after the other."""
    return "\n".join(f"st.global.b32 [{base}+{4 * i}], %r{first + i};" for i in range(count))


@pytest.mark.parametrize(("shape", "repeats", "registers"), [(s, r // 2, n // 2) for s, r, n in SHAPES])
def test_load_packs_the_low_halves_of_two_columns(emulator: Emulator, shape: str, repeats: int, registers: int):
    """A packed register is what the registers of two neighbouring columns would be, the first in its low half."""
    columns = 32
    fill = "\n".join(f"mad.lo.u32 %r{i}, %tid, 100, {0xABCD0000 + i};" for i in range(columns))
    body = f"""
      {fill}
      tcgen05.st.sync.aligned.32x32b.x{columns}.b32 [%r102], {vector(0, columns)};
      tcgen05.wait::st.sync.aligned;
      tcgen05.ld.sync.aligned.{shape}.x{repeats}.pack::16b.b32 {vector(40, registers)}, [%r102];
      tcgen05.wait::ld.sync.aligned;
      mad.wide.u32 %d0, %tid, {4 * registers}, %p_0;
      {registers_text(40, registers, "%d0")}
    """
    out = np.zeros((4, 32, registers), np.uint32)
    run_body(emulator, framed(body), [Tensor(out, WRITE)], BLOCK, declarations=DECLARATIONS)
    lane, column = np.moveaxis(cells(shape, registers), -1, 0)
    low = (32 * np.arange(4)[:, None, None] + lane) * 100 + 2 * column
    np.testing.assert_array_equal(out, low + (low + 1 << 16))


@pytest.mark.parametrize(("shape", "repeats", "registers"), [(s, r // 2, n // 2) for s, r, n in SHAPES])
def test_store_unpacks_into_two_columns(emulator: Emulator, shape: str, repeats: int, registers: int):
    """Each half goes to the low half of a column of its own, whose upper half becomes zero."""
    columns = 16
    values = "\n".join(f"mad.lo.u32 %r{40 + i}, %tid, {0x10001 * 100}, {0x80000000 + i};" for i in range(registers))
    body = f"""
      {"".join(f"mov.b32 %r{i}, 0x77777777;" for i in range(columns))}
      tcgen05.st.sync.aligned.32x32b.x{columns}.b32 [%r102], {vector(0, columns)};
      tcgen05.wait::st.sync.aligned;
      {values}
      tcgen05.st.sync.aligned.{shape}.x{repeats}.unpack::16b.b32 [%r102], {vector(40, registers)};
      tcgen05.wait::st.sync.aligned;
      tcgen05.ld.sync.aligned.32x32b.x{columns}.b32 {vector(60, columns)}, [%r102];
      tcgen05.wait::ld.sync.aligned;
      mad.wide.u32 %d0, %tid, {4 * columns}, %p_0;
      {registers_text(60, columns, "%d0")}
    """
    out = np.zeros((4, 32, columns), np.uint32)
    run_body(emulator, framed(body), [Tensor(out, WRITE)], BLOCK, declarations=DECLARATIONS)
    expected = np.full((4, 32, columns), 0x77777777, np.uint32)
    lane, column = np.moveaxis(cells(shape, registers), -1, 0)
    for warp in range(4):
        word = (32 * warp + np.arange(32)[:, None]) * 0x10001 * 100 + 0x80000000 + np.arange(registers)
        expected[warp, lane, 2 * column] = word & 0xFFFF
        expected[warp, lane, 2 * column + 1] = word >> 16
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("split", [0, 3, 20])
@pytest.mark.parametrize("half", [0, 16])
def test_halves_of_16x32bx2(emulator: Emulator, half: int, split: int):
    """Threads 0 .. 15 have the 16 lanes at the address, threads 16 .. 31 the same lanes `split` columns on."""
    columns, registers = 32, 4
    fill = "\n".join(f"mad.lo.u32 %r{i}, %tid, 1000, {i};" for i in range(columns))
    body = f"""
      {fill}
      tcgen05.st.sync.aligned.32x32b.x{columns}.b32 [%r102], {vector(0, columns)};
      tcgen05.wait::st.sync.aligned;
      add.u32 %r103, %r102, {half << 16};
      tcgen05.ld.sync.aligned.16x32bx2.x{registers}.b32 {vector(40, registers)}, [%r103], {split};
      tcgen05.wait::ld.sync.aligned;
      tcgen05.st.sync.aligned.16x32bx2.x{registers}.b32 [%r103+32], {split}, {vector(40, registers)};
      tcgen05.wait::st.sync.aligned;
      tcgen05.ld.sync.aligned.32x32b.x{columns}.b32 {vector(60, columns)}, [%r102+32];
      tcgen05.wait::ld.sync.aligned;
      mad.wide.u32 %d0, %tid, {4 * (registers + columns)}, %p_0;
      {registers_text(40, registers, "%d0")}
      add.s64 %d0, %d0, {4 * registers};
      {registers_text(60, columns, "%d0")}
    """
    out = np.zeros((4, 32, registers + columns), np.uint32)
    run_body(emulator, framed(body), [Tensor(out, WRITE)], BLOCK, declarations=DECLARATIONS)
    warp, thread, register = np.ogrid[:4, :32, :registers]
    loaded = (32 * warp + half + thread % 16) * 1000 + register + split * (thread // 16)
    np.testing.assert_array_equal(out[..., :registers], loaded)
    stored = out[:, half : half + 16, registers:]
    for first in (0, split):  # what was loaded from there has come to the same place of the upper 32 columns
        wanted = (32 * warp + half + np.arange(16)[:, None]) * 1000 + first + register
        np.testing.assert_array_equal(stored[..., first : first + registers], wanted)


@pytest.mark.parametrize(
    ("split", "message"), [(62, "columns 62 .. 65"), (0x7FFFFFFF, "want at most 511"), (-1, "511")]
)
def test_second_half_of_16x32bx2_outside(emulator: Emulator, split: int, message: str):
    body = f"tcgen05.ld.sync.aligned.16x32bx2.x4.b32 {vector(0, 4)}, [%r102], {split};"
    with pytest.raises(EmulatorError, match=message):
        run_body(emulator, framed(body), [], BLOCK, declarations=DECLARATIONS)


@pytest.mark.parametrize("split", [1, 8, 48])
def test_hazards_look_at_both_halves_of_16x32bx2(emulator: Emulator, split: int):
    """Its lanes of column 0 and of column `split` must have been written, and no others."""
    store = "tcgen05.st.sync.aligned.16x32bx2.x1.b32 [%r102], {}, {{%tid}}; tcgen05.wait::st.sync.aligned;"
    load = f"tcgen05.ld.sync.aligned.16x32bx2.x1.b32 {{%r0}}, [%r102], {split}; tcgen05.wait::ld.sync.aligned;"
    checked = Schedule(hazards=1)
    run_body(emulator, framed(store.format(split) + load), [], BLOCK, checked, declarations=DECLARATIONS)
    with pytest.raises(EmulatorError, match=rf"uninitialized-tmem.* column {split}, lanes \d+ .. \d+"):
        run_body(emulator, framed(store.format(split + 1) + load), [], BLOCK, checked, declarations=DECLARATIONS)


# Shape: rows of the source matrix, bytes of a row, and the lanes that get row r.
COPIES = {
    "128x256b": (128, 32, lambda r: [r]),
    "128x128b": (128, 16, lambda r: [r]),
    "4x256b": (4, 32, lambda r: [32 * r]),
    "64x128b.warpx2::02_13": (64, 16, lambda r: [r, r + 64]),
    "64x128b.warpx2::01_23": (64, 16, lambda r: [r, r + 32] if r < 32 else [r + 32, r + 64]),
    "32x128b.warpx4": (32, 16, lambda r: [r, r + 32, r + 64, r + 96]),
}
SWIZZLE_32B = 6


def descriptor(leading_bytes: int, stride_bytes: int, mode: int) -> int:
    return (leading_bytes >> 4) << 16 | (stride_bytes >> 4) << 32 | 1 << 46 | mode << 61


def unswizzled(row: int, byte: int) -> int:
    """Core matrices of 8 rows of 16 bytes; the two of a row 2048 bytes apart, those of eight rows 128."""
    return row // 8 * 128 + byte // 16 * 2048 + row % 8 * 16 + byte % 16


def swizzled_32(row: int, byte: int) -> int:
    """Rows of 32 bytes; every four rows, the two halves change places."""
    return row * 32 + (byte // 16 ^ row // 4 % 2) * 16 + byte % 16


@pytest.mark.parametrize("mode", [0, SWIZZLE_32B])
@pytest.mark.parametrize("shape", COPIES)
def test_copy_from_shared(emulator: Emulator, shape: str, mode: int):
    num_rows, row_bytes, lanes_of = COPIES[shape]
    place = swizzled_32 if mode == SWIZZLE_32B else unswizzled
    matrix = np.random.default_rng(3).integers(0, 1 << 32, (num_rows, row_bytes // 4), dtype=np.uint32)
    image = np.zeros(SHARED_BYTES // 4, np.uint32)
    for row, word in np.ndindex(matrix.shape):
        image[place(row, 4 * word) // 4] = matrix[row, word]
    columns = row_bytes // 4
    desc = descriptor(0 if mode else 2048, 256 if mode else 128, mode)
    body = f"""
      mov.u32 %r0, source;
      mov.b32 %r1, 0;
    FILL:
      mad.lo.u32 %r2, %r1, 128, %tid;
      mul.wide.u32 %d0, %r2, 4;
      add.s64 %d1, %p_0, %d0;
      ld.global.b32 %r3, [%d1];
      mad.lo.u32 %r4, %r2, 4, %r0;
      st.shared.b32 [%r4], %r3;
      add.u32 %r1, %r1, 1;
      setp.lt.u32 %q0, %r1, {SHARED_BYTES // 512};
      @%q0 bra FILL;
      mov.b32 %r5, 0x7777;
      tcgen05.st.sync.aligned.32x32b.x{columns}.b32 [%r102], {{{", ".join(["%r5"] * columns)}}};
      tcgen05.wait::st.sync.aligned;
      fence.proxy.async.shared::cta;
      setp.eq.u32 %q1, %tid, 0;
      @%q1 mbarrier.init.shared.b64 [done], 1;
      tcgen05.fence::before_thread_sync;
      bar.sync 0;
      tcgen05.fence::after_thread_sync;
      shr.u32 %r6, %r0, 4;
      cvt.u64.u32 %d2, %r6;
      or.b64 %d3, %d2, {desc:#x};
      @%q1 tcgen05.cp.cta_group::1.{shape} [%r100], %d3;
      @%q1 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [done];
    WAIT:
      mbarrier.try_wait.parity.shared.b64 %q2, [done], 0;
      @!%q2 bra WAIT;
      tcgen05.fence::after_thread_sync;
      tcgen05.ld.sync.aligned.32x32b.x{columns}.b32 {vector(40, columns)}, [%r102];
      tcgen05.wait::ld.sync.aligned;
      mad.wide.u32 %d4, %tid, {4 * columns}, %p_1;
    """ + "\n".join(f"st.global.b32 [%d4+{4 * i}], %r{40 + i};" for i in range(columns))
    out = np.zeros((128, columns), np.uint32)
    run_body(emulator, framed(body), [Tensor(image), Tensor(out, WRITE)], BLOCK, declarations=DECLARATIONS)
    expected = np.full_like(out, 0x7777)
    for row in range(num_rows):
        expected[lanes_of(row)] = matrix[row]
    np.testing.assert_array_equal(out, expected)
