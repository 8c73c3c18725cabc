# SPDX-License-Identifier: Apache-2.0
"""opdeck.core.mx: block-scaled numbers: MXFP8, MXFP6, MXFP4 and NVFP4."""

from opdeck.core.mx.formats import FORMATS, MxFormat, mx_format
from opdeck.core.mx.quantize import dequantize, exact_values, global_scale_of, quantize
from opdeck.core.mx.report import Accuracy, accuracy
from opdeck.core.mx.scale_layout import tile_scales, untile_scales
from opdeck.core.mx.tensor import MxTensor

__all__ = [
    "FORMATS",
    "Accuracy",
    "MxFormat",
    "MxTensor",
    "accuracy",
    "dequantize",
    "exact_values",
    "global_scale_of",
    "mx_format",
    "quantize",
    "tile_scales",
    "untile_scales",
]
