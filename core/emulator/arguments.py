# SPDX-License-Identifier: Apache-2.0
"""arguments.py: the host memory that a call of a compiled CuTe DSL function may touch.

Who calls it: attach.py, once a call. A compiled function gets addresses of descriptors; every runtime tensor and
pointer of the DSL hands out its descriptor through __c_pointers__, however deep in tuples and dataclasses it is, so the
owners are noted there. A tensor is registered element by element. A raw pointer has no extents: it stands for the torch
storage that holds the address, else for the runtime tensors that do.
Limits: addresses inside an array are followed where it is small and they lie in torch storages: Attachment.expose is
for others.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import itertools
import math
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from opdeck.core.emulator.library import HostTensor


def tensor_memory(tensor: Any, name: str) -> HostTensor:
    """The elements of a cute.runtime tensor."""
    # The element type may have been set anew: fp4 in uint8 storage. Booleans fill a byte.
    elem_bits = tensor.element_type.width
    return HostTensor(name, tensor.data_ptr, tuple(tensor.shape), tuple(tensor.stride), max(elem_bits, 4))


class ArgumentMemory:
    """Notes the owners of descriptors from install() on."""

    def __init__(self) -> None:
        # By address of the descriptor, and by identity: runtime tensors cannot be hashed.
        self._owners: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._tensors: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def install(self, tensor_type: Any, pointer_types: Iterable[Any]) -> None:
        """Notes the descriptors of these runtime types of the DSL."""
        tensor_type.__init__ = self._noting_tensor(tensor_type.__init__)
        for owner_type in (tensor_type, *pointer_types):
            owner_type.__c_pointers__ = self._noting_owner(owner_type.__c_pointers__)

    def owners(self, descriptors: Sequence[Any]) -> list[Any]:
        """What descriptors belong to; they are valid for as long as it lives."""
        found = (self._owners.get(_address(descriptor)) for descriptor in descriptors)
        return [owner for owner in found if owner is not None]

    def of_call(self, descriptors: Sequence[Any], names: Sequence[str]) -> tuple[list[HostTensor], list[int]]:
        """The memory behind the descriptors of one call, and the pointers to memory that nothing is known of.

        names: of the function's parameters.
        """
        memory = []
        addresses = []
        for argument_idx, descriptor in enumerate(descriptors):
            owner = self._owners.get(_address(descriptor))
            if owner is None:
                continue  # a scalar, a stream
            if hasattr(owner, "data_ptr"):
                # Parameters and descriptors match one to one unless one is a tuple or a dataclass.
                is_named = len(names) == len(descriptors)
                memory.append(tensor_memory(owner, names[argument_idx] if is_named else f"argument {argument_idx}"))
            elif owner._desc.value:
                addresses.append(owner._desc.value)
        known, unknown = _split(addresses, _torch_storages) if addresses else ([], [])
        tensors, unknown = _split(unknown, self._live_tensors) if unknown else ([], [])
        memory += known + tensors
        return memory + _pointed_to(memory), unknown

    def _live_tensors(self) -> Iterator[HostTensor]:
        for tensor in list(self._tensors.values()):
            yield tensor_memory(tensor, "tensor of a pointer")

    def _noting_tensor(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def init(tensor: Any, array: Any, *args: Any, **kwargs: Any) -> None:
            original(tensor, GpuArray(array) if hasattr(array, "__dlpack__") else array, *args, **kwargs)
            self._tensors[id(tensor)] = tensor

        return init

    def _noting_owner(self, original: Callable[[Any], list[Any]]) -> Callable[[Any], list[Any]]:
        @functools.wraps(original)
        def c_pointers(owner: Any) -> list[Any]:
            descriptors = original(owner)
            for descriptor in descriptors:
                self._owners[_address(descriptor)] = owner
            return descriptors

        return c_pointers


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_DLPACK_CUDA = 2
_MAX_POINTERS = 4096  # larger arrays of 64-bit words are data
_DEVICE_TYPE_OFFSET_BYTES = 8  # in a DLManagedTensor


class GpuArray:
    """A CPU array labelled as one on a GPU: the DSL takes memory elsewhere for generic, and kernels want global."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return _DLPACK_CUDA, 0

    def __dlpack__(self, **_wishes: object) -> Any:
        capsule = self._array.__dlpack__()
        device_type_address = _capsule_pointer(capsule, b"dltensor") + _DEVICE_TYPE_OFFSET_BYTES
        ctypes.c_int32.from_address(device_type_address).value = _DLPACK_CUDA
        return capsule


def _address(descriptor: Any) -> int:
    return int((descriptor.value if isinstance(descriptor, ctypes.c_void_p) else descriptor) or 0)


def _split(
    addresses: Sequence[int], candidates: Callable[[], Iterable[HostTensor]]
) -> tuple[list[HostTensor], list[int]]:
    """The candidates that hold one of the addresses, and the addresses that none holds."""
    holders = [candidate for candidate in candidates() if any(_holds(candidate, address) for address in addresses)]
    return holders, [address for address in addresses if not any(_holds(holder, address) for holder in holders)]


def _holds(tensor: HostTensor, address: int) -> bool:
    if 0 in tensor.shape:
        return False
    reach = [stride * (extent - 1) for extent, stride in zip(tensor.shape, tensor.strides, strict=True)]
    low_bits = sum(min(elems, 0) for elems in reach) * tensor.elem_bits
    high_bits = (sum(max(elems, 0) for elems in reach) + 1) * tensor.elem_bits
    return low_bits <= (address - tensor.data) * 8 < high_bits


def _pointed_to(memory: Sequence[HostTensor]) -> list[HostTensor]:
    """The storages that addresses in small arrays of 64-bit words lie in, as a grouped GEMM's do."""
    arrays = [tensor for tensor in memory if tensor.elem_bits == 64 and math.prod(tensor.shape) <= _MAX_POINTERS]
    words = [word for array in arrays for word in _words(array)]
    words = [word for word in words if not any(_holds(tensor, word) for tensor in memory)]
    return _split(words, _torch_storages)[0] if words else []


def _words(array: HostTensor) -> Iterator[int]:
    for position in itertools.product(*map(range, array.shape)):
        offset_words = sum(idx * stride for idx, stride in zip(position, array.strides, strict=True))
        yield ctypes.c_uint64.from_address(array.data + 8 * offset_words).value


def _torch_storages() -> Iterator[HostTensor]:
    """Storages of the CPU tensors that are alive, each once."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    seen = set()
    for candidate in gc.get_objects():
        if not issubclass(type(candidate), torch.Tensor) or candidate.device.type != "cpu":
            continue
        try:
            storage = candidate.untyped_storage()
        except (RuntimeError, NotImplementedError):
            continue  # sparse, or a subclass that has none
        data, size_bytes = storage.data_ptr(), storage.nbytes()
        if data and size_bytes and data not in seen:
            seen.add(data)
            yield HostTensor(f"torch storage of {size_bytes} bytes", data, (size_bytes,), (1,), 8)
