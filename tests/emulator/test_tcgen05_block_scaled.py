# SPDX-License-Identifier: Apache-2.0
"""tcgen05.mma.block_scale by threads: they write operands of 8, 6 and 4 bits, and scale factors, where the PTX ISA has
them (9.7.16, "Canonical layouts", "Packing formats", "Block scaling"). The layouts are numpy formulas of this file.

Scale factors are powers of two and values small, so that every sum is exact in f32 and in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import pytest
from emulator_driver import WRITE, Emulator, EmulatorError, Launch, Tensor, run_body
from tmem_frame import framed

M, N = 128, 32
B_OFFSET, SHARED_BYTES = 8192, 14336
SFA_COLUMN, SFB_COLUMN, COLUMNS = 32, 48, 64
GROUP_COLUMNS = 4  # of four factors a row: one for each 32 of up to 128 rows
ROW_GROUP_BYTES, CHUNK_BYTES = 128, 2048  # from eight rows to the next, from 16 bytes of a row to the next
DECLARATIONS = (
    f".shared .align 8 .b32 slot;\n.shared .align 8 .b64 done;\n.shared .align 1024 .b8 source[{SHARED_BYTES}];"
)
VALUES = (-2, -1, 0, 1, 2, 4)  # which all formats have


@dataclass(frozen=True)
class Elem:
    """An operand type: its code in the instruction descriptor, and its bits."""

    code: int
    dtype: type
    bits: int


E4M3, E5M2 = Elem(0, ml_dtypes.float8_e4m3fn, 8), Elem(1, ml_dtypes.float8_e5m2, 8)
E2M3, E3M2 = Elem(3, ml_dtypes.float6_e2m3fn, 6), Elem(4, ml_dtypes.float6_e3m2fn, 6)
E2M1_PADDED, E2M1 = Elem(5, ml_dtypes.float4_e2m1fn, 4), Elem(1, ml_dtypes.float4_e2m1fn, 4)
UE4M3, UE8M0 = (0, ml_dtypes.float8_e4m3fn), (1, ml_dtypes.float8_e8m0fnu)


@dataclass(frozen=True)
class Case:
    kind: str
    suffix: str  # .scale_vec or .block; "" is the kind's default
    block: int  # elements of K under one factor
    a: Elem = E2M1
    b: Elem = E2M1
    scale: tuple[int, type] = UE8M0
    k: int = 64
    ids: tuple[int, int] = (0, 0)
    negate: tuple[bool, bool] = (False, False)
    accumulate: bool = False
    target: str = "sm_100a"
    name: str = field(default="", compare=False)

    @property
    def instruction_descriptor(self) -> int:
        types = self.a.code << 7 | self.b.code << 10 | self.scale[0] << 23
        scales = self.ids[1] << 4 | self.ids[0] << 29
        shape = N // 8 << 17 | M // 16 << 24 | (self.k == 96) << 31
        return types | scales | shape | self.negate[0] << 13 | self.negate[1] << 14


def row_bytes(case: Case, elem: Elem, values: np.ndarray) -> np.ndarray:
    """(rows, k) values as (rows, bytes): 16 elements of 8, 6 or 4 bits in 16 bytes, one after the other, or 32 of
    4 bits where both operands are of that kind."""
    codes = values.astype(elem.dtype).view(np.uint8)
    elems_a_chunk = 32 if case.kind != "mxf8f6f4" else 16
    bits = (codes[..., None] >> np.arange(elem.bits, dtype=np.uint8) & 1).reshape(
        len(values), -1, elems_a_chunk * elem.bits
    )
    chunks = np.zeros((*bits.shape[:2], 128), np.uint8)
    chunks[..., : bits.shape[2]] = bits
    return np.packbits(chunks, axis=-1, bitorder="little").reshape(len(values), -1)


def fill(image: np.ndarray, first: int, rows: np.ndarray) -> None:
    """K-major, no swizzle: core matrices of eight rows of 16 bytes."""
    for row, byte in np.ndindex(rows.shape):
        place = row // 8 * ROW_GROUP_BYTES + byte // 16 * CHUNK_BYTES + row % 8 * 16 + byte % 16
        image[first + place] = rows[row, byte]


def put_factors(tmem: np.ndarray, column: int, first_id: int, codes: np.ndarray) -> None:
    """(rows, factors) codes: a byte each from `first_id` on, row r in lane r % 32 of column r / 32, and a copy in each
    quarter of the lanes; what does not fit in four bytes goes on in the next group of columns."""
    cells = tmem.view(np.uint8).reshape(4, 32, COLUMNS, 4)
    for row, factor in np.ndindex(codes.shape):
        group, byte = divmod(first_id + factor, 4)
        cells[:, row % 32, column + group * GROUP_COLUMNS + row // 32, byte] = codes[row, factor]


def vector(first: int, count: int) -> str:
    return "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"


def kernel(case: Case) -> str:
    """p_0: shared memory; p_1: tensor memory, by lane; p_2: D, by lane."""
    descriptor = CHUNK_BYTES >> 4 << 16 | ROW_GROUP_BYTES >> 4 << 32 | 1 << 46
    load_tmem = "".join(
        "".join(f"ld.global.b32 %r{i}, [%d5+{4 * (first + i)}];\n" for i in range(32))
        + f"tcgen05.st.sync.aligned.32x32b.x32.b32 [%r102+{first}], {vector(0, 32)};\n"
        + "tcgen05.wait::st.sync.aligned;\n"
        for first in range(0, COLUMNS, 32)
    )
    return f"""
      mov.u32 %r90, source;
      mov.b32 %r91, 0;
    FILL:
      mad.lo.u32 %r92, %r91, 128, %tid;
      mul.wide.u32 %d0, %r92, 4;
      add.s64 %d1, %p_0, %d0;
      ld.global.b32 %r93, [%d1];
      mad.lo.u32 %r94, %r92, 4, %r90;
      st.shared.b32 [%r94], %r93;
      add.u32 %r91, %r91, 1;
      setp.lt.u32 %q0, %r91, {SHARED_BYTES // 512};
      @%q0 bra FILL;
      mad.wide.u32 %d5, %tid, {4 * COLUMNS}, %p_1;
      {load_tmem}
      fence.proxy.async.shared::cta;
      setp.eq.u32 %q1, %tid, 0;
      @%q1 mbarrier.init.shared.b64 [done], 1;
      tcgen05.fence::before_thread_sync;
      bar.sync 0;
      tcgen05.fence::after_thread_sync;
      shr.u32 %r95, %r90, 4;
      cvt.u64.u32 %d2, %r95;
      or.b64 %d3, %d2, {descriptor:#x};
      add.u64 %d4, %d3, {B_OFFSET >> 4};
      add.u32 %r103, %r100, {SFA_COLUMN};
      add.u32 %r104, %r100, {SFB_COLUMN};
      mov.b32 %r96, {case.instruction_descriptor:#x};
      setp.eq.u32 %q2, {int(case.accumulate)}, 1;
      @%q1 tcgen05.mma.cta_group::1.kind::{case.kind}.block_scale{case.suffix}
        [%r100], %d3, %d4, %r96, [%r103], [%r104], %q2;
      @%q1 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [done];
    WAIT:
      mbarrier.try_wait.parity.shared.b64 %q3, [done], 0;
      @!%q3 bra WAIT;
      tcgen05.fence::after_thread_sync;
      tcgen05.ld.sync.aligned.32x32b.x{N}.b32 {vector(0, N)}, [%r102];
      tcgen05.wait::ld.sync.aligned;
      mad.wide.u32 %d6, %tid, {4 * N}, %p_2;
    """ + "\n".join(f"st.global.b32 [%d6+{4 * i}], %r{i};" for i in range(N))


MX8 = ("mxf8f6f4", ".scale_vec::1X", 32)
NV4 = ("mxf4nvf4", ".scale_vec::4X", 16)
K96 = {"k": 96, "target": "sm_103a"}
CASES = (
    *(
        Case(*MX8, a, b, k=32, name=f"mxf8f6f4, {a.dtype.__name__} x {b.dtype.__name__}")
        for a, b in ((E4M3, E4M3), (E5M2, E2M3), (E2M3, E3M2), (E3M2, E2M1_PADDED), (E2M1_PADDED, E5M2))
    ),
    *(Case(*MX8, E4M3, E4M3, k=32, ids=ids, name=f"mxf8f6f4, ids {ids}") for ids in ((1, 0), (0, 2), (3, 1))),
    Case("mxf8f6f4", "", 32, E4M3, E4M3, k=32, negate=(True, False), accumulate=True, name="mxf8f6f4, -A, accumulated"),
    Case("mxf8f6f4", ".block32", 32, E4M3, E4M3, k=32, name="mxf8f6f4.block32"),
    Case("mxf4", ".scale_vec::2X", 32, name="mxf4"),
    Case("mxf4", "", 32, ids=(2, 0), negate=(False, True), name="mxf4, ids (2, 0), -B"),
    Case("mxf4", ".block32", 32, ids=(0, 2), accumulate=True, name="mxf4.block32, ids (0, 2), accumulated"),
    Case("mxf4nvf4", ".scale_vec::2X", 32, ids=(2, 2), name="mxf4nvf4, 2X"),
    Case(*NV4, name="mxf4nvf4, 4X of ue8m0"),
    Case(*NV4, scale=UE4M3, accumulate=True, name="mxf4nvf4, 4X of ue4m3, accumulated"),
    Case("mxf4nvf4", ".block16", 16, scale=UE4M3, name="mxf4nvf4.block16"),
    Case("mxf4", ".block32", 32, **K96, name="mxf4, K 96"),
    Case("mxf4nvf4", ".block16", 16, scale=UE4M3, **K96, name="mxf4nvf4.block16, K 96"),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_block_scaled_mma(emulator: Emulator, case: Case):
    rng = np.random.default_rng(6)
    a, b = (rng.choice(VALUES, (rows, case.k)).astype(np.float64) for rows in (M, N))
    factors = [rng.choice((0.25, 0.5, 1, 2, 4), (rows, case.k // case.block)) for rows in (M, N)]
    image = np.zeros(SHARED_BYTES, np.uint8)
    fill(image, 0, row_bytes(case, case.a, a))
    fill(image, B_OFFSET, row_bytes(case, case.b, b))
    tmem = np.full((128, COLUMNS), 0x7F7F7F7F, np.uint32)  # NaN or huge as another factor
    start = rng.choice(VALUES, (M, N)).astype(np.float32)
    tmem[:, :N] = start.view(np.uint32)
    for column, first_id, values in zip((SFA_COLUMN, SFB_COLUMN), case.ids, factors, strict=True):
        put_factors(tmem, column, first_id, values.astype(case.scale[1]).view(np.uint8))
    out = np.zeros((M, N), np.uint32)
    tensors = [Tensor(image.view(np.uint32)), Tensor(tmem), Tensor(out, WRITE)]
    launch = Launch(block=(128, 1, 1))
    run_body(emulator, framed(kernel(case)), tensors, launch, target=case.target, declarations=DECLARATIONS)
    scaled_a, scaled_b = (v * np.repeat(f, case.block, axis=1) for v, f in zip((a, b), factors, strict=True))
    expected = scaled_a @ scaled_b.T * (-1) ** sum(case.negate) + (start if case.accumulate else 0)
    np.testing.assert_array_equal(out.view(np.float32), expected)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case("mxf4", "", 32, k=96), "K = 96 needs sm_103a"),
        (Case("mxf4", "", 32, scale=UE4M3), "the scale-factor type is 0"),
        (Case("mxf4", "", 32, ids=(1, 0)), "the scale-factor id of A is 1"),
        (Case("mxf4nvf4", ".scale_vec::4X", 16, ids=(0, 2)), "the scale-factor id of B is 2"),
        (Case("mxf8f6f4", ".scale_vec::2X", 16, E4M3, E4M3, k=32), "scale_vec is 2"),
        (Case("mxf8f6f4", "", 32, Elem(2, ml_dtypes.float8_e4m3fn, 8), E4M3, k=32), "the type of A is 2"),
    ],
)
def test_refused(emulator: Emulator, case: Case, message: str):
    tensors = [Tensor(np.zeros(size, np.uint32)) for size in (SHARED_BYTES // 4, (128, COLUMNS))]
    tensors.append(Tensor(np.zeros((M, N), np.uint32), WRITE))
    with pytest.raises(EmulatorError, match=message):
        run_body(emulator, framed(kernel(case)), tensors, Launch(block=(128, 1, 1)), declarations=DECLARATIONS)
