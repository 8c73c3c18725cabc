# SPDX-License-Identifier: Apache-2.0
"""Hot loops of an nvdisasm listing, and the trips that counters say."""

from __future__ import annotations

from opdeck.core.profile import OpCounts, Profile
from opdeck.core.profile.sass import MIN_LOOP_INSTRUCTIONS, hot_loops


def listing(*lines: str) -> str:
    """As nvdisasm -c prints: labels at the margin, instructions behind their address."""
    text = [
        line if line.startswith(".L") else f"        /*{16 * i:04x}*/        {line} ;" for i, line in enumerate(lines)
    ]
    return "\n".join(["\t.target\tsm_100a", ".text.kernel:", *text])


BODY = ["MUFU.EX2 R1, R1", "@!P0 FFMA2 R2, R2, R2, R2", "MUFU.EX2 R3, R3", *["IADD3 R4, R4, 0x1, RZ"] * 40]


def counts(op_idx: int, opcode: str, completed: int, warp_idx: int = 0) -> OpCounts:
    return OpCounts("kernel", opcode, "mufu", 0, warp_idx, op_idx, 1, completed, *[0] * 12)


def test_a_loop_and_its_pipes():
    (loop,) = hot_loops(listing("MOV R1, R1", ".L_x_0:", *BODY, "@P0 BRA `(.L_x_0)", "EXIT"))
    assert loop.first == 1
    assert len(loop.instructions) == 44
    assert loop.by_pipe == {"integer": 40, "mufu": 2, "f32x2": 1, "control": 1}
    assert loop.count(r"MUFU\.EX2") == 2


def test_only_innermost_loops_without_an_end_or_a_nap():
    inner = [".L_x_1:", *BODY, "@P1 BRA `(.L_x_1)"]
    assert len(hot_loops(listing(".L_x_0:", *inner, "BRA `(.L_x_0)"))) == 1
    assert hot_loops(listing(".L_x_0:", *BODY, "@P0 NANOSLEEP 0x20", "BRA `(.L_x_0)")) == []
    assert hot_loops(listing(".L_x_0:", *BODY, "@P0 EXIT", "BRA `(.L_x_0)")) == []
    short = BODY[-(MIN_LOOP_INSTRUCTIONS - 2) :]
    assert hot_loops(listing(".L_x_0:", *short, "BRA `(.L_x_0)")) == []


def test_slots_when_branches_are_taken():
    rescale = [
        "BRA.U !UP0, `(.L_x_1)",
        "LDTM.x32 R4, tmem[UR4]",
        *["FMUL2 R4, R4, R8"] * 16,
        "STTM tmem[UR4], R4",
        ".L_x_1:",
    ]
    (loop,) = hot_loops(listing(".L_x_0:", *BODY, *rescale, "@P0 BRA `(.L_x_0)"))
    assert len(loop.instructions) == 63
    assert loop.slots_without("FMUL2") == 63 - 18
    assert loop.slots_without("MUFU") == 63


def test_trips_are_what_as_many_anchors_share():
    (loop,) = hot_loops(listing(".L_x_0:", *BODY, "@P0 BRA `(.L_x_0)"))
    ex2 = "ex2.approx.ftz.f32"
    others = [counts(9, ex2, 5), counts(10, "add.f32", 7), counts(11, "add.f32", 7)]
    of_loop = [counts(op_idx, ex2, completed, warp) for op_idx in (1, 2) for warp, completed in enumerate((30, 12))]
    assert loop.warp_trips(Profile("sm_100a", 1, [*others, *of_loop])) == 42
    another_pair = [counts(op_idx, ex2, 8) for op_idx in (3, 4)]
    assert loop.warp_trips(Profile("sm_100a", 1, [*of_loop, *another_pair])) is None
    assert loop.warp_trips(Profile("sm_100a", 1, others)) is None
