# SPDX-License-Identifier: Apache-2.0
"""variants.py: the kernels of mx_quantize, as rows: format x type of x x arch, and the references.

Who calls it: the plugin.py of mx_gemm.
"""

from __future__ import annotations

from collections.abc import Sequence

from opdeck.core import dtypes
from opdeck.core.arch import CPU, arch
from opdeck.core.fusion import Fusion
from opdeck.core.mx import FORMATS, MxFormat
from opdeck.core.mx.formats import SCALE_TILE_BYTES
from opdeck.core.mx.quantize import SOURCE_DTYPES
from opdeck.core.schema import Rule
from opdeck.core.variant import Variant

FAMILY = "mx_quantize"

_BLACKWELL, _EVERY_GPU = ("sm_100a", "sm_103a"), ("sm_100a", "sm_103a", "sm_90a")
# Hopper converts to elements of 8 bits alone.
_ARCHS = {row.name: _EVERY_GPU if row.bits == 8 else _BLACKWELL for row in FORMATS}
_FACTORY, _REFERENCE = "opdeck.plugins.mx_quantize.kernel:make", "opdeck.plugins.mx_quantize.reference:make"
# What a pack holds unasked.
_DEFAULT = (("mxfp8_e4m3", "bf16"), ("nvfp4", "bf16"))


def rows(fusions: Sequence[Fusion | None]) -> tuple[Variant, ...]:
    """The variants; there are none with fusions."""
    compiled = [
        _row(arch_name, row, x_dtype, _FACTORY)
        for row in FORMATS
        for arch_name in _ARCHS[row.name]
        for x_dtype in SOURCE_DTYPES
    ]
    return (*compiled, *(_row(CPU.name, row, x_dtype, _REFERENCE) for row in FORMATS for x_dtype in SOURCE_DTYPES))


def _row(arch_name: str, row: MxFormat, x_dtype: str, factory: str) -> Variant:
    types = {"X": x_dtype, "D": row.element_name, "S": row.scale_name}
    return Variant(
        id=f"{FAMILY}_{arch(arch_name).slug}_{x_dtype}_{row.name}",
        family=FAMILY,
        arch=arch_name,
        dtype=x_dtype,
        fusion=None,
        accept=tuple(Rule(f"dtype.{symbol}", "eq", (dtypes.dtype(name).number,)) for symbol, name in types.items()),
        config={"format": row.name},
        factory=factory,
        static_dims={} if arch_name == CPU.name else {"tile": SCALE_TILE_BYTES},
        symbol_dtypes=types,
        in_default_pack=(row.name, x_dtype) in _DEFAULT and arch_name in _BLACKWELL,
    )
