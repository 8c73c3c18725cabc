# SPDX-License-Identifier: Apache-2.0
"""transfer.py: numpy arrays to where a device or a library wants them, and back.

Who calls it: the CLI and the tests, whose inputs and oracles are numpy's; opdeck.core.mx, whose arithmetic is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from opdeck.core import arrays, dtypes
from opdeck.core.errors import ArgumentTypeError, DriverError


def to_memory(array: npt.NDArray[Any], memory: str) -> Any:
    """The array itself for "cpu"; for "cuda:N" a torch tensor there with the same values and strides.

    Raises: DriverError when torch, which allocates on GPUs, is not installed.
    """
    if memory == "cpu":
        return array
    try:
        import torch
    except ImportError:
        raise DriverError(f"arrays on {memory}: torch is not installed; pip install 'opdeck[torch]'") from None
    return _to_torch(array, torch, memory)


def to_library(array: npt.NDArray[Any], like: Any) -> Any:
    """The array itself where `like` is numpy's; where it is torch's, a tensor with the same values on its device."""
    if not arrays.is_torch(like):
        return array
    import torch

    return _to_torch(array, torch, like.device)


def _to_torch(array: npt.NDArray[Any], torch: Any, device: Any) -> Any:
    row = dtypes.by_numpy_name(array.dtype.name)
    assert row is not None, array.dtype
    tensor = torch.empty_strided(
        array.shape,
        [stride // array.itemsize for stride in array.strides],
        dtype=getattr(torch, row.torch_name),
        device=device,
    )
    bits = np.ascontiguousarray(array).view(f"i{array.itemsize}")
    tensor.copy_(torch.from_numpy(bits).view(tensor.dtype))
    return tensor


def reinterpreted(array: Any, dtype: str, argument: str) -> Any:
    """The same memory of numpy or torch as elements of a type of at most a byte; as bytes where that is smaller.

    Raises: ArgumentTypeError unless the array is of bytes or of that type.
    """
    row = dtypes.dtype(dtype)
    name = str(array.dtype).removeprefix("torch.") if hasattr(array, "dtype") else type(array).__qualname__
    if name not in ("uint8", "int8", *_names_of_bytes(row)):
        want = "|".join(("uint8", *_names_of_bytes(row)))
        raise ArgumentTypeError(argument, f"dtype {name}", want, "packed" if row.bits < 8 else "")
    if arrays.is_torch(array):
        import torch

        return array.view(getattr(torch, "uint8" if row.bits < 8 else row.torch_name))
    return array.view(np.uint8 if row.bits < 8 else row.numpy)


def _names_of_bytes(row: dtypes.DType) -> tuple[str, ...]:
    """What numpy and torch call memory of such elements."""
    if row.bits == 8:
        return (row.numpy_name,)
    return ("float4_e2m1fn_x2",) if row.name == "fp4_e2m1" else ()


def seconds_of(memory: str, work: Callable[[], object]) -> float:
    """How long work takes that was launched on arrays there: of the GPU's clock; of the host's for "cpu"."""
    if memory == "cpu":
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin
    import torch

    with torch.cuda.device(memory):
        begin_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin_event.record()
        work()
        end_event.record()
        end_event.synchronize()
        return float(begin_event.elapsed_time(end_event)) / 1e3


def wait_for(memory: str) -> None:
    """Returns when the launches on arrays there have finished; at once for "cpu", where they are synchronous."""
    if memory != "cpu":
        import torch

        torch.cuda.synchronize(memory)


def to_numpy(array: Any) -> npt.NDArray[Any]:
    """A numpy array as it is; a torch tensor copied to the host, after its GPU has finished."""
    if isinstance(array, np.ndarray):
        return array
    if not arrays.is_torch(array):
        raise ArgumentTypeError("array", type(array).__qualname__, "a numpy array or a torch tensor")
    row = dtypes.by_torch_name(str(array.dtype).removeprefix("torch."))
    assert row is not None, array.dtype
    import torch

    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32}[row.size_bytes]
    host: npt.NDArray[Any] = array.detach().contiguous().view(bits).cpu().numpy()
    return host.view(row.numpy)
