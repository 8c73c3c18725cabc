# SPDX-License-Identifier: Apache-2.0
"""tcgen05.mma by threads: they write the operands where the PTX ISA's layouts (9.7.16, "Canonical layouts", "Data path
layout", "Scale factor layout") put them, and read D from tensor memory. The layouts are numpy formulas of this file.

Values are small, so that every sum is exact in f32 and in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import pytest
from emulator_driver import WRITE, Emulator, Launch, Schedule, Tensor, run_body
from tmem_frame import framed

N = 32
SHARED_BYTES = 32768
B_OFFSET = 16384
A_COLUMN = 32
DECLARATIONS = (
    f".shared .align 8 .b32 slot;\n.shared .align 8 .b64 done;\n.shared .align 1024 .b8 source[{SHARED_BYTES}];"
)

# A layout: (line, byte) -> offset. K-major: a line is a row; MN-major: a line is a k.
Place = Callable[[int, int], int]


def k_plain(row: int, byte: int) -> int:
    return row // 8 * 128 + row % 8 * 16 + byte // 16 * 4096 + byte % 16


def k_swizzled(span: int) -> Place:
    """Rows of `span` bytes; the 16-byte chunks of 128 / span rows each change places alike."""
    rows_alike = 128 // span
    return lambda row, byte: row * span + (byte // 16 ^ row % 8 // rows_alike) * 16 + byte % 16


def mn_plain(k: int, byte: int) -> int:
    return byte // 16 * 128 + k // 8 * 4096 + k % 8 * 16 + byte % 16


def mn_128(k: int, byte: int) -> int:
    """Eight k of 128 bytes of M; chunks of 16 bytes move by k."""
    return byte // 128 * 4096 + k // 8 * 1024 + k % 8 * 128 + (byte % 128 // 16 ^ k % 8) * 16 + byte % 16


def mn_128_atoms_of_32(k: int, byte: int) -> int:
    """Four k of 128 bytes of M; chunks of 32 bytes move by k."""
    return byte // 128 * 4096 + k // 4 * 512 + k % 4 * 128 + (byte % 128 // 32 ^ k % 4) * 32 + byte % 32


@dataclass(frozen=True)
class Layout:
    """mode, leading and stride bytes: of the descriptor."""

    place: Place
    mode: int
    leading: int
    stride: int
    mn_major: bool = False

    @property
    def descriptor(self) -> int:
        return (self.leading >> 4) << 16 | (self.stride >> 4) << 32 | 1 << 46 | self.mode << 61


PLAIN = Layout(k_plain, 0, 4096, 128)
K_MAJOR = {"none": PLAIN, "32B": Layout(k_swizzled(32), 6, 0, 256), "64B": Layout(k_swizzled(64), 4, 0, 512)}
K_MAJOR["128B"] = Layout(k_swizzled(128), 2, 0, 1024)
MN_PLAIN = Layout(mn_plain, 0, 4096, 128, mn_major=True)
MN_128 = Layout(mn_128, 2, 4096, 1024, mn_major=True)
MN_ATOM32 = Layout(mn_128_atoms_of_32, 1, 4096, 512, mn_major=True)


@dataclass(frozen=True)
class Elem:
    """An operand type: its code in the instruction descriptor, and bytes (of one element in shared memory)."""

    code: int
    dtype: np.dtype
    values: tuple[float, ...] = (-2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2)

    def bytes_of(self, values: np.ndarray) -> np.ndarray:
        """(lines, elems) values as (lines, bytes); 4- and 6-bit ones in a byte each."""
        return np.ascontiguousarray(values.astype(self.dtype)).view(np.uint8).reshape(len(values), -1)


WHOLE = (-3, -2, -1, 0, 1, 2, 3)
F16, BF16 = Elem(0, np.dtype(np.float16)), Elem(1, np.dtype(ml_dtypes.bfloat16))
TF32 = Elem(2, np.dtype(np.float32))
E4M3, E5M2 = Elem(0, np.dtype(ml_dtypes.float8_e4m3fn)), Elem(1, np.dtype(ml_dtypes.float8_e5m2))
S8, U8 = Elem(1, np.dtype(np.int8), WHOLE), Elem(0, np.dtype(np.uint8), (0, 1, 2, 200))


@dataclass(frozen=True)
class Case:
    kind: str
    a: Elem
    b: Elem
    k: int
    m: int = 128
    a_layout: Layout = PLAIN
    b_layout: Layout = PLAIN
    negate: tuple[bool, bool] = (False, False)
    a_in_tmem: bool = False
    accumulate: bool = False
    disabled: tuple[int, ...] = ()  # words of the disable-output-lane vector
    d_code: int = 1
    num_ctas: int = 1  # that share the rows of A, of B and of D
    name: str = field(default="", compare=False)

    @property
    def instruction_descriptor(self) -> int:
        fields = self.d_code << 4 | self.a.code << 7 | self.b.code << 10 | self.negate[0] << 13 | self.negate[1] << 14
        majors = self.a_layout.mn_major << 15 | self.b_layout.mn_major << 16
        return fields | majors | N // 8 << 17 | self.m // 16 << 24


def filled(layout: Layout, elem: Elem, values: np.ndarray) -> np.ndarray:
    """An image of (rows, k) values in shared memory."""
    image = np.zeros(B_OFFSET, np.uint8)
    lines = elem.bytes_of(values.T if layout.mn_major else values)
    for line, byte in np.ndindex(lines.shape):
        image[layout.place(line, byte)] = lines[line, byte]
    return image


def vector(first: int, count: int) -> str:
    return "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"


def kernel(case: Case) -> str:
    """Of each CTA, p_0: shared memory; p_1: 64 columns of tensor memory, by lane; p_2: D, by lane."""
    a = "[%r103]" if case.a_in_tmem else "%d3"
    disabled = "{" + ", ".join(hex(word) for word in case.disabled) + "}, " if case.disabled else ""
    load_tmem = "".join(
        "".join(f"ld.global.b32 %r{i}, [%d5+{4 * (first + i)}];\n" for i in range(32))
        + f"tcgen05.st.sync.aligned.32x32b.x32.b32 [%r102+{first}], {vector(0, 32)};\n"
        + "tcgen05.wait::st.sync.aligned;\n"
        for first in (0, 32)
    )
    group, sync, signal = f"cta_group::{case.num_ctas}", "bar.sync 0;", "b64 [done]"
    if case.num_ctas == 2:
        sync = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
        signal = "multicast::cluster.b64 [done], %h0"
    return f"""
      mov.u32 %r110, %cluster_ctarank;
      mad.wide.u32 %d10, %r110, {SHARED_BYTES}, %p_0;
      mad.wide.u32 %d11, %r110, {128 * 256}, %p_1;
      mad.wide.u32 %d12, %r110, {128 * 4 * N}, %p_2;
      mov.u16 %h0, 3;
      mov.u32 %r90, source;
      mov.b32 %r91, 0;
    FILL:
      mad.lo.u32 %r92, %r91, 128, %tid;
      mul.wide.u32 %d0, %r92, 4;
      add.s64 %d1, %d10, %d0;
      ld.global.b32 %r93, [%d1];
      mad.lo.u32 %r94, %r92, 4, %r90;
      st.shared.b32 [%r94], %r93;
      add.u32 %r91, %r91, 1;
      setp.lt.u32 %q0, %r91, {SHARED_BYTES // 512};
      @%q0 bra FILL;
      mad.wide.u32 %d5, %tid, 256, %d11;
      {load_tmem}
      fence.proxy.async.shared::cta;
      setp.eq.u32 %q1, %tid, 0;
      @%q1 mbarrier.init.shared.b64 [done], 1;
      @%q1 fence.mbarrier_init.release.cluster;
      tcgen05.fence::before_thread_sync;
      {sync}
      tcgen05.fence::after_thread_sync;
      shr.u32 %r95, %r90, 4;
      cvt.u64.u32 %d2, %r95;
      or.b64 %d3, %d2, {case.a_layout.descriptor:#x};
      add.u64 %d2, %d2, {B_OFFSET >> 4};
      or.b64 %d4, %d2, {case.b_layout.descriptor:#x};
      add.u32 %r103, %r100, {A_COLUMN};
      mov.b32 %r96, {case.instruction_descriptor:#x};
      setp.eq.u32 %q2, {int(case.accumulate)}, 1;
      setp.eq.and.u32 %q4, %r110, 0, %q1;
      @%q4 tcgen05.mma.{group}.kind::{case.kind} [%r100], {a}, %d4, %r96, {disabled}%q2;
      @%q4 tcgen05.commit.{group}.mbarrier::arrive::one.shared::cluster.{signal};
    WAIT:
      mbarrier.try_wait.parity.shared.b64 %q3, [done], 0;
      @!%q3 bra WAIT;
      tcgen05.fence::after_thread_sync;
      tcgen05.ld.sync.aligned.32x32b.x{N}.b32 {vector(0, N)}, [%r102];
      tcgen05.wait::ld.sync.aligned;
      mad.wide.u32 %d6, %tid, {4 * N}, %d12;
    """ + "\n".join([*(f"st.global.b32 [%d6+{4 * i}], %r{i};" for i in range(N)), sync])


def places(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of D, (M, N): CTA, lane and column.

    One CTA: a row a lane, and of 64 rows sixteen in each quarter. Two: half of the rows each, and of 64 rows the second
    half of the columns in the lanes behind them.
    """
    rows, columns = np.mgrid[: case.m, :N]
    if case.num_ctas == 1:
        return rows * 0, rows if case.m == 128 else rows // 16 * 32 + rows % 16, columns
    if case.m == 256:
        return rows // 128, rows % 128, columns
    return rows // 64, rows % 64 + 64 * (columns >= N // 2), columns % (N // 2)


CASES = (
    *(Case("f16", F16, F16, 16, a_layout=x, b_layout=x, name=f"f16, {name}") for name, x in K_MAJOR.items()),
    Case("f16", BF16, BF16, 16, name="bf16"),
    Case("f16", F16, F16, 16, 64, name="f16, M 64"),
    Case("f16", F16, F16, 16, negate=(True, False), name="f16, -A"),
    Case("f16", F16, F16, 16, negate=(False, True), accumulate=True, name="f16, -B, accumulated"),
    Case("f16", F16, F16, 16, a_layout=MN_PLAIN, b_layout=PLAIN, name="f16, A of M major"),
    Case("f16", F16, F16, 16, a_layout=MN_128, b_layout=MN_PLAIN, name="f16, A of M major 128B, B of N major"),
    Case("f16", F16, F16, 16, a_in_tmem=True, name="f16, A in tensor memory"),
    Case("f16", F16, F16, 16, accumulate=True, disabled=(0xF, 0, 1 << 31, 0xFFFFFFFF), name="f16, lanes disabled"),
    Case("tf32", TF32, TF32, 8, name="tf32"),
    Case("tf32", TF32, TF32, 8, a_layout=K_MAJOR["32B"], b_layout=K_MAJOR["128B"], name="tf32, 32B and 128B"),
    Case("tf32", TF32, TF32, 8, a_layout=MN_ATOM32, b_layout=MN_ATOM32, name="tf32, M and N major, 32B atoms"),
    *(
        Case("f8f6f4", a, b, 32, name=f"f8f6f4, {a.dtype} x {b.dtype}")
        for a, b in ((E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2))
    ),
    Case("f8f6f4", E4M3, E4M3, 32, 64, a_layout=K_MAJOR["64B"], name="f8f6f4, M 64, 64B"),
    Case("f16", F16, F16, 16, 256, num_ctas=2, name="f16, two CTAs"),
    Case(
        "f16",
        F16,
        F16,
        16,
        256,
        accumulate=True,
        a_layout=MN_128,
        b_layout=K_MAJOR["64B"],
        num_ctas=2,
        name="f16, two CTAs, accumulated, A of M major",
    ),
    Case("f16", BF16, BF16, 16, 128, num_ctas=2, name="bf16, two CTAs, M 128"),
    Case("f16", F16, F16, 16, 256, a_in_tmem=True, num_ctas=2, name="f16, two CTAs, A in tensor memory"),
    Case(
        "f16",
        F16,
        F16,
        16,
        256,
        disabled=(0xF, 0, 1 << 31, 0, 0, 3, 0, 0xFFFFFFFF),
        num_ctas=2,
        name="f16, two CTAs, lanes disabled",
    ),
    Case("f8f6f4", E4M3, E5M2, 32, 256, a_layout=K_MAJOR["32B"], num_ctas=2, name="f8f6f4, two CTAs"),
    Case("tf32", TF32, TF32, 8, 128, accumulate=True, num_ctas=2, name="tf32, two CTAs, M 128, accumulated"),
    Case("i8", S8, S8, 32, 256, d_code=2, num_ctas=2, name="s8, two CTAs"),
    Case("i8", S8, S8, 32, d_code=2, name="s8"),
    Case("i8", U8, S8, 32, d_code=2, accumulate=True, name="u8 x s8, accumulated"),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_mma(emulator: Emulator, case: Case):
    rng = np.random.default_rng(5)
    a = rng.choice(case.a.values, (case.m, case.k))
    b = rng.choice(case.b.values, (N, case.k))
    num = case.num_ctas
    image = np.zeros((num, SHARED_BYTES), np.uint8)
    for cta, (a_rows, b_rows) in enumerate(zip(np.split(a, num), np.split(b, num), strict=True)):
        if not case.a_in_tmem:
            image[cta, :B_OFFSET] = filled(case.a_layout, case.a, a_rows)
        image[cta, B_OFFSET:] = filled(case.b_layout, case.b, b_rows)
    start = rng.choice(WHOLE, (num, 128, N))
    number = np.int32 if case.kind == "i8" else np.float32
    tmem = np.zeros((num, 128, 64), np.uint32)
    tmem[..., :N] = start.astype(number).view(np.uint32)
    if case.a_in_tmem:
        words = case.a.bytes_of(a).view(np.uint32)
        tmem[..., A_COLUMN : A_COLUMN + words.shape[1]] = words.reshape(num, 128, -1)
    out = np.zeros((num, 128, N), np.uint32)
    tensors = [Tensor(image.view(np.uint32)), Tensor(tmem), Tensor(out, WRITE)]
    launch = Launch(grid=(num, 1, 1), block=(128, 1, 1), cluster=(num, 1, 1))
    body = framed(kernel(case), num_ctas=num)
    run_body(emulator, body, tensors, launch, Schedule(hazards=1), declarations=DECLARATIONS)
    expected = start.astype(np.float64)
    at = places(case)
    sums = a @ b.T * (-1) ** sum(case.negate)
    expected[at] = sums + (expected[at] if case.accumulate else 0)
    masks = np.array(case.disabled or (0,) * 4 * num, np.uint32).reshape(num, 4, 1)
    kept = (masks >> np.arange(32, dtype=np.uint32) & 1).astype(bool).reshape(num, 128)
    expected[kept] = start[kept]
    np.testing.assert_array_equal(out.view(number), expected)
