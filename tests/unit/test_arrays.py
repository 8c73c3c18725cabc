# SPDX-License-Identifier: Apache-2.0
"""Views of arrays: addresses, strides and types are those of the library that owns them, and nothing is copied."""

from __future__ import annotations

import gc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from opdeck.core import arrays
from opdeck.core.errors import ArgumentError, ArgumentTypeError


class DlpackArray:
    """An array of a library that is neither numpy nor torch."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class OldDlpackArray(DlpackArray):
    """... from before DLPack 1.0."""

    def __dlpack__(self, stream: Any = None) -> Any:
        return self.array.__dlpack__()


class NamespaceArray(DlpackArray):
    """... that offers the array API."""

    device = "cpu"

    def __array_namespace__(self) -> Any:
        class Namespace:
            __name__ = "small_library"
            float32 = "float32"

            @staticmethod
            def empty(shape: tuple[int, ...], dtype: str, device: str) -> NamespaceArray:
                return NamespaceArray(np.empty(shape, dtype))

        return Namespace()


def base() -> np.ndarray:
    return np.arange(2 * 6 * 4, dtype=np.float32).reshape(2, 6, 4)


STRIDED = [
    pytest.param(lambda array: array, id="compact"),
    pytest.param(lambda array: array[:, 1::2, 1:], id="sliced"),
    pytest.param(lambda array: array.transpose(2, 0, 1), id="transposed"),
    pytest.param(lambda array: array[::-1, ::-2], id="backwards"),
    pytest.param(lambda array: np.broadcast_to(array[:, :1], (2, 5, 4)), id="broadcast"),
    pytest.param(lambda array: array[:, :0], id="empty"),
]


@pytest.mark.parametrize("slicing", STRIDED)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_numpy_view_and_back(slicing: Any, dtype: Any) -> None:
    array = slicing(base().astype(dtype))
    tensor = arrays.view(array, "x")
    assert tensor.shape == array.shape
    assert tuple(stride * array.itemsize for stride in tensor.strides) == array.strides
    assert (tensor.device, tensor.is_readonly) == ("cpu", not array.flags.writeable)
    same = arrays.as_numpy(tensor)
    assert same.dtype == array.dtype
    assert np.array_equal(same.astype(np.float32), array.astype(np.float32))
    assert array.size == 0 or np.shares_memory(same.view(f"u{array.itemsize}"), array.view(f"u{array.itemsize}"))


@pytest.mark.parametrize("slicing", STRIDED[:4])
@pytest.mark.parametrize("library", [DlpackArray, OldDlpackArray])
def test_dlpack_view_is_that_of_numpy(slicing: Any, library: type[DlpackArray]) -> None:
    array = slicing(base())
    ours, numpys = arrays.view(library(array), "x"), arrays.view(array, "x")
    assert (ours.data, ours.shape, ours.strides, ours.dtype) == (
        numpys.data,
        numpys.shape,
        numpys.strides,
        numpys.dtype,
    )


def test_dlpack_read_only_is_seen() -> None:
    array = base()
    array.flags.writeable = False
    assert arrays.view(DlpackArray(array), "x").is_readonly


def test_dlpack_view_keeps_the_memory() -> None:
    tensor = arrays.view(DlpackArray(base()), "x")
    gc.collect()
    assert np.array_equal(arrays.as_numpy(tensor), base())


def test_permuted() -> None:
    tensor = arrays.view(base(), "x")
    assert tensor.permuted((0, 1, 2)) is tensor
    assert np.array_equal(arrays.as_numpy(tensor.permuted((2, 0, 1))), base().transpose(2, 0, 1))
    assert np.array_equal(arrays.as_numpy(tensor.permuted((None, 1, 0, 2))), base().swapaxes(0, 1)[None])
    with pytest.raises(ArgumentError, match=r"x: got 3 dims \(2, 6, 4\), want 2 dims"):
        tensor.permuted((None, 0, 1))
    with pytest.raises(ArgumentError, match=r"x: got 3 dims \(2, 6, 4\), want 4 dims"):
        tensor.permuted((0, 2, 1, 3))


def test_what_is_no_array_is_refused() -> None:
    with pytest.raises(ArgumentTypeError, match=r"x: got list, want a numpy array"):
        arrays.view([1.0], "x")
    assert [arrays.view(np.zeros(3, name), "x").dtype for name in ("complex64", ">f4")] == ["complex64", ">f4"]
    assert arrays.view(DlpackArray(np.zeros(3)), "x").dtype == "(code 2, 64 bits, 1 lanes)"
    fields = np.zeros(4, np.dtype([("a", np.int8), ("b", np.float32)]))
    with pytest.raises(ArgumentError, match=r"x: got strides of \(5,\) bytes, want multiples of the element's 4"):
        arrays.view(fields["b"], "x")


def test_allocation_is_by_the_library_of_the_array() -> None:
    own = arrays.allocate(base(), (2, 3), "bf16")
    assert (own.shape, own.dtype) == ((2, 3), ml_dtypes.bfloat16)
    theirs = arrays.allocate(NamespaceArray(base()), (2, 3), "fp32")
    assert isinstance(theirs, NamespaceArray)
    with pytest.raises(ArgumentTypeError, match="out: got small_library without bfloat16"):
        arrays.allocate(NamespaceArray(base()), (2, 3), "bf16")
    with pytest.raises(ArgumentTypeError, match="out: got DlpackArray without __array_namespace__"):
        arrays.allocate(DlpackArray(base()), (2, 3), "fp32")


def test_signature_tells_apart_what_a_plan_depends_on() -> None:
    array = np.zeros((4, 32), np.float16)
    signature = arrays.view(array, "x").signature
    assert signature == arrays.view(array[:4], "y").signature
    for other in (array[:3], array[:, ::2], array.astype(np.float32), array[:, 1:]):
        assert signature != arrays.view(other, "x").signature
