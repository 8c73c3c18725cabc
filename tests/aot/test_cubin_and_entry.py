# SPDX-License-Identifier: Apache-2.0
"""Checks that need no compiler: the layout of an entry's parameters, and how headers and cubins are judged."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from copy_plugin.family import SCHEMA, Affine, rows

from opdeck.aot.compile import _DSL_TYPES, check_header, check_names, expected_signature, spill_text
from opdeck.aot.cubin import KernelResources, kernel_resources
from opdeck.aot.entry import entry_params
from opdeck.core import dtypes
from opdeck.core.errors import PackError

PLAIN = rows([None])[0]
AFFINE = rows([Affine(np.zeros(128, np.float32))])[0]

HEADER = """
typedef struct {
    void *data;
    int64_t dynamic_shapes[1];
    int64_t dynamic_strides[1];
} e_Tensor_x_t;
typedef struct {
    void *data;
    int64_t dynamic_shapes[1];
    int64_t dynamic_strides[1];
} e_Tensor_y_t;
typedef struct {
    void *data;
    int64_t dynamic_shapes[1];
    int64_t dynamic_strides[1];
} e_Tensor_row_sums_t;
static inline int32_t cute_dsl_e_wrapper(e_Kernel_Module_t *module, e_Tensor_x_t *x, e_Tensor_y_t *y, \
e_Tensor_row_sums_t *row_sums, float factor, cudaStream_t stream) {
"""


def test_params_are_args_then_leaves_in_depth_first_order():
    params = entry_params(SCHEMA, AFFINE)
    assert [(param.name, param.source, param.kind) for param in params] == [
        ("x", 0, "tensor"),
        ("y", 1, "tensor"),
        ("row_sums", 2, "tensor"),
        ("factor", 3, "f32"),
        ("leaf0", -1, "tensor"),
        ("leaf1", -2, "i32"),
        ("leaf2", -3, "f32"),
    ]


def test_only_dynamic_extents_and_strides_are_passed():
    x, _, row_sums, _ = entry_params(SCHEMA, PLAIN)
    assert (x.shape_dims, x.stride_dims) == ((0,), (0,))
    assert (row_sums.shape_dims, row_sums.stride_dims) == ((0,), (0,))
    not_static = dataclasses.replace(PLAIN, static_dims={})
    assert entry_params(SCHEMA, not_static)[0].shape_dims == (0, 1)


def test_dtype_of_a_row_must_be_one_of_the_argument():
    with pytest.raises(PackError, match=r"got 'bf16', want fp32\|fp16 for argument x"):
        entry_params(SCHEMA, dataclasses.replace(PLAIN, dtype="bf16"))


def test_header_as_expected_passes():
    check_header(HEADER, "e", entry_params(SCHEMA, PLAIN))


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ("int64_t dynamic_strides[1];\n} e_Tensor_x_t", "int32_t dynamic_strides[1];\n} e_Tensor_x_t"),
        ("int64_t dynamic_shapes[1];\n    int64_t dynamic_strides[1];\n} e_Tensor_y_t", "} e_Tensor_y_t"),
        ("e_Tensor_row_sums_t *row_sums, float factor", "float factor, e_Tensor_row_sums_t *row_sums"),
        ("float factor", "double factor"),
        ("cute_dsl_e_wrapper", "cute_dsl_other_wrapper"),
    ],
)
def test_header_that_differs_is_refused(was: str, becomes: str):
    assert was in HEADER
    with pytest.raises(PackError, match="want"):
        check_header(HEADER.replace(was, becomes), "e", entry_params(SCHEMA, PLAIN))


def test_expected_signature_has_leaves():
    structs, arguments = expected_signature("e", entry_params(SCHEMA, AFFINE))
    assert structs["e_Tensor_leaf0_t"] == "void *data; int64_t dynamic_shapes[1]; int64_t dynamic_strides[1];"
    assert arguments.endswith("e_Tensor_leaf0_t *leaf0, int32_t leaf1, float leaf2, cudaStream_t stream")


def test_kernels_that_have_another_name_are_refused():
    kernel = KernelResources("opdeck_v_0", num_registers=168, num_threads=384, frame_bytes=0)
    check_names([kernel], "opdeck_v")
    with pytest.raises(PackError, match="kernel name: got opdeck_w_0, want opdeck_v_N"):
        check_names([dataclasses.replace(kernel, name="opdeck_w_0")], "opdeck_v")


def test_what_is_said_of_a_kernel_that_spills():
    kernel = KernelResources("opdeck_v_0", num_registers=168, num_threads=384, frame_bytes=0)
    assert spill_text([kernel]) is None
    spilling = dataclasses.replace(kernel, name="opdeck_v_1", frame_bytes=40)
    assert spill_text([kernel, spilling]) == (
        "opdeck_v_1 spills: got a stack frame of 40 bytes at 168 registers, want 0"
    )


@pytest.mark.parametrize("content", [b"", b"\x7fELF\x01\x01", b"\x7fELF\x02\x01" + bytes(80)])
def test_what_is_no_cubin_is_refused(content: bytes):
    with pytest.raises(PackError, match="cubin"):
        kernel_resources(content)


def test_every_dtype_has_a_dsl_type():
    assert set(_DSL_TYPES) == {row.name for row in dtypes.DTYPES}
