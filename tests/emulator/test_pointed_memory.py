# SPDX-License-Identifier: Apache-2.0
"""Memory that a call reaches through addresses in an array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opdeck.core.emulator import arguments
from opdeck.core.emulator.library import HostTensor


def host(name: str, array: np.ndarray[Any, Any]) -> HostTensor:
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return HostTensor(name, array.ctypes.data, array.shape, strides, array.itemsize * 8)


def test_storages_that_addresses_in_an_array_lie_in(monkeypatch: pytest.MonkeyPatch):
    near, far, other, known = (np.zeros(64, np.uint8) for _ in range(4))
    storages = [host("near", near), host("far", far), host("other", other), host("known", known)]
    monkeypatch.setattr(arguments, "_torch_storages", lambda: iter(storages))
    pointers = np.zeros((3, 4), np.int64)[:, ::2]
    pointers[0, 1], pointers[2, 0], pointers[1, 1] = near.ctypes.data + 63, far.ctypes.data, known.ctypes.data
    memory = [host("pointers", pointers), host("argument", known)]
    assert [tensor.name for tensor in arguments._pointed_to(memory)] == ["near", "far"]
    assert arguments._pointed_to([host("data", np.full(5000, near.ctypes.data))]) == []
    assert arguments._pointed_to([host("words", near.view(np.uint32))]) == []
