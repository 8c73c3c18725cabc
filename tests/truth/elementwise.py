# SPDX-License-Identifier: Apache-2.0
"""Unit kernels of one PTX instruction each: every thread loads three words a, b, c, and stores two words d, e.

Run on a real GPU by `record.py`, whose outputs are kept in `vectors/`, and on the emulator by `test_truth.py`.
Sections cited are those of the PTX ISA manual, release 9.0.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

NUM_THREADS = 128
NUM_ELEMS = 1 << 16

_TEMPLATE = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry unit(.param .u64 p_in, .param .u64 p_out)
{{
  .reg .b64 %pi, %po, %off, %x, %y, %z;
  .reg .b32 %a, %b, %c, %d, %e, %pad, %i, %j, %t0, %t1, %lane;
  .reg .b16 %h0, %h1, %h2, %h3;
  .reg .pred %p, %q;
  mov.u32 %i, %ctaid.x;
  mov.u32 %j, %tid.x;
  mad.lo.u32 %i, %i, 128, %j;
  ld.param.u64 %pi, [p_in];
  ld.param.u64 %po, [p_out];
  mul.wide.u32 %off, %i, 16;
  add.u64 %pi, %pi, %off;
  mul.wide.u32 %off, %i, 8;
  add.u64 %po, %po, %off;
  ld.global.v4.b32 {{%a, %b, %c, %pad}}, [%pi];
  mov.u32 %lane, %laneid;
  mov.b32 %d, 0;
  mov.b32 %e, 0;
  {body}
  st.global.v2.b32 [%po], {{%d, %e}};
  ret;
}}
"""

SPECIAL_F32 = np.array(
    [
        0x00000000,
        0x80000000,
        0x3F800000,
        0xBF800000,
        0x7F800000,
        0xFF800000,
        0x7FC00000,
        0xFFC00001,
        0x7F800001,
        0x00000001,
        0x80000001,
        0x007FFFFF,
        0x00800000,
        0x7F7FFFFF,
        0xFF7FFFFF,
        0x3F000000,
        0x3FC00000,
        0x40200000,
        0x477FE000,
        0x477FEFFF,
        0x477FF000,
        0x43E00000,
        0x43E80000,
        0x43F00000,
        0x47600000,
        0x47700000,
        0x33000000,
        0x33000001,
        0x387FC000,
        0x38800000,
        0x3B000000,
        0x3A800000,
        0x3C800000,
        0x37800000,
        0x37000000,
        0x4F000000,
    ],
    dtype=np.uint32,
)


def _rng(name: str) -> np.random.RandomState:
    return np.random.RandomState(zlib.crc32(name.encode()))


def _bits(rng: np.random.RandomState) -> np.ndarray:
    return rng.randint(0, 1 << 32, NUM_ELEMS, dtype=np.uint64).astype(np.uint32)


def _f32(rng: np.random.RandomState) -> np.ndarray:
    """A third random bit patterns, a third of moderate size, the rest near what 16- and 8-bit types hold; specials first."""
    out = _bits(rng)
    third = NUM_ELEMS // 3
    out[third : 2 * third] = (rng.standard_normal(third) * 4).astype(np.float32).view(np.uint32)
    wide = np.ldexp(rng.uniform(-2, 2, NUM_ELEMS - 2 * third), rng.randint(-28, 18, NUM_ELEMS - 2 * third))
    out[2 * third :] = wide.astype(np.float32).view(np.uint32)
    # Exact ties of rounding to 10, 7, 3 and 2 mantissa bits.
    ties = rng.randint(0, NUM_ELEMS, 8192)
    out[ties] &= np.choose(ties % 4, [0xFFFFF000, 0xFFFF8000, 0xFFF80000, 0xFFF00000]).astype(np.uint32)
    return out


def _f32_special(rng: np.random.RandomState) -> np.ndarray:
    out = _f32(rng)
    at = rng.randint(0, NUM_ELEMS, 8192)
    out[at] = SPECIAL_F32[rng.randint(0, len(SPECIAL_F32), 8192)]
    return out


def _f16_all(rng: np.random.RandomState) -> np.ndarray:
    """Every 16-bit pattern once in the low half, a random one in the high half."""
    return np.arange(NUM_ELEMS, dtype=np.uint32) | (_bits(rng) & np.uint32(0xFFFF0000))


def _small(rng: np.random.RandomState) -> np.ndarray:
    return rng.randint(0, 70, NUM_ELEMS).astype(np.uint32)


def _exponents(rng: np.random.RandomState) -> np.ndarray:
    """fp32 arguments for ex2, lg2, tanh: dense in [-30, 30], some of any size, specials."""
    out = rng.uniform(-30, 30, NUM_ELEMS).astype(np.float32).view(np.uint32).copy()
    half = NUM_ELEMS // 2
    out[half:] = _f32_special(rng)[half:]
    return out


INPUTS = {"bits": _bits, "f32": _f32_special, "f16": _f16_all, "small": _small, "exp": _exponents}


@dataclass(frozen=True)
class Unit:
    """name: instruction; body: PTX; inputs: kinds of a, b, c; ulp_bound: 0 = bit for bit, else of an approximation,
    where a difference of abs_bound is allowed too (near a zero of the function)."""

    name: str
    body: str
    inputs: tuple[str, str, str] = ("bits", "bits", "bits")
    ulp_bound: int = 0
    abs_bound: float = 0.0
    num_words: int = 256  # of the output, kept beside its SHA-256

    @property
    def ptx(self) -> str:
        return _TEMPLATE.format(body=self.body)

    def input_words(self) -> np.ndarray:
        """(NUM_ELEMS, 4) uint32."""
        rng = _rng(self.name)
        words = np.zeros((NUM_ELEMS, 4), np.uint32)
        for column, kind in enumerate(self.inputs):
            words[:, column] = INPUTS[kind](rng)
        return words


def _float_units() -> list[Unit]:
    f3 = ("f32", "f32", "f32")
    units = [
        Unit(f"fma.{r}{m}.f32", f"fma.{r}{m}.f32 %d, %a, %b, %c;", f3)
        for r in ("rn", "rz", "rm", "rp")
        for m in ("", ".ftz", ".sat")
    ]
    units += [
        Unit(f"{op}.{r}{m}.f32", f"{op}.{r}{m}.f32 %d, %a, %b;", f3)
        for op in ("add", "sub", "mul")
        for r in ("rn", "rz", "rm", "rp")
        for m in ("", ".ftz")
    ]
    units += [
        Unit(f"{op}{m}.f32", f"{op}{m}.f32 %d, %a, %b;", f3)
        for op in ("min", "max")
        for m in ("", ".ftz", ".NaN", ".ftz.NaN")
    ]
    units += [
        Unit("max3", "max.f32 %d, %a, %b; max.f32 %d, %d, %c;", f3),
        Unit("div.rn.f32", "div.rn.f32 %d, %a, %b;", f3),
        Unit("rcp.rn.f32", "rcp.rn.f32 %d, %a;", f3),
        Unit("sqrt.rn.f32", "sqrt.rn.f32 %d, %a;", f3),
        Unit("abs.f32", "abs.f32 %d, %a;", f3),
        Unit("neg.f32", "neg.f32 %d, %a;", f3),
        Unit("abs.ftz.f32", "abs.ftz.f32 %d, %a;", f3),
        Unit("copysign.f32", "copysign.f32 %d, %a, %b;", f3),
    ]
    units += [
        Unit(f"setp.{op}.f32", f"setp.{op}.f32 %p, %a, %b; selp.b32 %d, 1, 2, %p;", f3)
        for op in ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
    ]
    return units


def _half_units() -> list[Unit]:
    """f16x2 and bf16x2 arithmetic (PTX 9.7.4) and mixed-precision add (9.7.5)."""
    units = []
    for ty in ("f16", "bf16"):
        ops2 = [("add", "add.{ty}x2 %d, %a, %b;"), ("sub", "sub.{ty}x2 %d, %a, %b;"), ("mul", "mul.{ty}x2 %d, %a, %b;")]
        units += [Unit(f"{n}.{ty}x2", text.format(ty=ty)) for n, text in ops2]
        units += [
            Unit(f"fma.rn.{ty}x2", f"fma.rn.{ty}x2 %d, %a, %b, %c;"),
            Unit(f"fma.rn.relu.{ty}x2", f"fma.rn.relu.{ty}x2 %d, %a, %b, %c;"),
            Unit(f"neg.{ty}x2", f"neg.{ty}x2 %d, %a;"),
            Unit(f"abs.{ty}x2", f"abs.{ty}x2 %d, %a;"),
        ]
        units += [Unit(f"{op}{m}.{ty}x2", f"{op}{m}.{ty}x2 %d, %a, %b;") for op in ("min", "max") for m in ("", ".NaN")]
        units += (
            [Unit(f"set.{op}.{ty}x2", f"set.{op}.u32.{ty}x2 %d, %a, %b;") for op in ("lt", "ge", "equ")]
            if ty == "f16"
            else []
        )
    return units


def _convert_units() -> list[Unit]:
    """cvt (PTX 9.7.9.21)."""
    f = ("f32", "f32", "f32")
    units: list[Unit] = []
    for ty in ("f16", "bf16"):
        units += [
            Unit(f"cvt.{r}.{ty}.f32", f"cvt.{r}.{ty}.f32 %h0, %a; cvt.u32.u16 %d, %h0;", f)
            for r in ("rn", "rz", "rn.relu", "rz.relu")
        ]
        units += [Unit(f"cvt.{r}.{ty}x2.f32", f"cvt.{r}.{ty}x2.f32 %d, %a, %b;", f) for r in ("rn", "rz", "rn.relu")]
        units += [Unit(f"cvt.f32.{ty}", f"cvt.u16.u32 %h0, %a; cvt.f32.{ty} %d, %h0;", ("f16", "f16", "f16"))]
    units += [
        Unit(f"cvt.{r}.tf32.f32", f"cvt.{r}.tf32.f32 %d, %a;", f, num_words=1 << 15 if r == "rna.satfinite" else 256)
        for r in ("rna", "rna.satfinite", "rn", "rz", "rn.relu")
    ]
    for ty in ("e4m3", "e5m2"):
        units += [
            Unit(
                f"cvt.rn.satfinite{m}.{ty}x2.f32",
                f"cvt.rn.satfinite{m}.{ty}x2.f32 %h0, %a, %b; cvt.u32.u16 %d, %h0;",
                f,
            )
            for m in ("", ".relu")
        ]
        units += [
            Unit(
                f"cvt.rn.satfinite.{ty}x2.f16x2",
                f"cvt.rn.satfinite.{ty}x2.f16x2 %h0, %a; cvt.u32.u16 %d, %h0;",
                ("f16",) * 3,
            ),
            Unit(f"cvt.rn.f16x2.{ty}x2", f"cvt.u16.u32 %h0, %a; cvt.rn.f16x2.{ty}x2 %d, %h0;", ("f16",) * 3),
        ]
    for r in ("rni", "rzi", "rmi", "rpi"):
        units += [Unit(f"cvt.{r}.{ty}.f32", f"cvt.{r}.{ty}.f32 %d, %a;", f) for ty in ("s32", "u32", "f32")]
        units += [Unit(f"cvt.{r}.ftz.{ty}.f32", f"cvt.{r}.ftz.{ty}.f32 %d, %a;", f) for ty in ("s32", "f32")]
    units += [
        Unit(f"cvt.{r}.f32.{ty}", f"cvt.{r}.f32.{ty} %d, %a;")
        for r in ("rn", "rz", "rm", "rp")
        for ty in ("s32", "u32")
    ]
    units += [Unit(f"cvt.rn.f32.{ty}64", f"mov.b64 %x, {{%a, %b}}; cvt.rn.f32.{ty}64 %d, %x;") for ty in ("s", "u")]
    units += [
        Unit("cvt.sat.f32.f32", "cvt.sat.f32.f32 %d, %a;", f),
        Unit("cvt.ftz.f32.f32", "cvt.rn.ftz.sat.f32.f32 %d, %a;".replace("rn.", ""), f),
        Unit("cvt.f64.f32", "{.reg .f64 q0; cvt.f64.f32 q0, %a; mov.b64 {%d, %e}, q0;}", f),
        Unit("cvt.rn.f32.f64", "{.reg .f64 q0; mov.b64 q0, {%a, %b}; cvt.rn.f32.f64 %d, q0;}"),
    ]
    units += [
        Unit(f"cvt.{to}.{fr}", f"cvt.u16.u32 %h0, %a; cvt.{to}.{fr} %d, %h0;")
        for to, fr in (("s32", "s16"), ("u32", "u16"), ("s32", "s8"), ("u32", "u8"))
    ]
    units += [
        Unit(f"cvt.sat.{to}.{fr}", f"cvt.sat.{to}.{fr} %h0, %a; cvt.s32.s16 %d, %h0;")
        for to, fr in (("s8", "s32"), ("u8", "s32"), ("s16", "s32"), ("u16", "u32"))
    ]
    units += [Unit("cvt.u64.s32", "cvt.s64.s32 %x, %a; mov.b64 {%d, %e}, %x;")]
    return units


def _approx_units() -> list[Unit]:
    """Approximations (PTX 9.7.3): bounds in units of the last place of fp32 are between the emulator and an H200."""
    e = ("exp", "exp", "exp")
    return [
        Unit("ex2.approx.ftz.f32", "ex2.approx.ftz.f32 %d, %a;", e, 2),
        Unit("ex2.approx.f32", "ex2.approx.f32 %d, %a;", e, 2),
        Unit("lg2.approx.ftz.f32", "lg2.approx.ftz.f32 %d, %a;", e, 4, 2.0**-21),
        Unit("lg2.approx.f32", "lg2.approx.f32 %d, %a;", e, 4, 2.0**-21),
        Unit("rcp.approx.ftz.f32", "rcp.approx.ftz.f32 %d, %a;", e, 1),
        Unit("rsqrt.approx.ftz.f32", "rsqrt.approx.ftz.f32 %d, %a;", e, 2),
        Unit("sqrt.approx.ftz.f32", "sqrt.approx.ftz.f32 %d, %a;", e, 2),
        Unit("tanh.approx.f32", "tanh.approx.f32 %d, %a;", e, 1 << 13),
        Unit("sin.approx.ftz.f32", "sin.approx.ftz.f32 %d, %a;", e, 1 << 20),
        Unit("cos.approx.ftz.f32", "cos.approx.ftz.f32 %d, %a;", e, 1 << 20),
        Unit("div.approx.ftz.f32", "div.approx.ftz.f32 %d, %a, %b;", e, 2),
        Unit("div.full.f32", "div.full.f32 %d, %a, %b;", e, 2),
        Unit("ex2.approx.ftz.bf16x2", "ex2.approx.ftz.bf16x2 %d, %a;", e, 1),
        Unit("ex2.approx.f16x2", "ex2.approx.f16x2 %d, %a;", ("f16",) * 3, 1),
        Unit("tanh.approx.f16x2", "tanh.approx.f16x2 %d, %a;", ("f16",) * 3, 1),
        Unit("tanh.approx.bf16x2", "tanh.approx.bf16x2 %d, %a;", e, 1),
    ]


def _integer_units() -> list[Unit]:
    bbs = ("bits", "bits", "small")
    bss = ("bits", "small", "small")
    pair = "mov.b64 %x, {%a, %b}; mov.b64 %y, {%b, %c}; "
    units = [
        Unit(f"{op}.{ty}", f"{op}.{ty} %d, %a, %b;")
        for op in ("add", "sub", "mul.lo", "mul.hi", "min", "max", "div", "rem")
        for ty in ("s32", "u32")
    ]
    units += [Unit(f"{op}.{ty}", f"{op}.{ty} %d, %a, %b;", bss) for op in ("shl",) for ty in ("b32",)]
    units += [Unit(f"shr.{ty}", f"shr.{ty} %d, %a, %b;", bss) for ty in ("b32", "u32", "s32")]
    units += [Unit(f"{op}.b32", f"{op}.b32 %d, %a, %b;") for op in ("and", "or", "xor")]
    units += [Unit(f"mad.lo.{ty}", f"mad.lo.{ty} %d, %a, %b, %c;") for ty in ("s32", "u32")]
    units += [Unit(f"mad.hi.{ty}", f"mad.hi.{ty} %d, %a, %b, %c;") for ty in ("s32", "u32")]
    units += [Unit(f"mad24.lo.{ty}", f"mad24.lo.{ty} %d, %a, %b, %c;") for ty in ("s32", "u32")]
    units += [Unit(f"mul.wide.{ty}", f"mul.wide.{ty} %x, %a, %b; mov.b64 {{%d, %e}}, %x;") for ty in ("s32", "u32")]
    units += [
        Unit(f"mad.wide.{ty}", pair + f"mad.wide.{ty} %x, %a, %b, %y; mov.b64 {{%d, %e}}, %x;") for ty in ("s32", "u32")
    ]
    units += [
        Unit(f"{op}.{ty}", pair + f"{op}.{ty} %z, %x, %y; mov.b64 {{%d, %e}}, %z;")
        for op in ("add", "sub", "mul.lo", "mul.hi", "min", "max", "div", "rem")
        for ty in ("s64", "u64")
    ]
    units += [Unit(f"{op}.b64", pair + f"{op}.b64 %z, %x, %y; mov.b64 {{%d, %e}}, %z;") for op in ("and", "or", "xor")]
    units += [
        Unit(f"{op}64", pair + f"{op}64 %z, %x, %c; mov.b64 {{%d, %e}}, %z;", bbs) for op in ("shl.b", "shr.u", "shr.s")
    ]
    units += [Unit(f"sad.{ty}", f"sad.{ty} %d, %a, %b, %c;") for ty in ("s32", "u32")]
    units += [
        Unit("addc", "add.cc.u32 %d, %a, %b; addc.u32 %e, %a, %c;"),
        Unit("subc", "sub.cc.u32 %d, %a, %b; subc.u32 %e, %a, %c;"),
        Unit("abs.s32", "abs.s32 %d, %a;"),
        Unit("neg.s32", "neg.s32 %d, %a;"),
        Unit("not.b32", "not.b32 %d, %a;"),
        Unit("cnot.b32", "cnot.b32 %d, %a;"),
        Unit("popc.b32", "popc.b32 %d, %a;"),
        Unit("clz.b32", "clz.b32 %d, %a;"),
        Unit("brev.b32", "brev.b32 %d, %a;"),
        Unit("bfind.u32", "bfind.u32 %d, %a;"),
        Unit("bfind.s32", "bfind.s32 %d, %a;"),
        Unit("bfind.shiftamt.u32", "bfind.shiftamt.u32 %d, %a;"),
        Unit("popc.b64", pair + "popc.b64 %d, %x;"),
        Unit("clz.b64", pair + "clz.b64 %d, %x;"),
        Unit("bfe.u32", "bfe.u32 %d, %a, %b, %c;", bss),
        Unit("bfe.s32", "bfe.s32 %d, %a, %b, %c;", bss),
        Unit("bfi.b32", "bfi.b32 %d, %a, %b, %c, 7;", bbs),
        Unit("bmsk.clamp", "bmsk.clamp.b32 %d, %b, %c;", bss),
        Unit("bmsk.wrap", "bmsk.wrap.b32 %d, %b, %c;", bss),
        Unit("szext.clamp.s32", "szext.clamp.s32 %d, %a, %b;", bss),
        Unit("szext.wrap.u32", "szext.wrap.u32 %d, %a, %b;", bss),
        Unit("shf.l.wrap", "shf.l.wrap.b32 %d, %a, %b, %c;", bbs),
        Unit("shf.r.clamp", "shf.r.clamp.b32 %d, %a, %b, %c;", bbs),
        Unit("prmt", "prmt.b32 %d, %a, %b, %c;"),
        Unit("dp4a.s32.u32", "dp4a.s32.u32 %d, %a, %b, %c;"),
        Unit("dp2a.lo.s32.s32", "dp2a.lo.s32.s32 %d, %a, %b, %c;"),
        Unit("fns.b32", "mov.b32 %t0, 1; fns.b32 %d, %a, 0, %t0;"),
    ]
    units += [Unit(f"prmt.{m}", f"prmt.b32.{m} %d, %a, %b, %c;") for m in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")]
    units += [Unit(f"lop3.{lut:#x}", f"lop3.b32 %d, %a, %b, %c, {lut};") for lut in (0x96, 0xE8, 0xCA, 0x1B, 0x80)]
    units += [
        Unit(
            f"setp.{op}.{ty}",
            f"setp.{op}.{ty} %p|%q, %a, %b; selp.b32 %d, 1, 2, %p; selp.b32 %e, 1, 2, %q;",
            ("small", "small", "small"),
        )
        for op in ("lt", "ge", "ne")
        for ty in ("s32", "u32")
    ]
    units += [Unit(f"slct.{ty}.s32", f"slct.{ty}.s32 %d, %a, %b, %c;") for ty in ("b32",)]
    return units


def _warp_units() -> list[Unit]:
    """Shuffles, votes, matches and warp reductions (PTX 9.7.9.6, 9.7.13)."""
    mask = "0xffffffff"
    units = []
    for mode in ("up", "down", "bfly", "idx"):
        for clamp in ("0", "0x1f", "0x101f", "0x181c"):
            units.append(
                Unit(
                    f"shfl.{mode}.{clamp}",
                    f"and.b32 %t0, %b, 31; shfl.sync.{mode}.b32 %d|%p, %a, %t0, {clamp}, {mask}; selp.b32 %e, 1, 2, %p;",
                )
            )
    units += [
        Unit(f"vote.{m}", f"setp.lt.u32 %p, %a, 0x80000000; vote.sync.{m}.pred %q, %p, {mask}; selp.b32 %d, 1, 2, %q;")
        for m in ("all", "any", "uni")
    ]
    units += [
        Unit("vote.ballot", f"setp.lt.u32 %p, %a, 0x80000000; vote.sync.ballot.b32 %d, %p, {mask};"),
        Unit("match.any", f"and.b32 %t0, %a, 3; match.any.sync.b32 %d, %t0, {mask};"),
        Unit("match.all", f"shr.u32 %t0, %lane, 6; match.all.sync.b32 %d|%p, %t0, {mask}; selp.b32 %e, 1, 2, %p;"),
        Unit("activemask", "activemask.b32 %d;"),
        Unit("elect", "elect.sync %d|%p, 0xffffffff; selp.b32 %e, 1, 2, %p;"),
    ]
    units += [
        Unit(f"redux.{op}", f"redux.sync.{op} %d, %a, {mask};")
        for op in ("add.s32", "add.u32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32")
    ]
    return units


UNITS: tuple[Unit, ...] = (
    *_float_units(),
    *_half_units(),
    *_convert_units(),
    *_approx_units(),
    *_integer_units(),
    *_warp_units(),
)
