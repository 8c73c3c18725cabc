# SPDX-License-Identifier: Apache-2.0
"""Unit kernels of shared memory, matrix fragments, mbarriers and atomics, in the frame of `elementwise.Unit`.

Sections: PTX ISA 9.0, 9.7.9 (data movement), 9.7.13.15 (mbarrier), 9.7.14 (mma.sync).
"""

from __future__ import annotations

from elementwise import Unit

# Each warp has 512 bytes: lane l's words a, b, c, pad lie at 16 l.
_OWN_ROW = """.shared .align 128 .b8 rows[2048]; .reg .b32 %ra, %row, %m<8>; .reg .f32 %acc<8>;
  mov.u32 %ra, rows; shr.u32 %t0, %j, 5; mad.lo.u32 %ra, %t0, 512, %ra; mad.lo.u32 %row, %lane, 16, %ra;
  st.shared.v4.b32 [%row], {%a, %b, %c, %pad}; bar.warp.sync 0xffffffff;
"""


def _matrix_units() -> list[Unit]:
    units = []
    for num, regs in ((1, "{%m0}"), (2, "{%m0, %m1}"), (4, "{%m0, %m1, %m2, %m3}")):
        out = "xor.b32 %d, %m0, %m3; xor.b32 %e, %m1, %m2;"
        clear = "mov.b32 %m0, 1; mov.b32 %m1, 2; mov.b32 %m2, 3; mov.b32 %m3, 4;"
        for trans in ("", ".trans"):
            units.append(
                Unit(
                    f"ldmatrix.x{num}{trans}",
                    f"{_OWN_ROW}{clear} ldmatrix.sync.aligned.m8n8.x{num}{trans}.shared.b16 {regs}, [%row]; {out}",
                )
            )
            store = f"xor.b32 %m0, %a, 1; xor.b32 %m1, %b, 2; xor.b32 %m2, %c, 4; add.u32 %m3, %a, %b; stmatrix.sync.aligned.m8n8.x{num}{trans}.shared.b16 [%row], {regs};"
            units.append(
                Unit(
                    f"stmatrix.x{num}{trans}",
                    f"{_OWN_ROW}{store} bar.warp.sync 0xffffffff; ld.shared.v2.b32 {{%d, %e}}, [%row+8];",
                )
            )
    units.append(Unit("movmatrix", "movmatrix.sync.aligned.m8n8.trans.b16 %d, %a;"))
    for ty in ("f16", "bf16"):
        whole = "0x3C003C00" if ty == "f16" else "0x3F803F80"
        # Operands are 0 or 1, the random bits choosing which, so every sum is exact.
        pick = "".join(
            f"and.b32 %t0, %{src}, {1 << i}; setp.ne.u32 %p, %t0, 0; selp.b32 %m{i}, {whole}, 0, %p; "
            for i, src in enumerate("aaabbb")
        )
        units.append(
            Unit(
                f"mma.m16n8k16.{ty}",
                "{.reg .b32 %m<6>; .reg .f32 %acc<4>; "
                + pick
                + f"""
  cvt.rn.f32.u32 %acc0, %lane; mov.f32 %acc1, 0f3F800000; mov.f32 %acc2, 0f40000000; mov.f32 %acc3, %acc0;
  mma.sync.aligned.m16n8k16.row.col.f32.{ty}.{ty}.f32 {{%acc0, %acc1, %acc2, %acc3}}, {{%m0, %m1, %m2, %m3}}, {{%m4, %m5}}, {{%acc0, %acc1, %acc2, %acc3}};
  add.f32 %acc0, %acc0, %acc2; add.f32 %acc1, %acc1, %acc3; mov.b32 %d, %acc0; mov.b32 %e, %acc1; }}""",
            )
        )
    return units


def _memory_units() -> list[Unit]:
    units = [
        Unit(
            f"ld.shared.{ty}",
            f"{_OWN_ROW} and.b32 %t0, %b, 15; and.b32 %t0, %t0, {16 - size}; add.u32 %t0, %t0, %row; {load}",
        )
        for ty, size, load in (
            ("s8", 1, "ld.shared.s8 %d, [%t0];"),
            ("u8", 1, "ld.shared.u8 %d, [%t0];"),
            ("s16", 2, "ld.shared.s16 %d, [%t0];"),
            ("b32", 4, "ld.shared.b32 %d, [%t0];"),
            ("v2", 8, "ld.shared.v2.b32 {%d, %e}, [%t0];"),
            ("b64", 8, "ld.shared.b64 %x, [%t0]; mov.b64 {%d, %e}, %x;"),
        )
    ]
    for op in ("add.u32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32", "inc.u32", "dec.u32", "exch.b32"):
        units.append(
            Unit(f"atom.shared.{op}", f"{_OWN_ROW} atom.shared.{op} %d, [%row+4], %a; ld.shared.b32 %e, [%row+4];")
        )
    units.append(
        Unit("atom.shared.cas", f"{_OWN_ROW} atom.shared.cas.b32 %d, [%row], %a, %c; ld.shared.b32 %e, [%row];")
    )
    units.append(
        Unit(
            "red.shared.add.u32",
            f"{_OWN_ROW} red.shared.add.u32 [%ra], %a; bar.warp.sync 0xffffffff; ld.shared.b32 %d, [%ra];",
        )
    )
    units.append(
        Unit(
            "red.shared.add.f32",
            f"{_OWN_ROW} red.shared.add.f32 [%row+4], %a; ld.shared.b32 %d, [%row+4];",
            ("f32",) * 3,
        )
    )
    units.append(
        Unit(
            "cp.async",
            _OWN_ROW
            + "cp.async.ca.shared.global [%row], [%pi], 16; cp.async.commit_group; cp.async.wait_group 0; ld.shared.v2.b32 {%d, %e}, [%row+8];",
        )
    )
    units.append(
        Unit(
            "cp.async.zfill",
            _OWN_ROW
            + "cp.async.cg.shared.global [%row], [%pi], 16, 8; cp.async.wait_all; ld.shared.b32 %d, [%row+4]; ld.shared.b32 %e, [%row+8];",
        )
    )
    return units


_BARRIER = """.shared .align 8 .b64 bar; .reg .b32 %bar; .reg .b64 %st; .reg .pred %r<8>;
  mov.u32 %bar, bar; setp.eq.u32 %p, %j, 0; @%p mbarrier.init.shared::cta.b64 [%bar], {count}; bar.sync 0;
"""
_TEST = (
    "mbarrier.test_wait.parity.shared::cta.b64 %r0, [%bar], {parity}; selp.b32 %t0, {bit}, 0, %r0; or.b32 %d, %d, %t0;"
)


def _barrier_units() -> list[Unit]:
    """Phases of an mbarrier as test_wait sees them after each step, collected in bits of d."""

    def tests(step: int) -> str:
        pair = "".join(_TEST.format(parity=parity, bit=1 << (2 * step + parity)) for parity in (0, 1))
        return pair + " bar.sync 0;\n"

    def sequence(name: str, count: int, *steps: str) -> Unit:
        body = _BARRIER.format(count=count) + tests(0)
        for idx, step in enumerate(steps, 1):
            body += step + " bar.sync 0;\n" + tests(idx)
        return Unit(f"mbarrier.{name}", body)

    arrive = "mbarrier.arrive.shared::cta.b64 _, [%bar];"
    one = "@%p mbarrier.arrive.shared::cta.b64 _, [%bar];"
    return [
        sequence("all_arrive", 128, arrive, arrive, arrive),
        sequence("one_by_one", 2, one, one, one, one, one),
        sequence(
            "count",
            5,
            "@%p mbarrier.arrive.shared::cta.b64 _, [%bar], 4;",
            one,
            "@%p mbarrier.arrive.shared::cta.b64 _, [%bar], 5;",
        ),
        sequence(
            "tx",
            1,
            "@%p mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 64;",
            "@%p mbarrier.complete_tx.shared::cta.relaxed.cta.b64 [%bar], 32;",
            "@%p mbarrier.complete_tx.shared::cta.relaxed.cta.b64 [%bar], 32;",
            one,
        ),
        sequence(
            "tx_first",
            1,
            "@%p mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%bar], 16;",
            one,
            "@%p mbarrier.complete_tx.shared::cta.relaxed.cta.b64 [%bar], 16;",
        ),
        sequence(
            "drop",
            3,
            "@%p mbarrier.arrive_drop.shared::cta.b64 _, [%bar];",
            "@%p mbarrier.arrive.shared::cta.b64 _, [%bar], 2;",
            "@%p mbarrier.arrive.shared::cta.b64 _, [%bar], 2;",
            one,
        ),
        sequence(
            "pending",
            7,
            one,
            "mbarrier.arrive.noComplete.shared::cta.b64 %st, [%bar], 1;".replace("mbar", "@%p mbar", 1)
            + " @%p mbarrier.pending_count.b64 %e, %st;",
        ),
    ]


UNITS: tuple[Unit, ...] = (*_matrix_units(), *_memory_units(), *_barrier_units())
