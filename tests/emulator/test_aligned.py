# SPDX-License-Identifier: Apache-2.0
"""Operations that all lanes of a warp must execute together (.aligned, .sync) with operands that agree."""

from __future__ import annotations

import pytest
from emulator_driver import EAGER, LAZY, RANDOM, Emulator, EmulatorError, Launch, Schedule, run_body

SCHEDULES = [Schedule(EAGER), Schedule(LAZY), Schedule(RANDOM, 1)]
DECLARATIONS = ".shared .align 128 .b8 tile[2048];\n.shared .align 8 .b32 slot;\n"
HALF = "and.b32 %r0, %tid, 31; setp.lt.u32 %q0, %r0, 16; mov.u32 %r1, tile; add.u32 %r2, %r0, 1; mov.b64 %d0, 0;\n"
ALLOC = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 32; ld.shared.b32 %r5, [slot];\n"
D_ROWS = "{%r16, %r17, %r18, %r19}"
WGMMA = f"wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {D_ROWS}, %d1, %d2, %q3, 1, 1, 0, 0;"
ALIGNED = {  # instruction: target
    "bar.sync 1;": "sm_90a",
    "bar.arrive 1, 64;": "sm_90a",
    "barrier.cluster.arrive.aligned;": "sm_90a",
    "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r3}, [%r1];": "sm_90a",
    "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r1], {%r0};": "sm_90a",
    "movmatrix.sync.aligned.m8n8.trans.b16 %r3, %r0;": "sm_90a",
    "setmaxnreg.dec.sync.aligned.u32 64;": "sm_90a",
    "wgmma.fence.sync.aligned;": "sm_90a",
    "wgmma.commit_group.sync.aligned;": "sm_90a",
    "wgmma.wait_group.sync.aligned 0;": "sm_90a",
    "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 32;": "sm_100a",
    "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;": "sm_100a",
    "tcgen05.wait::ld.sync.aligned;": "sm_100a",
    "tcgen05.wait::st.sync.aligned;": "sm_100a",
}
ALLOWS_EXITED = ("bar.", "barrier.")


def refused(emulator: Emulator, body: str, target: str, threads: int = 32) -> str:
    """The one text that all schedules give."""
    texts = set()
    for schedule in SCHEDULES:
        with pytest.raises(EmulatorError) as caught:
            run_body(
                emulator, body, [], Launch(block=(threads, 1, 1)), schedule, target=target, declarations=DECLARATIONS
            )
        texts.add(caught.value.text)
    (text,) = texts
    return str(text)


@pytest.mark.parametrize("instruction", ALIGNED)
def test_guard_that_keeps_lanes_away(emulator: Emulator, instruction: str):
    text = refused(emulator, f"{HALF} @%q0 {instruction}", ALIGNED[instruction])
    assert f"`{instruction.split()[0].rstrip(';')}`" in text
    assert "lanes 0xffff0000 do not execute it, as their guard is false" in text


@pytest.mark.parametrize("instruction", ALIGNED)
def test_lanes_that_exit_instead_of_coming(emulator: Emulator, instruction: str):
    text = refused(emulator, f"{HALF} @!%q0 bra DONE; {instruction} bra DONE; DONE:", ALIGNED[instruction])
    assert "lanes 0xffff0000 exited while lanes 0xffff stood at it" in text


@pytest.mark.parametrize("instruction", ALIGNED)
def test_lanes_that_exited_before(emulator: Emulator, instruction: str):
    """A barrier does not miss them; all else must be executed by every lane of the warp."""
    body = f"{HALF} @!%q0 bra GO; ret; GO: {instruction}"
    if instruction.startswith(ALLOWS_EXITED):
        if instruction.startswith("bar.sync"):
            run_body(emulator, body, [], target=ALIGNED[instruction], declarations=DECLARATIONS)
        return
    assert "lanes 0xffff have exited: all lanes of the warp must execute it" in refused(
        emulator, body, ALIGNED[instruction]
    )


@pytest.mark.parametrize(
    ("body", "target", "message"),
    [
        ("bar.sync %r0;", "sm_90a", "different barrier numbers: lane 0 0x0, lane 1 0x1"),
        ("shl.b32 %r3, %r0, 5; bar.sync 1, %r3;", "sm_90a", "different thread counts: lane 0 0x0, lane 1 0x20"),
        ("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], %r2;", "sm_100a", "different column counts"),
        (
            f"{ALLOC} add.u32 %r5, %r5, %r0; tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r5, 32;",
            "sm_100a",
            "different tensor memory addresses: lane 0 0x0, lane 1 0x1",
        ),
        (
            f"{ALLOC} add.u32 %r5, %r5, %r0; tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r6}}, [%r5];",
            "sm_100a",
            "different tensor memory addresses",
        ),
        ("vote.sync.ballot.b32 %r3, %q0, %r2;", "sm_90a", "different member masks"),
        ("@%q0 shfl.sync.idx.b32 %r3, %r0, 0, 31, -1;", "sm_90a", "lanes 0xffff0000 do not execute it"),
        ("@%q0 elect.sync _|%q1, -1;", "sm_90a", "lanes 0xffff0000 do not execute it"),
    ],
)
def test_operands_that_differ_in_a_warp(emulator: Emulator, body: str, target: str, message: str):
    assert message in refused(emulator, HALF + body, target)


@pytest.mark.parametrize(
    ("spoilt", "message"),
    [
        ("cvt.u64.u32 %d2, %r0;", "the lanes give different descriptors of B"),
        ("cvt.u64.u32 %d1, %r0;", "the lanes give different descriptors of A"),
        ("mov.pred %q3, %q0;", "the lanes give different scale-d: true in lanes 0xffff"),
        ("cvt.u64.u32 %d2, %r4;", "of a warpgroup give different descriptors of B"),
        ("cvt.u64.u32 %d1, %r4;", "of a warpgroup give different descriptors of A"),
        ("setp.eq.u32 %q3, %r4, 0;", "of a warpgroup give different scale-d"),
    ],
)
def test_wgmma_operands_that_differ(emulator: Emulator, spoilt: str, message: str):
    uniform = "shr.u32 %r4, %tid, 5; mov.b64 %d1, 0; mov.b64 %d2, 0; setp.ne.u32 %q3, %r2, 0;"
    zeros = "".join(f"mov.b32 %r{i}, 0;" for i in range(16, 20))
    body = f"{HALF} {uniform} {zeros} {spoilt} wgmma.fence.sync.aligned; {WGMMA}"
    with pytest.raises(EmulatorError, match=message):
        run_body(emulator, body, [], Launch(block=(128, 1, 1)), target="sm_90a", declarations=DECLARATIONS)
