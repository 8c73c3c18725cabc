# SPDX-License-Identifier: Apache-2.0
"""The kernels: one thread writes to d (1, 1, n) what it got of its arguments, or an activation's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cutlass import Float32, Int32, Uint8, cute, range_constexpr

from opdeck.core.variant import Variant


def make(variant: Variant) -> Callable[..., None]:
    """entry(a, b, a_scale, b_scale, c, bias, d, d_block_scale, amax, alpha, beta, max_ctas, d_scale, stream)

    Writes k, the pitch of a in elements, the row tiles and k tiles of a's scales, the pitch of b, alpha, beta, whether
    c is there, and byte number config["byte_idx"] of a.
    """
    byte_idx = int(variant.config["byte_idx"])

    @cute.kernel
    def kernel(a: cute.Tensor, b: cute.Tensor, a_scale: cute.Tensor, c: cute.Tensor, d: cute.Tensor, scalars: Any):
        thread, _, _ = cute.arch.thread_idx()
        if thread == 0:
            a_bytes = cute.make_tensor(cute.recast_ptr(a.iterator, dtype=Uint8), cute.make_layout(1 << 20))
            has_c = Int32(c.iterator.toint() != 0)
            alpha, beta = scalars
            a_pitch = a.stride[2 if "a" in variant.transposed else 1]
            numbers = (a.shape[2], a_pitch, a_scale.shape[1], a_scale.shape[2], b.stride[1], alpha, beta, has_c)
            for i, number in enumerate(numbers):
                d[0, 0, i] = Float32(number)
            d[0, 0, len(numbers)] = Float32(Int32(a_bytes[byte_idx]))

    kernel.set_name_prefix(f"opdeck_{variant.id}", remove_cutlass_symbol=True, keep_mangled_name=False)

    def entry(a, b, a_scale, b_scale, c, bias, d, d_block_scale, amax, alpha, beta, max_ctas, d_scale, stream):  # type: ignore[no-untyped-def]
        kernel(a, b, a_scale, c, d, (alpha, beta)).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)

    return entry


def make_activation(variant: Variant) -> Callable[..., None]:
    """Entry of mx_gemm's arguments and the stream: d (1, 1, n_out) = activation(bias (n,)), fp32."""
    activation = variant.fusion
    num_sums = int(variant.config["num_sums"])

    @cute.kernel
    def kernel(bias: cute.Tensor, d: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        if thread == 0:
            sums = cute.make_rmem_tensor((num_sums,), Float32)
            results = cute.make_rmem_tensor((num_sums // activation.num_columns,), Float32)
            for i in range_constexpr(num_sums):
                sums[i] = bias[i]
            activation.apply(sums, results)
            for i in range_constexpr(cute.size(results)):
                d[0, 0, i] = results[i]

    kernel.set_name_prefix(f"opdeck_{variant.id}", remove_cutlass_symbol=True, keep_mangled_name=False)

    def entry(a, b, a_scale, b_scale, c, bias, d, d_block_scale, amax, alpha, beta, max_ctas, d_scale, stream):  # type: ignore[no-untyped-def]
        kernel(bias, d).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)

    return entry
