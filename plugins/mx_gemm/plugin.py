# SPDX-License-Identifier: Apache-2.0
"""plugin.py: the hooks of mx_gemm and of mx_quantize, which makes its operands. Imports no kernel and no DSL."""

from __future__ import annotations

from opdeck.core.family import Family
from opdeck.core.fusion import Activation
from opdeck.core.hookspecs import hookimpl
from opdeck.plugins.mx_gemm import spec, variants
from opdeck.plugins.mx_quantize import spec as quantize_spec
from opdeck.plugins.mx_quantize import variants as quantize_variants

MX_GEMM = Family(
    schema=spec.SCHEMA,
    call=spec.call,
    rows=variants.rows,
    fusions=variants.FUSIONS,
    fusion_type=Activation,
    fusion_check="opdeck.plugins.mx_gemm.check:check_fusion",
    commands={
        "run": "opdeck.plugins.mx_gemm.commands:run",
        "explain": "opdeck.plugins.mx_gemm.commands:explain",
    },
)
MX_QUANTIZE = Family(
    schema=quantize_spec.SCHEMA,
    call=quantize_spec.call,
    rows=quantize_variants.rows,
    commands={
        "run": "opdeck.plugins.mx_quantize.commands:run",
        "explain": "opdeck.plugins.mx_quantize.commands:explain",
    },
)


@hookimpl
def opdeck_operators() -> list[Family]:
    return [MX_GEMM, MX_QUANTIZE]
