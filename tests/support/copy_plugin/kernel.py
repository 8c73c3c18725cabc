# SPDX-License-Identifier: Apache-2.0
"""The kernel of the family "copy": one block a row, one thread a column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
from cutlass import Float32, const_expr, cute

from opdeck.core.variant import Variant


def make(variant: Variant) -> Callable[..., None]:
    """entry(x, y, row_sums, factor, *leaves, stream)"""
    num_threads = int(variant.config["num_threads"])
    fusion = variant.fusion

    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor, row_sums: cute.Tensor, factor: Float32, leaves: Any):
        col, _, _ = cute.arch.thread_idx()
        row, _, _ = cute.arch.block_idx()
        value = x[row, col].to(Float32) * factor
        if const_expr(fusion is not None):
            bias, num_times, gain = leaves
            value = value * gain + bias[col] * num_times.to(Float32)
        y[row, col] = value.to(y.element_type)
        if row_sums.iterator.toint() != 0 and col == 0:
            total = Float32(0.0)
            for other in cutlass.range(num_threads):
                total += x[row, other].to(Float32)
            row_sums[row] = total

    kernel.set_name_prefix(f"opdeck_{variant.id}", remove_cutlass_symbol=True, keep_mangled_name=False)

    def entry(x: cute.Tensor, y: cute.Tensor, row_sums: cute.Tensor, factor: Float32, *rest: Any) -> None:
        *leaves, stream = rest
        kernel(x, y, row_sums, factor, tuple(leaves)).launch(
            grid=(x.shape[0], 1, 1), block=(num_threads, 1, 1), stream=stream
        )

    return entry
