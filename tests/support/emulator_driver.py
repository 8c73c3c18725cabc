# SPDX-License-Identifier: Apache-2.0
"""libopdeck_emu.so as a CUDA driver, by ctypes: what the emulator's own tests use.

Called by tests/emulator. Kernels are PTX text: module_text() wraps a body, run_body() runs it on numpy arrays.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import opdeck.abi

READ, WRITE, READWRITE = 1, 2, 3
EAGER, LAZY, RANDOM = 0, 1, 2
DEVICES = {"sm_90a": 0, "sm_100a": 1, "sm_103a": 2}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("num_dims", ctypes.c_int32),
        ("elem_bits", ctypes.c_int32),
        ("access", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    ]


class _Options(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("schedule", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("hazards", ctypes.c_int32),
        ("profile", ctypes.c_int32),
        ("max_warp_instructions", ctypes.c_uint64),
    ]


class Report(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("num_launches", ctypes.c_uint32),
        ("num_ctas", ctypes.c_uint64),
        ("warp_instructions", ctypes.c_uint64),
        ("mma_macs", ctypes.c_uint64),
        ("tma_load_bytes", ctypes.c_uint64),
        ("tma_store_bytes", ctypes.c_uint64),
        ("cubin_sha256", ctypes.c_char * 65),
        ("kernel_name", ctypes.c_char * 191),
        ("hb_fingerprint", ctypes.c_uint64),
    ]


class _Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int32), ("pad", ctypes.c_int32), ("value", ctypes.c_uint32 * 16)]


class _Config(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("smem_bytes", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("attrs", ctypes.POINTER(_Attribute)),
        ("num_attrs", ctypes.c_uint32),
    ]


class EmulatorError(RuntimeError):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


@dataclass(frozen=True)
class Tensor:
    """A host array that a launch may touch. elem_bits below 8 need `shape` and `strides` in elements."""

    array: np.ndarray
    access: int = READ
    name: str = "tensor"


@dataclass(frozen=True)
class Schedule:
    """Options of a session. Hazard detectors are off: these tests are of the machine alone."""

    kind: int = EAGER
    seed: int = 0
    max_warp_instructions: int = 10_000_000
    hazards: int = 0
    profile: int = 0


class Emulator:
    """One loaded libopdeck_emu.so."""

    def __init__(self, path: Path | None = None) -> None:
        self.lib = ctypes.CDLL(str(path or opdeck.abi.emulator_path()))
        self.lib.opdeck_emu_last_error.restype = ctypes.c_char_p
        self.check(self.lib.cuInit(0))

    def check(self, code: int) -> None:
        if code != 0:
            raise EmulatorError(code, self.lib.opdeck_emu_last_error().decode())

    def register(self, cubin: bytes, ptx: str) -> None:
        text = ptx.encode()
        digest = hashlib.sha256(cubin).hexdigest().encode()
        self.check(self.lib.opdeck_emu_register_ptx(digest, text, ctypes.c_size_t(len(text))))

    def load(self, image: bytes | str) -> Library:
        data = image.encode() + b"\0" if isinstance(image, str) else image
        handle = ctypes.c_void_p()
        self.check(
            self.lib.cuLibraryLoadData(ctypes.byref(handle), ctypes.c_char_p(data), None, None, 0, None, None, 0)
        )
        return Library(self, handle)

    def use_device(self, arch: str) -> None:
        ctx = ctypes.c_void_p()
        self.check(self.lib.cuDevicePrimaryCtxRetain(ctypes.byref(ctx), DEVICES[arch]))
        self.check(self.lib.cuCtxSetCurrent(ctx))

    def begin(self, tensors: Sequence[Tensor], schedule: Schedule) -> None:
        table = (_Tensor * max(len(tensors), 1))()
        for entry, tensor in zip(table, tensors, strict=False):
            array = tensor.array
            shape = (ctypes.c_int64 * max(array.ndim, 1))(*array.shape)
            strides = (ctypes.c_int64 * max(array.ndim, 1))(*(s // array.itemsize for s in array.strides))
            entry.name, entry.data = tensor.name.encode(), array.ctypes.data
            entry.shape, entry.strides, entry.num_dims = shape, strides, array.ndim
            entry.elem_bits, entry.access = array.itemsize * 8, tensor.access
        options = _Options(
            ctypes.sizeof(_Options),
            schedule.kind,
            schedule.seed,
            schedule.hazards,
            schedule.profile,
            schedule.max_warp_instructions,
        )
        self.check(self.lib.opdeck_emu_begin(table, len(tensors), ctypes.byref(options)))

    def end(self) -> Report:
        report = Report()
        report.struct_size = ctypes.sizeof(Report)
        self.check(self.lib.opdeck_emu_end(ctypes.byref(report)))
        return report


class Library:
    def __init__(self, emulator: Emulator, handle: ctypes.c_void_p) -> None:
        self.emulator = emulator
        self.handle = handle

    def kernel(self, name: str) -> ctypes.c_void_p:
        kernel = ctypes.c_void_p()
        self.emulator.check(self.emulator.lib.cuLibraryGetKernel(ctypes.byref(kernel), self.handle, name.encode()))
        return kernel


@dataclass(frozen=True)
class Launch:
    """A launch shape; params are ctypes objects or bytes, one a kernel parameter."""

    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (32, 1, 1)
    cluster: tuple[int, int, int] = (1, 1, 1)
    smem_bytes: int = 0


def launch_config(launch: Launch) -> _Config:
    attributes = (_Attribute * 1)()
    attributes[0].id = 4
    attributes[0].value[:3] = launch.cluster
    return _Config((*launch.grid,), (*launch.block,), launch.smem_bytes, None, attributes, 1)


def run(
    emulator: Emulator,
    kernel: ctypes.c_void_p,
    launch: Launch,
    params: Sequence[object],
    tensors: Sequence[Tensor],
    schedule: Schedule = Schedule(),
) -> Report:
    """One launch in a session of its own; raises EmulatorError with the emulator's text."""
    buffers = [ctypes.create_string_buffer(p, len(p)) if isinstance(p, bytes) else p for p in params]
    table = (ctypes.c_void_p * max(len(buffers), 1))(*(ctypes.addressof(b) for b in buffers))
    config = launch_config(launch)
    emulator.begin(tensors, schedule)
    code = emulator.lib.cuLaunchKernelEx(ctypes.byref(config), kernel, table, None)
    text = emulator.lib.opdeck_emu_last_error().decode()
    report = emulator.end()
    if code != 0:
        raise EmulatorError(code, text)
    return report


def module_text(body: str, num_params: int, target: str = "sm_100a", declarations: str = "") -> str:
    """A module with one kernel `run` of `num_params` pointers.

    The body finds pointer i in %p_i, %tid.x in %tid; it may use %q0.. (predicates), %h0.. (16 bits), %r0.. (32) and
    %d0.. (64).
    """
    params = ",\n".join(f"  .param .u64 run_param_{i}" for i in range(num_params))
    loads = "\n".join(f"  ld.param.u64 %p_{i}, [run_param_{i}];" for i in range(num_params))
    pointers = "".join(f"  .reg .b64 %p_{i};\n" for i in range(num_params))
    return f""".version 9.0
.target {target}
.address_size 64
{declarations}
.visible .entry run(
{params}
)
{{
  .reg .pred %q<32>;
  .reg .b16 %h<64>;
  .reg .b32 %r<128>;
  .reg .b64 %d<64>;
  .reg .b32 %tid;
{pointers}{loads}
  mov.u32 %tid, %tid.x;
{body}
  ret;
}}
"""


def run_body(
    emulator: Emulator,
    body: str,
    tensors: Sequence[Tensor],
    launch: Launch = Launch(),
    schedule: Schedule = Schedule(),
    *,
    target: str = "sm_100a",
    declarations: str = "",
) -> Report:
    """Runs a kernel whose parameters are the tensors' addresses, in order."""
    library = emulator.load(module_text(body, len(tensors), target, declarations))
    emulator.use_device(target)
    pointers = [ctypes.c_uint64(tensor.array.ctypes.data) for tensor in tensors]
    try:
        return run(emulator, library.kernel("run"), launch, pointers, tensors, schedule)
    finally:
        emulator.check(emulator.lib.cuLibraryUnload(library.handle))
