# SPDX-License-Identifier: Apache-2.0
"""Kernels of the family "copy" that a build must refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cutlass import Float32, cute, range_constexpr

from opdeck.core.variant import Variant

NUM_THREADS = 1024  # which leaves 64 registers a thread
NUM_LOCALS = 128


def make_spilling(variant: Variant) -> Callable[..., None]:
    """Keeps more values across a barrier than there are registers."""

    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor, factor: Float32):
        thread, _, _ = cute.arch.thread_idx()
        row, _, _ = cute.arch.block_idx()
        values = cute.make_rmem_tensor((NUM_LOCALS,), Float32)
        for i in range_constexpr(NUM_LOCALS):
            values[i] = x[row, (thread + i) % NUM_LOCALS].to(Float32) * factor
        cute.arch.sync_threads()
        for i in range_constexpr(NUM_LOCALS):
            y[row, i] = values[i].to(y.element_type)

    kernel.set_name_prefix(f"opdeck_{variant.id}", remove_cutlass_symbol=True, keep_mangled_name=False)
    return _entry(kernel, NUM_THREADS)


def make_misnamed(variant: Variant) -> Callable[..., None]:
    """Leaves the kernel's name to the DSL."""

    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor, factor: Float32):
        col, _, _ = cute.arch.thread_idx()
        row, _, _ = cute.arch.block_idx()
        y[row, col] = (x[row, col].to(Float32) * factor).to(y.element_type)

    return _entry(kernel, int(variant.config["num_threads"]))


def make_failing(variant: Variant) -> Callable[..., None]:
    """Raises while it is compiled."""

    def entry(*arguments: Any) -> None:
        raise ValueError("no such tile")

    return entry


def make_dying(variant: Variant) -> Callable[..., None]:
    """Ends its process."""
    import os

    os._exit(3)


def _entry(kernel: Any, num_threads: int) -> Callable[..., None]:
    def entry(x: cute.Tensor, y: cute.Tensor, row_sums: cute.Tensor, factor: Float32, stream: Any) -> None:
        kernel(x, y, factor).launch(grid=(x.shape[0], 1, 1), block=(num_threads, 1, 1), stream=stream)

    return entry
