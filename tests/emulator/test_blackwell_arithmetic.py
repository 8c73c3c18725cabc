# SPDX-License-Identifier: Apache-2.0
"""Arithmetic that sm_90a lacks (tests/truth has what an H200 can show): exact bits against numpy."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from emulator_driver import WRITE, Emulator, Launch, Tensor, run_body

RNG = np.random.default_rng(7)
NUM = 32
NAN = 0x7FFFFFFF


def f32_values() -> np.ndarray:
    """Ordinary values, wide exponents, and the special ones."""
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42, -1e-42, 3.4e38]
    wide = RNG.standard_normal(12) * 2.0 ** RNG.integers(-100, 100, 12)
    return np.concatenate([special, RNG.standard_normal(12), wide]).astype(np.float32)


def run_words(emulator: Emulator, body: str, inputs: list[np.ndarray], out: np.ndarray, target: str) -> np.ndarray:
    """Each lane has its element of input i in a register before the body: see the callers' loads."""
    tensors = [*(Tensor(np.ascontiguousarray(x)) for x in inputs), Tensor(out, WRITE, "out")]
    run_body(emulator, body, tensors, target=target)
    return out


def load(i: int, bits: int, register: str) -> str:
    return f"mul.wide.u32 %d50, %tid, {bits // 8}; add.s64 %d51, %p_{i}, %d50; ld.global.b{bits} {register}, [%d51];\n"


def store(i: int, bits: int, register: str) -> str:
    return f"mul.wide.u32 %d50, %tid, {bits // 8}; add.s64 %d51, %p_{i}, %d50; st.global.b{bits} [%d51], {register};\n"


def same_bits(got: np.ndarray, expected: np.ndarray) -> None:
    expected_bits = np.where(np.isnan(expected), NAN, expected.view(np.uint32))
    np.testing.assert_array_equal(got.view(np.uint32), expected_bits)


def rounded_down(exact: list[Fraction]) -> np.ndarray:
    """The largest f32 that is not above each value."""
    nearest = np.array([float(x) for x in exact]).astype(np.float32)
    above = np.array([Fraction(float(y)) > x for x, y in zip(exact, nearest, strict=True)])
    return np.where(above, np.nextafter(nearest, np.float32(-np.inf)), nearest)


@pytest.mark.parametrize(
    ("operation", "reference"),
    [("add.rn", np.add), ("sub.rn", np.subtract), ("mul.rn", np.multiply), ("mul", np.multiply)],
)
def test_f32x2(emulator: Emulator, operation: str, reference: Callable[..., np.ndarray]):
    a = np.stack([f32_values(), RNG.permutation(f32_values())], 1)
    b = np.stack([RNG.permutation(f32_values()), RNG.permutation(f32_values())], 1)
    body = load(0, 64, "%d0") + load(1, 64, "%d1") + f"{operation}.f32x2 %d2, %d0, %d1;" + store(2, 64, "%d2")
    got = run_words(emulator, body, [a, b], np.zeros((NUM, 2), np.float32), "sm_100a")
    with np.errstate(all="ignore"):
        same_bits(got, reference(a, b))


def test_f32x2_rounds_down(emulator: Emulator):
    """add.rm.f32x2: the floor of exp2's argument in attention kernels."""
    a = (RNG.standard_normal((NUM, 2)) * 100).astype(np.float32)
    b = np.full((NUM, 2), 1.5 * 2.0**23, np.float32)
    body = load(0, 64, "%d0") + load(1, 64, "%d1") + "add.rm.f32x2 %d2, %d0, %d1;" + store(2, 64, "%d2")
    got = run_words(emulator, body, [a, b], np.zeros((NUM, 2), np.float32), "sm_100a")
    exact = [Fraction(float(x)) + Fraction(float(y)) for x, y in zip(a.ravel(), b.ravel(), strict=True)]
    expected = rounded_down(exact).reshape(NUM, 2)
    np.testing.assert_array_equal(got, expected)
    assert (expected != a + b).any()


def test_f32x2_fma_rounds_once(emulator: Emulator):
    a, b, c = ((RNG.standard_normal((NUM, 2))).astype(np.float32) for _ in range(3))
    c = (-(a.astype(np.float64) * b)).astype(np.float32)  # cancellation: a product rounded first would give zeros
    loads = load(0, 64, "%d0") + load(1, 64, "%d1") + load(2, 64, "%d2")
    body = loads + "fma.rn.f32x2 %d3, %d0, %d1, %d2;" + store(3, 64, "%d3")
    got = run_words(emulator, body, [a, b, c], np.zeros((NUM, 2), np.float32), "sm_100a")
    expected = (a.astype(np.float64) * b + c).astype(np.float32)
    np.testing.assert_array_equal(got, expected)
    assert got.any()


@pytest.mark.parametrize("operation", ["max", "min", "max.NaN", "min.NaN", "max.abs", "max.NaN.abs", "min.NaN.abs"])
def test_extremum_of_three(emulator: Emulator, operation: str):
    a, b, c = f32_values(), RNG.permutation(f32_values()), RNG.permutation(f32_values())
    loads = load(0, 32, "%r0") + load(1, 32, "%r1") + load(2, 32, "%r2")
    body = loads + f"{operation}.f32 %r3, %r0, %r1, %r2;" + store(3, 32, "%r3")
    got = run_words(emulator, body, [a, b, c], np.zeros(NUM, np.float32), "sm_100a")
    propagates = "NaN" in operation
    if operation.endswith("abs"):
        a, b, c = np.abs(a), np.abs(b), np.abs(c)
    pick = {"max": (np.fmax, np.maximum), "min": (np.fmin, np.minimum)}[operation[:3]][propagates]
    expected = pick(pick(a, b), c)
    zero = (got == 0) & (expected == 0)  # numpy does not order -0 and +0
    same_bits(np.where(zero, 0, got).astype(np.float32), np.where(zero, 0, expected).astype(np.float32))


@pytest.mark.parametrize("half", ["f16", "bf16"])
@pytest.mark.parametrize("operation", ["add", "sub"])
def test_mixed_precision_sum(emulator: Emulator, half: str, operation: str):
    dtype = np.float16 if half == "f16" else ml_dtypes.bfloat16
    a, c = RNG.standard_normal(NUM).astype(dtype), (RNG.standard_normal(NUM) * 8).astype(np.float32)
    loads = load(0, 16, "%h0") + load(1, 32, "%r1")
    body = loads + f"{operation}.rn.f32.{half} %r2, %h0, %r1;" + store(2, 32, "%r2")
    got = run_words(emulator, body, [a.view(np.uint16), c], np.zeros(NUM, np.float32), "sm_100a")
    wide = a.astype(np.float32)
    np.testing.assert_array_equal(got, wide + c if operation == "add" else wide - c)


@pytest.mark.parametrize("half", ["f16", "bf16"])
def test_mixed_precision_fma(emulator: Emulator, half: str):
    dtype = np.float16 if half == "f16" else ml_dtypes.bfloat16
    a, b = (RNG.standard_normal(NUM).astype(dtype) for _ in range(2))
    c = RNG.standard_normal(NUM).astype(np.float32)
    loads = load(0, 16, "%h0") + load(1, 16, "%h1") + load(2, 32, "%r1")
    body = loads + f"fma.rn.f32.{half} %r2, %h0, %h1, %r1;" + store(3, 32, "%r2")
    got = run_words(emulator, body, [a.view(np.uint16), b.view(np.uint16), c], np.zeros(NUM, np.float32), "sm_100a")
    exact = a.astype(np.float64) * b.astype(np.float64) + c
    np.testing.assert_array_equal(got, exact.astype(np.float32))


def test_cvt_to_fp4_saturates_and_rounds_to_even(emulator: Emulator):
    a = np.concatenate([[0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 100.0], RNG.uniform(-7, 7, NUM - 8)]).astype(np.float32)
    b = RNG.uniform(-7, 7, NUM).astype(np.float32)
    convert = "{ .reg .b8 pair; cvt.rn.satfinite.e2m1x2.f32 pair, %r0, %r1; cvt.u32.u8 %r2, pair; }"
    body = load(0, 32, "%r0") + load(1, 32, "%r1") + convert + store(2, 32, "%r2")
    got = run_words(emulator, body, [a, b], np.zeros(NUM, np.uint32), "sm_100a")
    high, low = (np.clip(x, -6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8) for x in (a, b))
    np.testing.assert_array_equal(got, high.astype(np.uint32) << 4 | low)


@pytest.mark.parametrize(("rounding", "ceil"), [("rz", False), ("rp", True)])
def test_cvt_to_ue8m0(emulator: Emulator, rounding: str, ceil: bool):
    a = (2.0 ** RNG.uniform(-120, 120, NUM)).astype(np.float32)
    b = (2.0 ** RNG.integers(-100, 100, NUM).astype(np.float64)).astype(np.float32)
    convert = f"cvt.{rounding}.satfinite.ue8m0x2.f32 %h0, %r0, %r1;"
    body = load(0, 32, "%r0") + load(1, 32, "%r1") + convert + store(2, 16, "%h0")
    got = run_words(emulator, body, [a, b], np.zeros(NUM, np.uint16), "sm_100a")

    def code(x: np.ndarray) -> np.ndarray:
        mantissa, exponent = np.frexp(x.astype(np.float64))
        exact = mantissa == 0.5
        return (exponent - 1 + np.where(ceil & ~exact, 1, 0) + 127).astype(np.uint16)

    np.testing.assert_array_equal(got, code(a) << 8 | code(b))


@pytest.mark.parametrize(("operation", "reference"), [("min", np.fmin), ("max", np.fmax), ("max.abs", None)])
def test_redux_of_f32(emulator: Emulator, operation: str, reference: Callable[..., np.ndarray] | None):
    a = f32_values()
    body = load(0, 32, "%r0") + f"redux.sync.{operation}.f32 %r1, %r0, -1;" + store(1, 32, "%r1")
    got = run_words(emulator, body, [a], np.zeros(NUM, np.float32), "sm_100a")
    expected = np.fmax.reduce(np.abs(a)) if reference is None else reference.reduce(a)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(got, np.full(NUM, expected, np.float32))


def test_256_bit_loads_and_stores(emulator: Emulator):
    x = np.arange(NUM * 8 + 8, dtype=np.uint32)
    x = x[-x.ctypes.data // 4 % 8 :][: NUM * 8]
    y = np.zeros(NUM * 8 + 8, np.uint32)
    y = y[-y.ctypes.data // 4 % 8 :][: NUM * 8]
    registers = "{" + ", ".join(f"%r{i}" for i in range(8)) + "}"
    body = f"""
      mul.wide.u32 %d0, %tid, 32;
      add.s64 %d1, %p_0, %d0;
      add.s64 %d2, %p_1, %d0;
      ld.global.v8.b32 {registers}, [%d1];
      st.global.v8.b32 [%d2], {registers};
    """
    run_body(emulator, body, [Tensor(x), Tensor(y, WRITE)])
    np.testing.assert_array_equal(x, y)


def test_load_with_reduction_on_sm_103a(emulator: Emulator):
    y = np.zeros((128, 3), np.float32)
    body = """
      setp.lt.u32 %q30, %tid, 32;
      @%q30 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 32;
      bar.sync 0;
      ld.shared.b32 %r100, [slot];
      shr.u32 %r101, %tid, 5;
      shl.b32 %r101, %r101, 21;
      add.u32 %r102, %r100, %r101;
      cvt.rn.f32.u32 %r0, %tid;
      neg.f32 %r1, %r0;
      tcgen05.st.sync.aligned.32x32b.x2.b32 [%r102], {%r0, %r1};
      tcgen05.wait::st.sync.aligned;
      tcgen05.ld.red.sync.aligned.32x32b.x2.min.f32 {%r2, %r3}, %r4, [%r102];
      tcgen05.wait::ld.sync.aligned;
      mul.wide.u32 %d0, %tid, 12;
      add.s64 %d1, %p_0, %d0;
      st.global.b32 [%d1], %r2;
      st.global.b32 [%d1+4], %r3;
      st.global.b32 [%d1+8], %r4;
      bar.sync 0;
      @%q30 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r100, 32;
    """
    declarations = ".shared .align 8 .b32 slot;"
    run_body(emulator, body, [Tensor(y, WRITE)], Launch(block=(128, 1, 1)), target="sm_103a", declarations=declarations)
    lanes = np.arange(128, dtype=np.float32)
    np.testing.assert_array_equal(y, np.stack([lanes, -lanes, np.minimum(lanes, -lanes)], 1))


@pytest.mark.parametrize("relu", ["", ".relu"])
def test_cvt_scaled_fixed_point(emulator: Emulator, relu: str):
    """Every s2f6 number with some scale: exact, but for what is beyond the largest bf16."""
    body = load(0, 16, "%h0") + load(1, 16, "%h1")
    body += f"cvt.rn.satfinite{relu}.scaled::n2::ue8m0.bf16x2.s2f6x2 %r0, %h0, %h1;" + store(2, 32, "%r0")
    scale_codes = np.array([0, 1, 120, 127, 133, 253, 254, 255], np.uint8)
    for codes in np.arange(256, dtype=np.uint8).reshape(-1, NUM):
        values = np.stack([codes, RNG.permutation(codes)], 1)
        scales = RNG.permutation(np.tile(scale_codes, 2 * NUM // len(scale_codes))).reshape(NUM, 2)
        inputs = [values.view(np.uint16), scales.view(np.uint16)]
        got = run_words(emulator, body, inputs, np.zeros(NUM, np.uint32), "sm_100a").view(np.uint16).reshape(NUM, 2)
        exact = values.view(np.int8) / 64 * 2.0 ** (scales.astype(np.float64) - 127)
        largest = float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)
        expected = np.clip(exact, 0 if relu else -largest, largest).astype(ml_dtypes.bfloat16).view(np.uint16)
        np.testing.assert_array_equal(got, np.where(scales == 255, 0x7FFF, expected))
