# SPDX-License-Identifier: Apache-2.0
"""arrays.py: arrays of numpy, torch and any library with DLPack, seen as pointer, shape and strides; never copied.

Who calls it: the spec.py of families (view, permuted), operator.py (allocate), the CPU device (as_numpy).
numpy goes by __array_interface__ and not by DLPack because arrays of ml_dtypes have neither DLPack nor a buffer.
Limits: no library's arrays have elements of less than a byte; an operator that takes such makes the views itself, from
the bytes that hold them. A DLPack array on a GPU is taken as it is on the caller's stream.
"""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from opdeck.core import dtypes
from opdeck.core.errors import ArgumentError, ArgumentTypeError, OpdeckError
from opdeck.core.packing import pack, unpack

# The most that a schema asks for: of elements under a byte, of others.
MAX_PACKED_ALIGN_BYTES, MAX_ALIGN_BYTES = 32, 16
_PACKED = frozenset(row.name for row in dtypes.DTYPES if row.bits < 8)
WANTED = "a numpy array, a torch tensor or an object with __dlpack__"


class TensorView(NamedTuple):
    """An array as a kernel sees it. argument: its name to the user. strides: in elements. device: "cpu" or "cuda:N".

    dtype: the canonical name; of a type that is none of opdeck's, the library's, which all who ask for types refuse.
    owner: what keeps the memory.
    """

    argument: str
    data: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: str
    is_readonly: bool
    owner: Any

    @property
    def signature(self) -> Hashable:
        """Equal for tensors that one plan serves: all but the address, of which the alignment counts."""
        alignment_bytes = self.data % (MAX_PACKED_ALIGN_BYTES if self.dtype in _PACKED else MAX_ALIGN_BYTES)
        return self.shape, self.strides, self.dtype, self.device, self.is_readonly, alignment_bytes

    def permuted(self, order: tuple[int | None, ...]) -> TensorView:
        """The same memory with its dims in another order; None stands for a new dim, of extent 1."""
        num_dims = len(order) - order.count(None)
        if len(self.shape) != num_dims:
            raise ArgumentError(self.argument, f"{len(self.shape)} dims {self.shape}", f"{num_dims} dims")
        if order == tuple(range(len(order))):
            return self
        shape = tuple(1 if dim is None else self.shape[dim] for dim in order)
        whole = math.prod(self.shape)  # a stride that steps over everything
        strides = tuple(whole if dim is None else self.strides[dim] for dim in order)
        return self._replace(shape=shape, strides=strides)


def view(array: object, argument: str) -> TensorView:
    """The view of an array.

    Raises: ArgumentTypeError when it is no array; ArgumentError when its memory cannot be described.
    """
    if isinstance(array, np.ma.MaskedArray):
        raise ArgumentTypeError(argument, "a masked array", WANTED, "no kernel reads its mask")
    if isinstance(array, np.ndarray):
        return _view_numpy(array, argument)
    if is_torch(array):
        return _view_torch(array, argument)
    if hasattr(array, "__dlpack__"):
        try:
            return _view_dlpack(array, argument)
        except OpdeckError:
            raise
        except Exception as error:  # whatever a producer raises
            got = f"{type(array).__qualname__} whose export by DLPack fails: {error}"
            raise ArgumentTypeError(argument, got, WANTED) from error
    raise ArgumentTypeError(argument, type(array).__qualname__, WANTED)


def allocate(like: object, shape: Sequence[int], dtype: str, row_align_bytes: int = 1) -> Any:
    """An uninitialised array of the library and on the device of `like`.

    Compact, but for rows that begin multiples of row_align_bytes apart: then a view of a wider array.

    Raises: ArgumentTypeError when that library offers no way to allocate, or has no such element type.
    """
    row = dtypes.dtype(dtype)
    row_elems = shape[-1] if shape else 1
    align_elems = max(row_align_bytes // row.size_bytes, 1)
    pitch_elems = -(-row_elems // align_elems) * align_elems
    if pitch_elems != row_elems:
        return allocate(like, (*shape[:-1], pitch_elems), dtype)[..., :row_elems]
    if isinstance(like, np.ndarray):
        return np.empty(tuple(shape), row.numpy)
    if is_torch(like):
        torch = sys.modules["torch"]
        return torch.empty(tuple(shape), dtype=getattr(torch, row.torch_name), device=like.device)  # type: ignore[attr-defined]
    offered = getattr(like, "__array_namespace__", None)
    if offered is None:
        got = f"{type(like).__qualname__} without __array_namespace__"
        raise ArgumentTypeError("out", got, "an array to write to", "the library of q cannot be asked to allocate one")
    namespace = offered()
    element_type = getattr(namespace, row.numpy_name, None)
    if element_type is None:
        raise ArgumentTypeError("out", f"{namespace.__name__} without {row.numpy_name}", "an array to write to")
    return namespace.empty(tuple(shape), dtype=element_type, device=like.device)  # type: ignore[attr-defined]


def as_numpy(tensor: TensorView) -> npt.NDArray[Any]:
    """A view of host memory as a numpy array, of the same memory; of elements under a byte a copy, unpacked."""
    row = dtypes.dtype(tensor.dtype)
    if 0 in tensor.shape:
        return np.empty(tensor.shape, row.numpy)
    if row.bits < 8:
        return unpack(np.ascontiguousarray(_packed_bytes(tensor)), row.bits).view(row.numpy)
    strides = tuple(stride * row.size_bytes for stride in tensor.strides)
    return _host_bytes(tensor, tensor.shape, strides, row.size_bytes).view(row.numpy)


def write_packed(tensor: TensorView, elements: npt.NDArray[Any]) -> None:
    """Writes elements under a byte to the host memory of a tensor of their shape."""
    if elements.size:
        _packed_bytes(tensor)[...] = pack(elements.view(np.uint8), dtypes.dtype(tensor.dtype).bits)


def _packed_bytes(tensor: TensorView) -> npt.NDArray[Any]:
    bits = dtypes.dtype(tensor.dtype).bits
    strides = tuple(stride * bits // 8 for stride in tensor.strides[:-1])
    return _host_bytes(tensor, (*tensor.shape[:-1], tensor.shape[-1] * bits // 8), (*strides, 1), 1)


def _host_bytes(
    tensor: TensorView, shape: tuple[int, ...], strides_bytes: tuple[int, ...], size_bytes: int
) -> npt.NDArray[Any]:
    """A tensor's memory as unsigned integers of a size."""
    interface = {
        "version": 3,
        "data": (tensor.data, tensor.is_readonly),
        "shape": shape,
        "strides": strides_bytes,
        "typestr": f"<u{size_bytes}",
    }
    return np.asarray(type("HostMemory", (), {"__array_interface__": interface, "owner": tensor.owner})())


def aligned_copy(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A compact copy that begins at a multiple of MAX_PACKED_ALIGN_BYTES, which numpy does not promise."""
    buffer = np.empty(array.nbytes + MAX_PACKED_ALIGN_BYTES, np.uint8)
    begin = -buffer.__array_interface__["data"][0] % MAX_PACKED_ALIGN_BYTES
    copy = buffer[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _view_numpy(array: npt.NDArray[Any], argument: str) -> TensorView:
    name = _name_of_numpy_dtype(array.dtype)
    size_bytes, strides_bytes = max(array.itemsize, 1), array.strides
    strides = tuple([stride // size_bytes for stride in strides_bytes])
    if sum(strides) * size_bytes != sum(strides_bytes):  # // rounds down: any remainder shows in the sum
        want = f"multiples of the element's {size_bytes} bytes"
        raise ArgumentError(argument, f"strides of {strides_bytes} bytes", want)
    address, is_readonly = array.__array_interface__["data"]
    return TensorView(argument, address, array.shape, strides, name, "cpu", is_readonly, array)


@functools.cache
def _name_of_numpy_dtype(numpy_dtype: np.dtype[Any]) -> str:
    row = dtypes.by_numpy_name(numpy_dtype.name)
    return row.name if row is not None and numpy_dtype.isnative else str(numpy_dtype)


def is_torch(array: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def _view_torch(tensor: Any, argument: str) -> TensorView:
    torch_name = str(tensor.dtype).removeprefix("torch.")
    row = dtypes.by_torch_name(torch_name)
    layout = str(tensor.layout)
    if layout != "torch.strided" or tensor.device.type not in ("cpu", "cuda"):
        raise ArgumentTypeError(argument, f"a {layout} tensor on {tensor.device}", "a strided one on cpu or cuda")
    device = "cpu" if tensor.device.type == "cpu" else f"cuda:{tensor.device.index}"
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    name = torch_name if row is None else row.name
    return TensorView(argument, tensor.data_ptr(), shape, strides, name, device, False, tensor)


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


_DLPACK_READ_ONLY = 1
_DLPACK_DEVICES = {1: "cpu", 2: "cuda"}

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]


def _view_dlpack(array: Any, argument: str) -> TensorView:
    device_type, device_id = array.__dlpack_device__()
    kind = _DLPACK_DEVICES.get(int(device_type))
    if kind is None:
        raise ArgumentTypeError(argument, f"DLPack device type {int(device_type)}", "1 (CPU) or 2 (CUDA)")
    # -1: no synchronisation; the launch goes to the caller's stream.
    stream = {} if kind == "cpu" else {"stream": -1}
    try:
        capsule = array.__dlpack__(max_version=(1, 0), **stream)
    except TypeError:  # a producer from before DLPack 1.0
        capsule = array.__dlpack__(**stream)
    is_readonly = False
    if _capsule_is_valid(capsule, b"dltensor_versioned"):
        managed = _DLManagedTensorVersioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        tensor, is_readonly = managed.tensor, bool(managed.flags & _DLPACK_READ_ONLY)
    else:
        tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    row = dtypes.by_dlpack(tensor.code, tensor.bits) if tensor.lanes == 1 else None
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else compact_strides(shape)
    device = kind if kind == "cpu" else f"{kind}:{device_id}"
    address = (tensor.data or 0) + tensor.byte_offset
    # The capsule keeps the memory; its destructor hands it back, since nobody consumes it.
    unknown = f"(code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes)"
    name = unknown if row is None else row.name
    return TensorView(argument, address, shape, strides, name, device, is_readonly, (array, capsule))


def compact_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))
