# SPDX-License-Identifier: Apache-2.0
"""ldmatrix and stmatrix of 8-bit elements, from memory of 8, 6 and 4 bits, by threads on the other side."""

from __future__ import annotations

import numpy as np
import pytest
from emulator_driver import WRITE, Emulator, EmulatorError, Schedule, Tensor, run_body

RNG = np.random.default_rng(17)
STRICT = Schedule(hazards=2)
TILE = ".shared .align 16 .b8 tile[512];"
# %r10: the lane's 16 bytes of the tile; %d10, %d11: of the tensors.
ADDRESSES = """
  mov.u32 %r10, tile;
  mad.lo.u32 %r10, %tid, 16, %r10;
  mul.wide.u32 %d9, %tid, 16;
  add.s64 %d10, %p_0, %d9;
  add.s64 %d11, %p_1, %d9;
"""
FROM_TENSOR = (
    ADDRESSES
    + """
  ld.global.v4.b32 {%r0, %r1, %r2, %r3}, [%d10];
  mov.u32 %r4, 0; mov.u32 %r5, 0; mov.u32 %r6, 0; mov.u32 %r7, 0;
"""
)
BITS = {"b8": 8, "b8x16.b6x16_p32": 6, "b8x16.b4x16_p64": 4}


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """(32, 16) codes -> (32, 16) bytes: those of a row one behind the other, then padding that must not be seen."""
    stream = (codes[..., None] >> np.arange(bits) & 1).reshape(len(codes), -1)
    data = np.packbits(stream.astype(np.uint8), axis=1, bitorder="little")
    padding = RNG.integers(0, 256, (len(codes), 16 - data.shape[1]), np.uint8)
    return np.ascontiguousarray(np.concatenate([data, padding], 1))


def loaded(emulator: Emulator, form: str, codes: np.ndarray) -> np.ndarray:
    """(lane, register, byte) of what the instruction gives. Row i of the codes is at the address of lane i."""
    num = int(form.split(".x")[1][0]) * (2 if "m16n16" in form else 1)
    registers = ", ".join(f"%r{4 + i}" for i in range(num))
    data = packed(codes, BITS[form.split("shared.")[1]])
    out = np.zeros((32, 4), np.uint32)
    body = (
        FROM_TENSOR
        + f"""
      st.shared.v4.b32 [%r10], {{%r0, %r1, %r2, %r3}};
      bar.warp.sync -1;
      ldmatrix.sync.aligned.{form} {{{registers}}}, [%r10];
      st.global.v4.b32 [%d11], {{%r4, %r5, %r6, %r7}};
    """
    )
    run_body(emulator, body, [Tensor(data), Tensor(out, WRITE)], schedule=STRICT, declarations=TILE)
    assert (out[:, num:] == 0).all()
    return out[:, :num].copy().view(np.uint8).reshape(32, num, 4)


@pytest.mark.parametrize("kind", BITS)
@pytest.mark.parametrize("num", [1, 2])
def test_columns_of_16_by_16(emulator: Emulator, kind: str, num: int):
    codes = RNG.integers(0, 1 << BITS[kind], (32, 16))
    got = loaded(emulator, f"m16n16.x{num}.trans.shared.{kind}", codes)
    for lane in range(32):
        for register in range(2 * num):
            rows = 16 * (register // 2) + lane % 4 * 4 + np.arange(4)
            assert (got[lane, register] == codes[rows, lane // 4 + 8 * (register % 2)]).all(), (lane, register)


@pytest.mark.parametrize("kind", ["b8x16.b6x16_p32", "b8x16.b4x16_p64"])
@pytest.mark.parametrize("num", [1, 2, 4])
def test_rows_of_8_by_16(emulator: Emulator, kind: str, num: int):
    codes = RNG.integers(0, 1 << BITS[kind], (32, 16))
    got = loaded(emulator, f"m8n16.x{num}.shared.{kind}", codes)
    for lane in range(32):
        for register in range(num):
            wanted = codes[8 * register + lane // 4, lane % 4 * 4 : lane % 4 * 4 + 4]
            assert (got[lane, register] == wanted).all(), (lane, register)


@pytest.mark.parametrize("num", [1, 2, 4])
def test_a_store_of_16_by_8(emulator: Emulator, num: int):
    fragments = RNG.integers(0, 256, (32, 4, 4), np.uint8)  # lane, register, byte
    out = np.zeros((32, 16), np.uint8)
    registers = ", ".join(f"%r{i}" for i in range(num))
    body = (
        FROM_TENSOR
        + f"""
      st.shared.v4.b32 [%r10], {{%r4, %r5, %r6, %r7}};
      bar.warp.sync -1;
      stmatrix.sync.aligned.m16n8.x{num}.trans.shared.b8 [%r10], {{{registers}}};
      bar.warp.sync -1;
      ld.shared.v4.b32 {{%r0, %r1, %r2, %r3}}, [%r10];
      st.global.v4.b32 [%d11], {{%r0, %r1, %r2, %r3}};
    """
    )
    run_body(emulator, body, [Tensor(fragments), Tensor(out, WRITE)], schedule=STRICT, declarations=TILE)
    wanted = np.zeros((32, 16), np.uint8)
    for lane in range(32):
        for matrix in range(num):
            for byte in range(4):
                column, row = lane % 4 * 2 + byte % 2, lane // 4 + 8 * (byte // 2)  # an accumulator's fragment
                wanted[8 * matrix + column, row] = fragments[lane, matrix, byte]
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        ("ldmatrix.sync.aligned.m16n16.x1.shared.b8 {%r0, %r1}, [%r10];", "one of .trans is wanted"),
        ("ldmatrix.sync.aligned.m16n16.x4.trans.shared.b8 {%r0, %r1}, [%r10];", "one of .x1, .x2 is wanted"),
        ("ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r0}, [%r10];", "wrong length"),
        ("ldmatrix.sync.aligned.m8n16.x1.shared.b8 {%r0}, [%r10];", "one of .b8x16 is wanted"),
        ("stmatrix.sync.aligned.m16n8.x1.shared.b8 [%r10], {%r0};", "one of .trans is wanted"),
    ],
)
def test_forms_that_are_not_there(emulator: Emulator, instruction: str, message: str):
    with pytest.raises(EmulatorError, match=message):
        run_body(emulator, ADDRESSES + instruction, [Tensor(np.zeros(4, np.uint32))] * 2, declarations=TILE)


def test_hopper_lacks_them(emulator: Emulator):
    body = ADDRESSES + "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r0, %r1}, [%r10];"
    with pytest.raises(EmulatorError, match="by the target sm_90a"):
        run_body(emulator, body, [Tensor(np.zeros(4, np.uint32))] * 2, target="sm_90a", declarations=TILE)
