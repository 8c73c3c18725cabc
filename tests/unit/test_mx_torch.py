# SPDX-License-Identifier: Apache-2.0
"""Block-scaled tensors of torch: the numbers of numpy's, in torch's types, there and back."""

from __future__ import annotations

import numpy as np
import pytest

from opdeck.core import mx, registry
from opdeck.core.mx import FORMATS, MxFormat

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("row", FORMATS, ids=lambda row: row.name)
def test_torch_in_torch_out(row: MxFormat) -> None:
    x = torch.randn(40, 96, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    tensor = mx.quantize(x, row)
    assert tensor.scales.dtype == getattr(torch, row.scale.torch_name)
    assert tensor.data.dtype == (torch.uint8 if row.bits < 8 else getattr(torch, row.element.torch_name))
    of_numpy = mx.quantize(x.float().numpy(), row)
    assert np.array_equal(mx.exact_values(tensor), mx.exact_values(of_numpy))
    assert np.array_equal(mx.dequantize(tensor).numpy(), mx.dequantize(of_numpy))
    d = registry.get("mx_gemm")(tensor, tensor, d_format="fp32", device="cpu")
    assert isinstance(d, torch.Tensor)
    assert np.allclose(d.numpy(), mx.exact_values(tensor) @ mx.exact_values(tensor).T, rtol=1e-6)


def test_packed_fp4_of_torch_is_wrapped() -> None:
    tensor = mx.quantize(torch.ones(3, 64), "nvfp4")
    data, scales = tensor.data.view(torch.float4_e2m1fn_x2), tensor.linear_scales
    again = mx.MxTensor.from_parts(data, scales, "nvfp4", 64, "linear", tensor.global_scale)
    assert again.data.data_ptr() == tensor.data.data_ptr()
    assert np.array_equal(mx.exact_values(again), mx.exact_values(tensor))
