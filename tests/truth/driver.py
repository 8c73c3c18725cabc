# SPDX-License-Identifier: Apache-2.0
"""A small ctypes client of the CUDA driver interface, the same for libcuda.so.1 and for libopdeck_emu.so."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p

import numpy as np


class DriverFault(RuntimeError):
    """A call that failed; `status` is the driver's CUresult."""

    def __init__(self, call: str, status: int, detail: str) -> None:
        super().__init__(f"{call} returned {status} {detail}")
        self.status = status


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [(n, c_uint) for n in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "smem_bytes")] + [
        ("stream", c_void_p),
        ("attrs", c_void_p),
        ("num_attrs", c_uint),
    ]


class Driver:
    """One device of a driver; `library` as dlopen takes it."""

    def __init__(self, library: str, ordinal: int = 0) -> None:
        self._lib = ctypes.CDLL(library)
        self._allocated: list[int] = []
        context, device = c_void_p(), c_int()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", byref(device), ordinal)
        self._call("cuDevicePrimaryCtxRetain", byref(context), device)
        self._call("cuCtxSetCurrent", context)

    def _call(self, name: str, *args: object) -> None:
        status = getattr(self._lib, name)(*args)
        if status != 0:
            detail = ""
            if hasattr(self._lib, "opdeck_emu_last_error"):
                self._lib.opdeck_emu_last_error.restype = c_char_p
                detail = self._lib.opdeck_emu_last_error().decode()
            raise DriverFault(name, status, detail)

    def alloc(self, num_bytes: int) -> int:
        ptr = c_uint64()
        self._call("cuMemAlloc_v2", byref(ptr), c_size_t(num_bytes))
        self._allocated.append(ptr.value)
        return ptr.value

    def free_all(self) -> None:
        """Frees what `alloc` gave; after a fault the memory is gone with its context, so failures do not count."""
        while self._allocated:
            self._lib.cuMemFree_v2(c_uint64(self._allocated.pop()))

    def upload(self, ptr: int, data: np.ndarray) -> None:
        data = np.ascontiguousarray(data)
        self._call("cuMemcpyHtoDAsync_v2", c_uint64(ptr), c_void_p(data.ctypes.data), c_size_t(data.nbytes), None)
        self._call("cuStreamSynchronize", None)

    def download(self, ptr: int, out: np.ndarray) -> np.ndarray:
        self._call("cuStreamSynchronize", None)
        self._call("cuMemcpyDtoHAsync_v2", c_void_p(out.ctypes.data), c_uint64(ptr), c_size_t(out.nbytes), None)
        self._call("cuStreamSynchronize", None)
        return out

    def load(self, ptx: str, name: str = "unit") -> c_void_p:
        library, kernel = c_void_p(), c_void_p()
        self._call("cuLibraryLoadData", byref(library), c_char_p(ptx.encode() + b"\0"), None, None, 0, None, None, 0)
        self._call("cuLibraryGetKernel", byref(kernel), library, c_char_p(name.encode()))
        return kernel

    def launch(self, kernel: c_void_p, grid: int, block: int, params: list[object]) -> None:
        """params: ints are 64-bit pointers, bytes a by-value structure."""
        config = LaunchConfig(grid, 1, 1, block, 1, 1, 0, None, None, 0)
        cells = [c_uint64(p) if isinstance(p, int) else ctypes.create_string_buffer(p, len(p)) for p in params]  # type: ignore[arg-type]
        pointers = (c_void_p * len(cells))(*[ctypes.addressof(cell) for cell in cells])
        self._call("cuLaunchKernelEx", byref(config), kernel, pointers, None)
        self._call("cuStreamSynchronize", None)

    def encode_tiled(
        self,
        base: int,
        dtype: int,
        dims: tuple[int, ...],
        strides_bytes: tuple[int, ...],
        box: tuple[int, ...],
        elem_strides: tuple[int, ...],
        swizzle: int,
    ) -> bytes:
        """cuTensorMapEncodeTiled, which only a real driver has."""
        raw = ctypes.create_string_buffer(192)
        aligned = (ctypes.addressof(raw) + 63) // 64 * 64
        rank = len(dims)
        self._call(
            "cuTensorMapEncodeTiled",
            c_void_p(aligned),
            dtype,
            rank,
            c_uint64(base),
            (c_uint64 * rank)(*dims),
            (c_uint64 * max(rank - 1, 1))(*strides_bytes),
            (c_uint * rank)(*box),
            (c_uint * rank)(*elem_strides),
            0,
            swizzle,
            0,
            0,
        )
        return ctypes.string_at(aligned, 128)
