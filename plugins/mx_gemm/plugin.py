# SPDX-License-Identifier: Apache-2.0
"""plugin.py: the hooks of mx_gemm. Imports no kernel and no DSL."""

from __future__ import annotations

from opdeck.core.family import Family
from opdeck.core.fusion import Activation
from opdeck.core.hookspecs import hookimpl
from opdeck.plugins.mx_gemm import spec, variants


@hookimpl
def opdeck_operators() -> list[Family]:
    return [
        Family(
            schema=spec.SCHEMA,
            call=spec.call,
            rows=variants.rows,
            fusions=variants.FUSIONS,
            fusion_type=Activation,
            commands={
                "run": "opdeck.plugins.mx_gemm.commands:run",
                "explain": "opdeck.plugins.mx_gemm.commands:explain",
            },
        )
    ]
