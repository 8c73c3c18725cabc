# SPDX-License-Identifier: Apache-2.0
"""Unit kernels of the tensor memory accelerator and of wgmma, each one instruction between plain loads and stores.

Threads read what TMA wrote, and write what wgmma reads, so that an error in a layout that the two share cannot
cancel. Run on a real GPU by `record.py`, on the emulator by `test_truth.py`. Sections: PTX ISA 9.0, 9.7.9.27
(cp.async.bulk.tensor) and 9.7.15 (wgmma).
"""

from __future__ import annotations

import itertools
import zlib
from dataclasses import dataclass

import numpy as np

NUM_THREADS = 128
SMEM_BYTES = 32768

_HEAD = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry unit(.param .u64 p_in, .param .u64 p_out, .param .u64 p_desc, .param .align 64 .b8 p_map[128])
{{
  .shared .align 1024 .b8 buf[{smem}];
  .shared .align 8 .b64 bar;
  .reg .b64 %pi, %po, %pd, %off, %map, %da, %db, %x;
  .reg .b32 %thr, %i, %w, %s, %base, %bar, %a<4>;
  .reg .pred %p, %done, %first, %warp0;
  .reg .f32 %f<128>;
  ld.param.u64 %pi, [p_in];
  ld.param.u64 %po, [p_out];
  ld.param.u64 %pd, [p_desc];
  mov.b64 %map, p_map;
  cvta.param.u64 %map, %map;
  mov.u32 %thr, %tid.x;
  mov.u32 %base, buf;
  mov.u32 %bar, bar;
  setp.eq.u32 %first, %thr, 0;
  setp.lt.u32 %warp0, %thr, 32;
"""

_FILL = """  mov.u32 %i, %thr;
fill:
  mul.wide.u32 %off, %i, 4;
  add.u64 %off, %off, %pi;
  ld.global.b32 %w, [%off];
  mad.lo.u32 %s, %i, 4, %base;
  st.shared.b32 [%s], %w;
  add.u32 %i, %i, 128;
  setp.lt.u32 %p, %i, {words};
  @%p bra fill;
"""

_DUMP = """  mov.u32 %i, %thr;
dump:
  mad.lo.u32 %s, %i, 4, %base;
  ld.shared.b32 %w, [%s];
  mul.wide.u32 %off, %i, 4;
  add.u64 %off, %off, %po;
  st.global.b32 [%off], %w;
  add.u32 %i, %i, 128;
  setp.lt.u32 %p, %i, {words};
  @%p bra dump;
"""

# CUtensorMapDataType and CUtensorMapSwizzle of the driver interface.
MAP_TYPES = {
    "u8": (0, 1),
    "u16": (1, 2),
    "u32": (2, 4),
    "s32": (3, 4),
    "u64": (4, 8),
    "s64": (5, 8),
    "f16": (6, 2),
    "f32": (7, 4),
    "f64": (8, 8),
    "bf16": (9, 2),
    "f32.ftz": (10, 4),
    "tf32": (11, 4),
}
SWIZZLES = {"none": 0, "32B": 1, "64B": 2, "128B": 3}


@dataclass(frozen=True)
class TmaUnit:
    """One load, store or reduction of one box. dims, box, coords: innermost first, in elements; strides in bytes."""

    op: str  # load, store, or the operation of a reduction: add, min, max, and, or, xor
    dtype: str
    dims: tuple[int, ...]
    box: tuple[int, ...]
    coords: tuple[int, ...]
    swizzle: str = "none"
    pad_bytes: int = 0
    elem_strides: tuple[int, ...] = ()
    issuers: str = "first"  # the predicate of the threads that run the instruction: "first", or "warp0" (all 32 lanes)

    @property
    def name(self) -> str:
        shape = "_".join("x".join(map(str, dim)) for dim in (self.dims, self.box, self.coords))
        strides = "e" + "x".join(map(str, self.elem_strides)) if self.elem_strides else ""
        issuers = "" if self.issuers == "first" else f".{self.issuers}"
        return f"tma.{self.op}.{self.dtype}.{self.swizzle}.{shape}.p{self.pad_bytes}{strides}{issuers}"

    @property
    def elem_bytes(self) -> int:
        return MAP_TYPES[self.dtype][1]

    @property
    def strides_bytes(self) -> tuple[int, ...]:
        """Of dims 1 and up; each row is rounded up to 16 bytes and padded."""
        strides, pitch = [], -(-self.dims[0] * self.elem_bytes // 16) * 16 + self.pad_bytes
        for dim in self.dims[1:]:
            strides.append(pitch)
            pitch *= dim
        return tuple(strides)

    @property
    def global_bytes(self) -> int:
        return (
            -(-self.dims[0] * self.elem_bytes // 16) * 16
            if len(self.dims) == 1
            else self.strides_bytes[-1] * self.dims[-1]
        )

    @property
    def box_bytes(self) -> int:
        counts = [-(-b // s) for b, s in zip(self.box, self.elem_strides or (1,) * len(self.box), strict=True)]
        return int(np.prod(counts)) * self.elem_bytes

    @property
    def ptx(self) -> str:
        rank = len(self.dims)
        coords = ", ".join(map(str, self.coords))
        head = _HEAD.format(smem=SMEM_BYTES) + _FILL.format(words=SMEM_BYTES // 4)
        if self.op == "load":
            body = f"""  @%first mbarrier.init.shared::cta.b64 [%bar], 1;
  fence.proxy.async;
  bar.sync 0;
  @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], {self.box_bytes};
  @%first cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%base], [%map, {{{coords}}}], [%bar];
  mov.b32 %i, 0;
wait:
  mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], 0;
  add.u32 %i, %i, 1;
  setp.lt.u32 %p, %i, 10000;
  not.pred %done, %done;
  and.pred %p, %p, %done;
  @%p bra wait;
""" + _DUMP.format(words=SMEM_BYTES // 4)
        else:
            kind = "cp.async.bulk.tensor" if self.op == "store" else "cp.reduce.async.bulk.tensor"
            red = "" if self.op == "store" else f".{self.op}"
            body = f"""  fence.proxy.async;
  bar.sync 0;
  @%{self.issuers} {kind}.{rank}d.global.shared::cta{red}.tile.bulk_group [%map, {{{coords}}}], [%base];
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
"""
        return head + body + "  ret;\n}\n"

    def smem_image(self) -> np.ndarray:
        rng = np.random.RandomState(zlib.crc32(self.name.encode()))
        return _values(self.dtype, SMEM_BYTES, rng)

    def global_image(self) -> np.ndarray:
        rng = np.random.RandomState(zlib.crc32(self.name.encode()) ^ 1)
        return _values(self.dtype, self.global_bytes, rng)


def _values(dtype: str, num_bytes: int, rng: np.random.RandomState) -> np.ndarray:
    """Bytes of small whole numbers in `dtype` (sums of which are exact), random bytes for integer types."""
    if dtype in ("f16", "bf16", "f32", "f64", "f32.ftz", "tf32"):
        whole = rng.randint(-3, 4, num_bytes).astype(np.float32)
        if dtype == "bf16":
            return (whole.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)[:num_bytes].copy()
        return (
            whole.astype({"f16": np.float16, "f64": np.float64}.get(dtype, np.float32))
            .view(np.uint8)[:num_bytes]
            .copy()
        )
    return rng.randint(0, 256, num_bytes).astype(np.uint8)


def _tma_units() -> list[TmaUnit]:
    units = []
    for swizzle, width in (("none", 64), ("32B", 32), ("64B", 64), ("128B", 128)):
        for dtype in ("u8", "f16", "bf16", "f32"):
            inner = width // MAP_TYPES[dtype][1]
            units.append(TmaUnit("load", dtype, (inner * 2, 40), (inner, 24), (inner, 8), swizzle))
            units.append(TmaUnit("load", dtype, (inner * 2, 40), (inner, 32), (inner // 2, 20), swizzle, 48))
            units.append(TmaUnit("store", dtype, (inner * 2, 40), (inner, 32), (inner, 20), swizzle, 16))
        units.append(TmaUnit("load", "f16", (64, 7, 5, 3, 4), (width // 2, 4, 3, 2, 2), (16, -1, 3, 2, 1), swizzle, 32))
        units.append(TmaUnit("load", "f16", (64, 9, 5, 3), (width // 2, 5, 3, 1), (-8, 6, -2, 2), swizzle))
        units.append(TmaUnit("store", "f16", (64, 7, 5, 3, 4), (width // 2, 4, 3, 2, 2), (48, 5, 3, 2, 1), swizzle, 32))
        units.append(TmaUnit("add", "f32", (32, 20), (width // 4, 8), (4, 15), swizzle))
    units += [
        TmaUnit("load", "u8", (200,), (64,), (160,)),
        TmaUnit("load", "u64", (20, 6), (4, 3), (18, 4)),
        TmaUnit("load", "tf32", (32, 10), (16, 4), (20, 8)),
        TmaUnit("load", "f32.ftz", (32, 10), (16, 4), (20, 8)),
        TmaUnit("load", "f16", (64, 40), (32, 16), (0, 4), elem_strides=(1, 2)),
        TmaUnit("load", "f16", (64, 40), (32, 16), (104, 4)),
        TmaUnit("load", "f16", (64, 40), (32, 16), (-40, 4)),
    ]
    units += [
        TmaUnit(op, dtype, (32, 20), (16, 8), (24, 15))
        for op, dtype in (
            ("add", "f16"),
            ("add", "bf16"),
            ("min", "f16"),
            ("max", "bf16"),
            ("add", "u32"),
            ("min", "s32"),
            ("max", "u32"),
            ("and", "u32"),
            ("or", "u32"),
            ("xor", "u32"),
            ("add", "u64"),
        )
    ]
    # All lanes of a warp with the same operands: how often is it done?
    units += [TmaUnit("add", dtype, (32, 20), (16, 8), (0, 8), issuers="warp0") for dtype in ("u32", "f32")]
    # A GPU traps on these: a first coordinate that is not a multiple of 16 bytes, and a negative one in a store.
    units += [
        TmaUnit("load", "f16", (64, 40), (32, 16), (100, 4)),
        TmaUnit("store", "f16", (64, 40), (32, 32), (16, -5)),
        TmaUnit("add", "f16", (64, 40), (32, 8), (-8, 4)),
    ]
    return units


@dataclass(frozen=True)
class WgmmaUnit:
    """One wgmma.mma_async of m64nNkK on random small whole numbers (every sum is exact), or normal numbers."""

    a_type: str
    b_type: str
    n: int
    a_layout: tuple[str, int, int] = ("128B", 16, 1024)  # swizzle, LBO bytes, SBO bytes; "reg": A in registers
    b_layout: tuple[str, int, int] = ("128B", 16, 1024)
    transpose: tuple[int, int] = (0, 0)
    signs: tuple[int, int] = (1, 1)
    start_bytes: tuple[int, int] = (0, 0)
    d_type: str = "f32"
    values: str = (
        "whole"  # "normal": standard normal numbers; "wide": of exponents from -12 to 6, subnormals of fp8 among them
    )
    scale_d: int = 1
    init: str = "one"  # D before: 1 everywhere, or "ramp": different in every thread and register

    @property
    def name(self) -> str:
        parts = [
            self.a_type,
            self.b_type,
            self.d_type,
            f"n{self.n}",
            "-".join(map(str, self.a_layout)),
            "-".join(map(str, self.b_layout)),
            "t{}{}".format(*self.transpose),
            "s{}{}".format(*self.signs),
            "o{}-{}".format(*self.start_bytes),
            self.values,
            f"d{self.scale_d}",
            *([self.init] if self.init != "one" else []),
        ]
        return "wgmma." + ".".join(parts)

    @property
    def k(self) -> int:
        return {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32}[self.a_type]

    @property
    def num_d_regs(self) -> int:
        return self.n // 2 if self.d_type == "f32" else self.n // 4

    def descriptors(self) -> tuple[int, int]:
        """Start offsets are relative to the buffer: A at 0, B at 16384."""
        modes = {"none": 0, "128B": 1, "64B": 2, "32B": 3}
        return tuple(
            ((base + start) >> 4)
            | (lbo >> 4) << 16
            | (sbo >> 4) << 32
            | modes[swizzle if swizzle != "reg" else "none"] << 62
            for base, start, (swizzle, lbo, sbo) in zip(
                (0, 16384), self.start_bytes, (self.a_layout, self.b_layout), strict=True
            )
        )  # type: ignore[return-value]

    @property
    def ptx(self) -> str:
        regs = (
            [f"%f{i}" for i in range(self.num_d_regs)]
            if self.d_type == "f32"
            else [f"%g{i}" for i in range(self.num_d_regs)]
        )
        in_regs = self.a_layout[0] == "reg"
        a = "{%a0, %a1, %a2, %a3}" if in_regs else "%da"
        tail = f", %p, {self.signs[0]}, {self.signs[1]}"
        if self.a_type in ("f16", "bf16"):
            tail += f", {self.transpose[1]}" if in_regs else f", {self.transpose[0]}, {self.transpose[1]}"
        init = "".join(f"  mov.b32 {r}, {0x3F800000 if self.d_type == 'f32' else 0x3C003C00};\n" for r in regs)
        if self.init == "ramp":
            init = "  cvt.rn.f32.u32 %ramp, %thr;\n"
            init += "".join(
                f"  fma.rn.f32 {r}, %ramp, 0f3D3645A2, 0f{0xC0400000 + 0x1234 * i:08X};\n" for i, r in enumerate(regs)
            )
        load_a = "".join(f"  ld.shared.b32 %a{i}, [%s+{i * 512}];\n" for i in range(4)) if in_regs else ""
        stores = "".join(f"  st.global.b32 [%off+{i * 512}], {r};\n" for i, r in enumerate(regs))
        body = f"""  .reg .b32 %g<64>; .reg .f32 %ramp;
  bar.sync 0;
  fence.proxy.async;
  bar.sync 0;
  ld.global.v2.b64 {{%da, %db}}, [%pd];
  shr.u32 %s, %base, 4;
  cvt.u64.u32 %x, %s;
  add.u64 %da, %da, %x;
  add.u64 %db, %db, %x;
{init}  mad.lo.u32 %s, %thr, 4, %base;
{load_a}  setp.ne.u32 %p, {self.scale_d}, 0;
  wgmma.fence.sync.aligned;
  wgmma.mma_async.sync.aligned.m64n{self.n}k{self.k}.{self.d_type}.{self.a_type}.{self.b_type} {{{", ".join(regs)}}}, {a}, %db{tail};
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 0;
  mul.wide.u32 %off, %thr, 4;
  add.u64 %off, %off, %po;
{stores}"""
        return _HEAD.format(smem=SMEM_BYTES) + _FILL.format(words=SMEM_BYTES // 4) + body + "  ret;\n}\n"

    def smem_image(self) -> np.ndarray:
        """A's elements fill the first half, B's the second, whatever the layout reads of them."""
        rng = np.random.RandomState(zlib.crc32(self.name.encode()))
        a, b = self._numbers(rng), self._numbers(rng)
        if self.values == "tiny":
            a = np.ldexp(a, rng.randint(-4, 4, len(a)) + _MIN_EXPONENTS[self.a_type])
        return np.concatenate([encode(self.a_type, a), encode(self.b_type, b)])

    def _numbers(self, rng: np.random.RandomState) -> np.ndarray:
        if self.values == "whole":
            return rng.randint(-2, 3, SMEM_BYTES // 2).astype(np.float32)
        normal = rng.standard_normal(SMEM_BYTES // 2).astype(np.float32)
        return np.ldexp(normal, rng.randint(-12, 6, len(normal))) if self.values == "wide" else normal


# Of the smallest normal number.
_MIN_EXPONENTS = {"f16": -14, "bf16": -126, "tf32": -126, "e4m3": -6, "e5m2": -14}


def encode(dtype: str, numbers: np.ndarray) -> np.ndarray:
    """The first SMEM_BYTES / 2 bytes of `numbers` in `dtype`."""
    import ml_dtypes

    types = {
        "f16": np.float16,
        "bf16": ml_dtypes.bfloat16,
        "e4m3": ml_dtypes.float8_e4m3fn,
        "e5m2": ml_dtypes.float8_e5m2,
    }
    if dtype == "tf32":
        raw = (numbers.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.uint8)
    else:
        raw = numbers.astype(types[dtype]).view(np.uint8)
    return raw[: SMEM_BYTES // 2].copy()


_K_MAJOR = {"none": ("none", 2048, 128), "32B": ("32B", 16, 256), "64B": ("64B", 16, 512), "128B": ("128B", 16, 1024)}
_MN_MAJOR = {
    "none": ("none", 256, 128),
    "32B": ("32B", 512, 256),
    "64B": ("64B", 1024, 512),
    "128B": ("128B", 2048, 1024),
}


def _wgmma_units() -> list[WgmmaUnit]:
    units = []
    types = (
        ("f16", "f16"),
        ("bf16", "bf16"),
        ("tf32", "tf32"),
        ("e4m3", "e4m3"),
        ("e5m2", "e5m2"),
        ("e4m3", "e5m2"),
        ("e5m2", "e4m3"),
    )
    for (a, b), swizzle in itertools.product(types, _K_MAJOR):
        units.append(WgmmaUnit(a, b, 64, _K_MAJOR[swizzle], _K_MAJOR[swizzle]))
    for a, b in types:
        units += [WgmmaUnit(a, b, n) for n in (8, 24, 128)]
        units.append(WgmmaUnit(a, b, 256, b_layout=_K_MAJOR["32B"]))
        units.append(WgmmaUnit(a, b, 64, ("reg", 0, 0)))
        units += [
            WgmmaUnit(a, b, 64, values="normal"),
            WgmmaUnit(a, b, 32, values="normal", init="ramp"),
            WgmmaUnit(a, b, 32, values="wide", init="ramp"),
            WgmmaUnit(a, b, 32, values="wide", scale_d=0),
            WgmmaUnit(a, b, 32, values="tiny", scale_d=0),
        ]
        units.append(WgmmaUnit(a, b, 64, signs=(-1, 1), scale_d=0))
        units.append(WgmmaUnit(a, b, 32, start_bytes=(32, 64)))
        if a != "tf32" and a != "bf16":
            units += [
                WgmmaUnit(a, b, 64, d_type="f16"),
                WgmmaUnit(a, b, 32, d_type="f16", values="normal"),
                WgmmaUnit(a, b, 32, d_type="f16", values="wide"),
            ]
    for ty, swizzle in itertools.product(("f16", "bf16"), _MN_MAJOR):
        units += [
            WgmmaUnit(ty, ty, 64, _MN_MAJOR[swizzle], _K_MAJOR["128B"], (1, 0)),
            WgmmaUnit(ty, ty, 128, _K_MAJOR["128B"], _MN_MAJOR[swizzle], (0, 1)),
            WgmmaUnit(ty, ty, 64, ("reg", 0, 0), _MN_MAJOR[swizzle], (0, 1)),
        ]
    return units


TMA_UNITS: tuple[TmaUnit, ...] = tuple(_tma_units())
WGMMA_UNITS: tuple[WgmmaUnit, ...] = tuple(_wgmma_units())
