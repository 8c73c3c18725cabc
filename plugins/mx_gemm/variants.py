# SPDX-License-Identifier: Apache-2.0
"""variants.py: the kernels of mx_gemm, as rows: formats of A and B x type of D x arch, and the references.

Who calls it: plugin.py. A new kernel, format pair or arch is one entry of a table here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from opdeck.core import dtypes
from opdeck.core.arch import CPU, arch
from opdeck.core.fusion import Activation, Fusion, GatedSilu, Gelu, Relu, Silu
from opdeck.core.mx.formats import FORMATS, PITCH_ELEMS, SCALE_TILE_BYTES, SCALE_TILE_COLS, MxFormat, mx_format
from opdeck.core.schema import Rule
from opdeck.core.variant import Variant, fusion_slug

FAMILY = "mx_gemm"


@dataclass(frozen=True)
class Kernel:
    """A kernel source: for which archs, formats of A and B and types of D, in which config.

    accept: what it asks of a problem besides, such as Rule("has.c", "eq", (0,)). slug: tells rows of one arch, formats
    and type apart. pitch_elems: of operands whose elements take less than a byte.
    """

    factory: str
    archs: tuple[str, ...]
    formats: tuple[tuple[str, str], ...]
    d_formats: tuple[str, ...]
    config: Mapping[str, int | str]
    accept: tuple[Rule, ...] = ()
    slug: str = ""
    pitch_elems: int = field(default=PITCH_ELEMS)


FUSIONS: tuple[Fusion | None, ...] = (None, Relu(), Gelu(), Silu(), GatedSilu())

# In priority order.
KERNELS: tuple[Kernel, ...] = ()

REFERENCE_FACTORY = "opdeck.plugins.mx_gemm.reference:make"


def rows(fusions: Sequence[Fusion | None]) -> tuple[Variant, ...]:
    """The variants of the given activations, in priority order; the references, of any format, come last."""
    compiled = [
        _compiled_row(kernel, arch_name, formats, d_format, fusion)
        for kernel in KERNELS
        for arch_name in kernel.archs
        for formats in kernel.formats
        for d_format in kernel.d_formats
        for fusion in fusions
        if fusion is None  # no kernel applies an activation yet
    ]
    scales = tuple(dict.fromkeys(row.scale_name for row in FORMATS))
    return (*compiled, *(_reference_row(scale, fusion) for scale in scales for fusion in fusions))


def _compiled_row(
    kernel: Kernel, arch_name: str, formats: tuple[str, str], d_format: str, fusion: Fusion | None
) -> Variant:
    a, b = (mx_format(name) for name in formats)
    words = (FAMILY, arch(arch_name).slug, a.name, b.name, d_format, *filter(None, (kernel.slug,)), fusion_slug(fusion))
    pitches = (
        Rule(f"pitch.{name}", "multiple_of", (kernel.pitch_elems,))
        for name, row in (("a", a), ("b", b))
        if row.bits < 8
    )
    return Variant(
        id="_".join(words),
        family=FAMILY,
        arch=arch_name,
        dtype=a.name if a == b else f"{a.name}*{b.name}",
        fusion=fusion,
        accept=(
            _dtype_rule("A", (a.element_name,)),
            _dtype_rule("B", (b.element_name,)),
            _dtype_rule("D", (d_format,)),
            *_scale_rules(a),
            *pitches,
            *_output_rules(fusion),
            *kernel.accept,
        ),
        config=kernel.config,
        factory=kernel.factory,
        static_dims={"tile": SCALE_TILE_BYTES},
        symbol_dtypes={"A": a.element_name, "B": b.element_name, "S": a.scale_name, "D": d_format},
    )


def _reference_row(scale_name: str, fusion: Fusion | None) -> Variant:
    formats = [row for row in FORMATS if row.scale_name == scale_name]
    elements = tuple(row.element_name for row in formats)
    return Variant(
        id=f"{FAMILY}_{CPU.slug}_{scale_name}_{fusion_slug(fusion)}",
        family=FAMILY,
        arch=CPU.name,
        dtype=", ".join(row.name for row in formats),
        fusion=fusion,
        accept=(
            _dtype_rule("A", elements),
            _dtype_rule("B", elements),
            *_scale_rules(formats[0]),
            *_output_rules(fusion),
        ),
        config={"block": formats[0].block},
        factory=REFERENCE_FACTORY,
        static_dims={},
    )


def _scale_rules(row: MxFormat) -> tuple[Rule, ...]:
    """The type of the scales, and how many tiles of them K takes."""
    return (
        _dtype_rule("S", (row.scale_name,)),
        Rule("k_tiles", "eq", rhs_field="k", rhs_divisor=row.block * SCALE_TILE_COLS),
    )


def _output_rules(fusion: Fusion | None) -> tuple[Rule, ...]:
    """How many columns D has of those of A B^T."""
    columns = fusion.num_columns if isinstance(fusion, Activation) else 1
    if columns == 1:
        return (Rule("n_out", "eq", rhs_field="n"),)
    return Rule("n", "multiple_of", (columns,)), Rule("n_out", "eq", rhs_field="n", rhs_divisor=columns)


def _dtype_rule(symbol: str, names: Iterable[str]) -> Rule:
    return Rule(f"dtype.{symbol}", "in", tuple(dtypes.dtype(name).number for name in names))
