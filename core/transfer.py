# SPDX-License-Identifier: Apache-2.0
"""transfer.py: numpy arrays to where a device wants them, and back.

Who calls it: the CLI and the tests, whose inputs and oracles are numpy's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from opdeck.core import dtypes
from opdeck.core.errors import DriverError


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
    row = dtypes.by_numpy_name(array.dtype.name)
    assert row is not None, array.dtype
    tensor = torch.empty_strided(
        array.shape,
        [stride // array.itemsize for stride in array.strides],
        dtype=getattr(torch, row.torch_name),
        device=memory,
    )
    bits = np.ascontiguousarray(array).view(f"i{array.itemsize}")
    tensor.copy_(torch.from_numpy(bits).view(tensor.dtype))
    return tensor


def wait_for(memory: str) -> None:
    """Returns when the launches on arrays there have finished; at once for "cpu", where they are synchronous."""
    if memory != "cpu":
        import torch

        torch.cuda.synchronize(memory)


def to_numpy(array: Any) -> npt.NDArray[Any]:
    """A numpy array as it is; a torch tensor copied to the host, after its GPU has finished."""
    if isinstance(array, np.ndarray):
        return array
    row = dtypes.by_torch_name(str(array.dtype).removeprefix("torch."))
    assert row is not None, array.dtype
    import torch

    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32}[row.size_bytes]
    host: npt.NDArray[Any] = array.detach().contiguous().view(bits).cpu().numpy()
    return host.view(row.numpy)
