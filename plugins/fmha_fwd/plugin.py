# SPDX-License-Identifier: Apache-2.0
"""plugin.py: the hooks of fmha_fwd. Imports no kernel and no DSL."""

from __future__ import annotations

from opdeck.core.family import Family
from opdeck.core.fusion import AttentionFusion
from opdeck.core.hookspecs import hookimpl
from opdeck.plugins.fmha_fwd import spec, values, variants


@hookimpl
def opdeck_operators() -> list[Family]:
    return [
        Family(
            schema=spec.SCHEMA,
            call=spec.call,
            rows=variants.rows,
            fusions=variants.FUSIONS,
            fusion_type=AttentionFusion,
            check_values=values.check_values,
            fusion_check="opdeck.plugins.fmha_fwd.check:check_fusion",
            commands={
                "run": "opdeck.plugins.fmha_fwd.commands:run",
                "explain": "opdeck.plugins.fmha_fwd.commands:explain",
            },
        )
    ]
