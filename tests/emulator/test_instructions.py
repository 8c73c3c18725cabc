# SPDX-License-Identifier: Apache-2.0
"""Instructions that no unit kernel of tests/truth has, one at a time: results against numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from emulator_driver import READWRITE, WRITE, Emulator, EmulatorError, Launch, Tensor, run_body

RNG = np.random.default_rng(11)
TRUTH_MAPS = Path(__file__).parents[1] / "truth" / "vectors" / "tma.npz"
LANES = 32
LOAD = """
  mul.wide.u32 %d60, %tid, 4;
  add.s64 %d61, %p_0, %d60;
  add.s64 %d62, %p_1, %d60;
  ld.global.b32 %r0, [%d61];
  ld.global.b32 %r1, [%d61+128];
"""
STORE = "st.global.b32 [%d62], %r10;"
DECLARATIONS = ".shared .align 16 .b32 words[32];\n.shared .align 16 .b64 barrier;\n.shared .align 16 .b8 response[16];"

U32 = np.ndarray


@dataclass(frozen=True)
class Case:
    """`body` makes %r10 of a = %r0 and b = %r1, which are random words; %d61 is where a lies."""

    name: str
    body: str
    expected: Callable[[U32, U32], U32]


def low24(word: U32) -> np.ndarray:
    return word.astype(np.int64) & 0xFFFFFF


def signed24(word: U32) -> np.ndarray:
    return (low24(word) ^ 0x800000) - 0x800000


def same(a: U32, b: U32) -> U32:
    return a


def flags(word: int) -> Callable[[U32, U32], U32]:
    return lambda a, b: np.full(LANES, word, np.uint32)


def space_flags(address: str) -> str:
    """One bit a state space: global, shared, shared::cluster, local, const."""
    spaces = ("global", "shared::cta", "shared::cluster", "local")
    tests = (
        f"isspacep.{space} %q0, {address}; selp.b32 %r5, {1 << i}, 0, %q0; or.b32 %r10, %r10, %r5;"
        for i, space in enumerate(spaces)
    )
    return "mov.b32 %r10, 0;\n" + "\n".join(tests)


def pack_case(kind: str) -> Case:
    """cvt.pack of words of two bits more than the fields have: some saturate, some do not."""
    bits = int(kind[1:])
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)
    drop = 32 - bits - 2

    def expected(a: U32, b: U32) -> U32:
        fields = (np.clip(x.view(np.int32).astype(np.int64) >> drop, low, high) & (1 << bits) - 1 for x in (b, a))
        packed = sum(field << i * bits for i, field in enumerate(fields))
        return packed if bits == 16 else packed | b.astype(np.int64) << 2 * bits

    rest = "" if bits == 16 else ".b32"
    operands = "%r2, %r3" if bits == 16 else "%r2, %r3, %r1"
    shifts = f"shr.s32 %r2, %r0, {drop}; shr.s32 %r3, %r1, {drop};"
    return Case(f"cvt.pack.{kind}", f"{shifts} cvt.pack.sat.{kind}.s32{rest} %r10, {operands};", expected)


CASES = (
    *(pack_case(f"{sign}{bits}") for sign in "us" for bits in (2, 4, 8, 16)),
    Case("mul24.lo.u32", "mul24.lo.u32 %r10, %r0, %r1;", lambda a, b: low24(a) * low24(b)),
    Case("mul24.hi.u32", "mul24.hi.u32 %r10, %r0, %r1;", lambda a, b: low24(a) * low24(b) >> 16),
    Case("mul24.lo.s32", "mul24.lo.s32 %r10, %r0, %r1;", lambda a, b: signed24(a) * signed24(b)),
    Case("mul24.hi.s32", "mul24.hi.s32 %r10, %r0, %r1;", lambda a, b: signed24(a) * signed24(b) >> 16),
    Case("ldu", "ldu.global.b32 %r10, [%d61+128];", lambda a, b: b),
    Case(
        "createpolicy",
        "createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 %d0, 0f3f800000;\n"
        "ld.global.L2::cache_hint.b32 %r10, [%d61], %d0;",
        same,
    ),
    Case("isspacep, global", space_flags("%d61"), flags(1)),
    Case("isspacep, shared", "cvta.shared.u64 %d0, words;\n" + space_flags("%d0"), flags(6)),
    Case("prefetch", "prefetch.global.L2 [%d61]; prefetch.L1 [%d61]; mov.b32 %r10, %r0;", same),
    Case("prefetchu", "prefetchu.L1 [%d61]; mov.b32 %r10, %r0;", same),
    Case("cp.async.bulk.prefetch", "cp.async.bulk.prefetch.L2.global [%p_0], 128; mov.b32 %r10, %r0;", same),
    Case("applypriority", "applypriority.global.L2::evict_normal [%p_0], 128; mov.b32 %r10, %r0;", same),
    Case("nanosleep", "nanosleep.u32 100; mov.b32 %r10, %r0;", same),
    Case("pmevent", "pmevent 3; mov.b32 %r10, %r0;", same),
    Case("griddepcontrol", "griddepcontrol.wait; griddepcontrol.launch_dependents; mov.b32 %r10, %r0;", same),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_instruction(emulator: Emulator, case: Case):
    words = RNG.integers(0, 1 << 32, (2, LANES), dtype=np.uint32)
    out = np.zeros(LANES, np.uint32)
    tensors = [Tensor(words), Tensor(out, WRITE, "out")]
    run_body(emulator, LOAD + case.body + STORE, tensors, declarations=DECLARATIONS)
    np.testing.assert_array_equal(out, (case.expected(*words) & 0xFFFFFFFF).astype(np.uint32))


def bulk_zeros(num_bytes: int, address: str = "%r2") -> str:
    """Each lane stores its word of a; the first lane puts zeros from word 2 on; each loads its word."""
    return f"""
      mov.u32 %r2, words;
      mad.lo.u32 %r3, %tid, 4, %r2;
      add.u32 %r2, %r2, 8;
      st.shared.b32 [%r3], %r0;
      bar.warp.sync -1;
      setp.eq.u32 %q0, %tid, 0;
      mov.u64 %d0, {num_bytes};
      @%q0 st.bulk.weak.shared::cta [{address}], %d0, 0;
      bar.warp.sync -1;
      ld.shared.b32 %r10, [%r3];
    """


def test_st_bulk(emulator: Emulator):
    words = RNG.integers(0, 1 << 32, (2, LANES), dtype=np.uint32)
    out = np.zeros(LANES, np.uint32)
    tensors = [Tensor(words), Tensor(out, WRITE, "out")]
    run_body(emulator, LOAD + bulk_zeros(40) + STORE, tensors, declarations=DECLARATIONS)
    np.testing.assert_array_equal(out, np.where((np.arange(LANES) >= 2) & (np.arange(LANES) < 12), 0, words[0]))
    for body, message in [
        (bulk_zeros(44), "size 44, a multiple of 8"),
        (bulk_zeros(40, "%r2+4"), "not aligned to 8"),
        (bulk_zeros(1 << 20), "1048576 bytes"),
        (bulk_zeros(40).replace("%d0, 0;", "%d0, 1;"), "initial value 1, 0 wanted"),
    ]:
        with pytest.raises(EmulatorError, match=message):
            run_body(emulator, LOAD + body + STORE, tensors, declarations=DECLARATIONS)


def test_getctarank_of_mapped_addresses(emulator: Emulator):
    """Each of four CTAs maps its own variable to each rank."""
    out = np.zeros((4, LANES), np.uint32)
    body = """
      and.b32 %r0, %tid, 3;
      mov.u32 %r1, words;
      mapa.shared::cluster.u32 %r2, %r1, %r0;
      getctarank.shared::cluster.u32 %r3, %r2;
      cvta.shared.u64 %d0, words;
      getctarank.u64 %r4, %d0;
      shl.b32 %r4, %r4, 8;
      or.b32 %r3, %r3, %r4;
      mov.u32 %r5, %cluster_ctarank;
      mad.lo.u32 %r6, %r5, 32, %tid;
      mul.wide.u32 %d1, %r6, 4;
      add.s64 %d1, %p_0, %d1;
      st.global.b32 [%d1], %r3;
      barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    """
    launch = Launch(grid=(4, 1, 1), cluster=(4, 1, 1))
    run_body(emulator, body, [Tensor(out, WRITE)], launch, declarations=DECLARATIONS)
    np.testing.assert_array_equal(out, np.arange(4)[:, None] * 256 + np.arange(LANES) % 4)


def test_brkpt_stops(emulator: Emulator):
    with pytest.raises(EmulatorError, match="brkpt"):
        run_body(emulator, "brkpt;", [])


REDUCTIONS = {
    "add.u32": lambda x, y: x + y,
    "min.s32": lambda x, y: np.minimum(x.view(np.int32), y.view(np.int32)).view(np.uint32),
    "max.u32": np.maximum,
    "and.b32": np.bitwise_and,
    "or.b32": np.bitwise_or,
    "xor.b32": np.bitwise_xor,
    "inc.u32": lambda x, y: np.where(x >= y, 0, x + 1).astype(np.uint32),
    "dec.u32": lambda x, y: np.where((x == 0) | (x > y), y, x - 1).astype(np.uint32),
}


@pytest.mark.parametrize("operation", REDUCTIONS)
def test_cp_reduce_async_bulk(emulator: Emulator, operation: str):
    before, words = RNG.integers(0, 1 << 32, (2, LANES), dtype=np.uint32)
    before[:4], words[:4] = (0, 5, 7, 9), (3, 5, 9, 7)
    target = before.copy()
    body = f"""
      mul.wide.u32 %d0, %tid, 4;
      add.s64 %d1, %p_0, %d0;
      ld.global.b32 %r0, [%d1];
      mov.u32 %r1, words;
      mad.lo.u32 %r2, %tid, 4, %r1;
      st.shared.b32 [%r2], %r0;
      fence.proxy.async.shared::cta;
      bar.warp.sync -1;
      setp.eq.u32 %q0, %tid, 0;
      @%q0 cp.reduce.async.bulk.global.shared::cta.bulk_group.{operation} [%p_1], [%r1], 128;
      @%q0 cp.async.bulk.commit_group;
      @%q0 cp.async.bulk.wait_group 0;
    """
    run_body(emulator, body, [Tensor(words), Tensor(target, READWRITE)], declarations=DECLARATIONS)
    np.testing.assert_array_equal(target, REDUCTIONS[operation](before, words))


def test_cluster_launch_control(emulator: Emulator):
    """Every CTA of the grid is counted once: by itself, or by the one that cancelled its launch and took its place."""
    counts = np.zeros(7, np.uint32)
    body = """
      setp.ne.u32 %q0, %tid, 0;
      @%q0 bra DONE;
      mbarrier.init.shared.b64 [barrier], 1;
      fence.proxy.async.shared::cta;
      mov.u32 %r0, %ctaid.x;
      mov.b32 %r9, 0;
    NEXT:
      mul.wide.u32 %d0, %r0, 4;
      add.s64 %d1, %p_0, %d0;
      red.global.add.u32 [%d1], 1;
      mbarrier.arrive.expect_tx.shared.b64 _, [barrier], 16;
      clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [response], [barrier];
    WAIT:
      mbarrier.try_wait.parity.shared.b64 %q1, [barrier], %r9;
      @!%q1 bra WAIT;
      xor.b32 %r9, %r9, 1;
      { .reg .b128 answer;
        ld.shared.b128 answer, [response];
        clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %q2, answer;
        @%q2 clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r0, answer; }
      fence.proxy.async.shared::cta;
      @%q2 bra NEXT;
    DONE:
    """
    launch = Launch(grid=(len(counts), 1, 1))
    run_body(emulator, body, [Tensor(counts, READWRITE)], launch, declarations=DECLARATIONS)
    assert (counts == 1).all()


def aligned_words(words: np.ndarray) -> np.ndarray:
    """A copy that starts at a multiple of 128 bytes."""
    space = np.zeros(len(words) + 32, np.uint32)
    first = -space.ctypes.data % 128 // 4
    space[first : first + len(words)] = words
    return space[first : first + len(words)]


def test_cp_async_bulk_prefetch_tensor(emulator: Emulator):
    """It moves nothing, but the map must be one, and of the instruction's rank."""
    with np.load(TRUTH_MAPS) as stored:
        name = next(key for key in stored if key.startswith("tma.load") and key.endswith("/map"))
        words = aligned_words(stored[name].view(np.uint32))
    rank = (int(words[2]) >> 4 & 7) + 1
    zeros = ", ".join(["%r0"] * rank)
    prefetch = f"mov.b32 %r0, 0; cp.async.bulk.prefetch.tensor.{{}}d.L2.global.tile [%p_0, {{{{{zeros}}}}}];"
    run_body(emulator, prefetch.format(rank), [Tensor(words)])
    with pytest.raises(EmulatorError, match="tensor map"):
        run_body(emulator, prefetch.format(rank), [Tensor(aligned_words(np.full(32, 0xFFFFFFFF, np.uint32)))])
