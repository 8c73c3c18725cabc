# SPDX-License-Identifier: Apache-2.0
"""variants.py: the kernels of mx_gemm, as rows: formats of A and B x type of D x arch, and the references.

Who calls it: plugin.py. A new kernel, format pair or arch is one entry of a table here.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from opdeck.core import dtypes
from opdeck.core.arch import CPU, arch
from opdeck.core.fusion import Activation, Fusion, GatedSilu, Gelu, Relu, Silu
from opdeck.core.mx.formats import FORMATS, PITCH_ELEMS, SCALE_TILE_BYTES, SCALE_TILE_COLS, MxFormat, mx_format
from opdeck.core.mx.tensor import K_MULTIPLE
from opdeck.core.schema import Rule
from opdeck.core.variant import Variant, fusion_slug
from opdeck.plugins.mx_gemm.sm100.config import CHUNK_COLS, Config, most_ab_stages
from opdeck.plugins.mx_gemm.spec import BLOCK_SCALED_OUTPUTS, OUTPUT_DTYPES

FAMILY = "mx_gemm"
D_STAGES = 2


@dataclass(frozen=True)
class Tile:
    """Tiles of one MMA, in which clusters, in which order, and for which problems.

    Nothing here is tuned on hardware. The smaller the traffic to shared memory an MMA the better, as long as there are
    tiles for most of some 150 SMs and few of their rows are past M. band_tiles: so that the tiles in flight are about
    as many rows as columns of D, which share most of A and B in the L2 cache.
    """

    slug: str
    config: Mapping[str, int] = field(hash=False)
    accept: tuple[Rule, ...] = ()


@dataclass(frozen=True)
class Kernel:
    """A kernel source: for which archs, formats of A and B and types of D, on which tile.

    slug: tells rows of one arch, formats, type and tile apart. pitch_elems: of operands whose elements take less than a
    byte. transposed: the MN-major of "a" and "b". config: numbers of the Config besides the tile's.
    """

    factory: str
    archs: tuple[str, ...]
    formats: tuple[tuple[str, str], ...]
    d_formats: tuple[str, ...]
    tile: Tile
    slug: str = ""
    pitch_elems: int = field(default=PITCH_ELEMS)
    transposed: tuple[str, ...] = ()
    config: Mapping[str, int] = field(default_factory=dict, hash=False)


FUSIONS: tuple[Fusion | None, ...] = (None, Relu(), Gelu(), Silu(), GatedSilu())

_SM100 = "opdeck.plugins.mx_gemm.sm100.kernel:make"
_ARCHS = ("sm_100a", "sm_103a")
_EVERY_D = (*OUTPUT_DTYPES, *BLOCK_SCALED_OUTPUTS)
# C and the bias of block-scaled D, whose own type they cannot have.
TERM_DTYPE = "bf16"
# Elements of 8, 6 and 4 bits in any mix, by an MMA that takes each in a byte.
_MIXED = tuple(
    (a.name, b.name)
    for a in FORMATS
    for b in FORMATS
    if a.scale_name == b.scale_name == "e8m0" and not a.bits == b.bits == 4
)
# By an MMA that takes packed elements of 4 bits, twice as fast.
_PACKED = (("mxfp4", "mxfp4"), ("nvfp4", "nvfp4"))
_PACKED_PITCH_ELEMS = 32


# Bytes to shared memory an MMA cycle of an SM, from clusters of two pairs a quarter less of them from the L2 cache:
# 64 for 256 x 256 by two CTAs, 96 for 256 x 128 by two, 128 for 128 x 128 and 192 for 128 x 64 by one.
_QUADS = Tile(
    "256x256_2x2",
    {"mma_m": 256, "mma_n": 256, "cluster_m": 2, "cluster_n": 2, "band_tiles": 8},
    (Rule("m", "ge", (4096,)), Rule("n", "ge", (4096,))),
)
_PAIRS = Tile(
    "256x256",
    {"mma_m": 256, "mma_n": 256, "cluster_m": 2, "cluster_n": 1, "band_tiles": 8},
    (Rule("m", "ge", (2048,)), Rule("n", "ge", (2048,))),
)
_FLAT_PAIRS = Tile(
    "256x128",
    {"mma_m": 256, "mma_n": 128, "cluster_m": 2, "cluster_n": 1, "band_tiles": 6},
    (Rule("m", "ge", (1024,)),),
)
# Few rows: more CTAs to read B.
_NARROW = Tile(
    "128x64",
    {"mma_m": 128, "mma_n": 64, "cluster_m": 1, "cluster_n": 1, "band_tiles": 2},
    (Rule("m", "le", (256,)), Rule("n", "le", (8192,))),
)
_SQUARE = Tile("", {"mma_m": 128, "mma_n": 128, "cluster_m": 1, "cluster_n": 1, "band_tiles": 12})
_EVERY_TILE = (_QUADS, _PAIRS, _FLAT_PAIRS, _NARROW, _SQUARE)
# Those that every kernel has; a pack holds these alone unasked.
_BASIC_TILES = (_PAIRS, _SQUARE)

# What a pack holds unasked: equal formats but for the exotic, and activations of 8 bits with weights of 4.
_DEFAULT_FORMATS = (("mxfp8_e4m3", "mxfp8_e4m3"), ("mxfp8_e4m3", "mxfp4"), *_PACKED)
_DEFAULT_D_FORMATS = ("bf16",)
# Of 8 bits, or of 8 and 4.
_COMMON = tuple(pair for pair in _MIXED if all("mxfp6" not in name for name in pair))
_EXOTIC = tuple(pair for pair in _MIXED if pair not in _COMMON)
# Operands of 8 bits may be MN-major; those that are, and the slug.
_MN_MAJOR = ((("a",), "a_mn"), (("b",), "b_mn"), (("a", "b"), "ab_mn"))


def _mixed_kernels(formats: tuple[tuple[str, str], ...], tiles: tuple[Tile, ...]) -> Iterator[Kernel]:
    return (Kernel(_SM100, _ARCHS, formats, _EVERY_D, tile) for tile in tiles)


def _packed_kernels() -> Iterator[Kernel]:
    """sm_103a has MMAs that take 96 of K in the time of 64. Narrow tiles wait for memory, not for MMAs."""
    for arch_name, tile in itertools.product(_ARCHS, _EVERY_TILE):
        config = {"wide_k": int(arch_name == "sm_103a" and tile is not _NARROW)}
        yield Kernel(_SM100, (arch_name,), _PACKED, _EVERY_D, tile, pitch_elems=_PACKED_PITCH_ELEMS, config=config)


def _mn_major_kernels() -> Iterator[Kernel]:
    """Kernels of MN-major operands, for the formats in which those have 8 bits."""
    for transposed, slug in _MN_MAJOR:
        formats = tuple(pair for pair in _MIXED if all(_bits(pair, name) == 8 for name in transposed))
        for tile in _BASIC_TILES:
            yield Kernel(_SM100, _ARCHS, formats, OUTPUT_DTYPES, tile, slug=slug, transposed=transposed)


def _bits(formats: tuple[str, str], operand: str) -> int:
    return mx_format(formats["ab".index(operand)]).bits


# In priority order.
KERNELS: tuple[Kernel, ...] = (
    *_mixed_kernels(_COMMON, _EVERY_TILE),
    *_mixed_kernels(_EXOTIC, _BASIC_TILES),
    *_packed_kernels(),
    *_mn_major_kernels(),
)

REFERENCE_FACTORY = "opdeck.plugins.mx_gemm.reference:make"


def rows(fusions: Sequence[Fusion | None], kernels: Sequence[Kernel] = KERNELS) -> tuple[Variant, ...]:
    """The variants of the given activations, in priority order; the references, of any format, come last."""
    compiled = [
        replace(
            _compiled_row(kernel, arch_name, formats, d_format, fusion),
            config=_full_config(kernel, formats, d_format, _num_columns(fusion)),
        )
        for kernel in kernels
        for arch_name in kernel.archs
        for formats in kernel.formats
        for d_format in kernel.d_formats
        for fusion in fusions
        if kernel.tile.config["mma_n"] % (_num_columns(fusion) * _min_cols(d_format)) == 0
    ]
    scales = tuple(dict.fromkeys(row.scale_name for row in FORMATS))
    references = [
        _reference_row(scale, d_scale, fusion) for scale in scales for d_scale in (None, *scales) for fusion in fusions
    ]
    return (*compiled, *references)


def _min_cols(d_format: str) -> int:
    """Columns of D that a tile must have: what is in registers at once, and half a word of block scales."""
    return 2 * CHUNK_COLS if d_format in BLOCK_SCALED_OUTPUTS else CHUNK_COLS


def rows_on_tile(slug: str, fusions: Sequence[Fusion | None]) -> tuple[Variant, ...]:
    """Those of one tile alone, for problems of any size."""
    kernels = [replace(row, tile=replace(row.tile, accept=())) for row in KERNELS if row.tile.slug == slug]
    return rows(fusions, kernels)


def _compiled_row(
    kernel: Kernel, arch_name: str, formats: tuple[str, str], d_format: str, fusion: Fusion | None
) -> Variant:
    a, b = (mx_format(name) for name in formats)
    slugs = filter(None, (kernel.slug, kernel.tile.slug))
    words = (FAMILY, arch(arch_name).slug, a.name, b.name, d_format, *slugs, fusion_slug(fusion))
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
            _dtype_rule("S", (a.scale_name,)),
            *_d_rules(d_format),
            *pitches,
            *_major_rules(kernel.transposed),
            *_output_rules(_num_columns(fusion)),
            *kernel.tile.accept,
        ),
        config=_config(kernel, d_format, _num_columns(fusion)),
        factory=kernel.factory,
        static_dims={"tile": SCALE_TILE_BYTES},
        symbol_dtypes=_symbols(formats, d_format),
        in_default_pack=kernel.tile in _BASIC_TILES
        and not kernel.transposed
        and formats in _DEFAULT_FORMATS
        and d_format in _DEFAULT_D_FORMATS
        and (fusion is None or "." in fusion.name),  # a plugin's
        transposed=kernel.transposed,
    )


@functools.cache
def _config(kernel: Kernel, d_format: str, columns: int) -> Mapping[str, int | str]:
    changes: dict[str, int | str] = {} if columns == 1 else {"num_columns": columns}
    if d_format in BLOCK_SCALED_OUTPUTS:
        changes["d_format"] = d_format
    return {**kernel.tile.config, **kernel.config, "d_stages": D_STAGES, **changes}


@functools.cache
def _symbols(formats: tuple[str, str], d_format: str) -> Mapping[str, str]:
    """Element types by the symbols of the schema."""
    a, b = (mx_format(name) for name in formats)
    return {"A": a.element_name, "B": b.element_name, "S": a.scale_name, **_d_dtypes(d_format)}


@functools.cache
def _full_config(kernel: Kernel, formats: tuple[str, str], d_format: str, columns: int) -> Mapping[str, int | str]:
    """The config with as many stages of A and B as shared memory holds."""
    config = _config(kernel, d_format, columns)
    stages = most_ab_stages(Config.from_mappings(_symbols(formats, d_format), config))
    return {**config, "ab_stages": stages}


def _d_dtypes(d_format: str) -> dict[str, str]:
    """Element types by symbol: of D, of C and the bias, of D's block scales (any where it has none)."""
    if d_format not in BLOCK_SCALED_OUTPUTS:
        return {"D": d_format, "C": d_format, "DS": FORMATS[0].scale_name}
    row = mx_format(d_format)
    return {"D": row.element_name, "C": TERM_DTYPE, "DS": row.scale_name}


@functools.cache
def _d_rules(d_format: str) -> tuple[Rule, ...]:
    """The type of D, and its block scales."""
    is_block_scaled = d_format in BLOCK_SCALED_OUTPUTS
    rules = (
        _dtype_rule("D", (_d_dtypes(d_format)["D"],)),
        Rule("has.d_block_scale", "eq", (int(is_block_scaled),)),
    )
    return (*rules, *_block_scaled_rules(mx_format(d_format))) if is_block_scaled else rules


def _block_scaled_rules(row: MxFormat) -> tuple[Rule, ...]:
    terms = Rule("dtype.C", "in", (dtypes.dtype(TERM_DTYPE).number,), when=("has.d_block_scale", 1))
    return Rule("n_out", "multiple_of", (K_MULTIPLE,)), terms, *_d_scale_rules(row)


def _d_scale_rules(row: MxFormat) -> tuple[Rule, ...]:
    """The type of D's scales, and how many tiles of them its columns take."""
    given = ("has.d_block_scale", 1)
    tile_cols = row.block * SCALE_TILE_COLS
    return (
        Rule("dtype.DS", "eq", (row.scale.number,), when=given),
        Rule("n_out_tiles", "eq", rhs_field="n_out", rhs_divisor=tile_cols, when=given),
    )


def _reference_row(scale_name: str, d_scale_name: str | None, fusion: Fusion | None) -> Variant:
    """Of operands with scales of one type, and of a D that has none or some of a type."""
    formats = _formats_with(scale_name)
    elements = tuple(row.element_name for row in formats)
    slugs = (FAMILY, CPU.slug, scale_name, *(("to", d_scale_name) if d_scale_name else ()), fusion_slug(fusion))
    return Variant(
        id="_".join(slugs),
        family=FAMILY,
        arch=CPU.name,
        dtype=", ".join(row.name for row in formats),
        fusion=fusion,
        accept=(
            _dtype_rule("A", elements),
            _dtype_rule("B", elements),
            _dtype_rule("S", (scale_name,)),
            Rule("has.d_block_scale", "eq", (int(d_scale_name is not None),)),
            *(_block_scaled_rules(_formats_with(d_scale_name)[0]) if d_scale_name else ()),
            *_output_rules(_num_columns(fusion)),
        ),
        config={"block": formats[0].block} | ({"d_scale": d_scale_name} if d_scale_name else {}),
        factory=REFERENCE_FACTORY,
        static_dims={},
    )


def _formats_with(scale_name: str) -> tuple[MxFormat, ...]:
    return tuple(row for row in FORMATS if row.scale_name == scale_name)


@functools.cache
def _major_rules(transposed: tuple[str, ...]) -> tuple[Rule, ...]:
    return tuple(Rule(f"transposed.{name}", "eq", (int(name in transposed),)) for name in ("a", "b"))


@functools.cache
def _output_rules(columns: int) -> tuple[Rule, ...]:
    """How many columns D has, each of which is made of `columns` of those of A B^T."""
    if columns == 1:
        return (Rule("n_out", "eq", rhs_field="n"),)
    return Rule("n", "multiple_of", (columns,)), Rule("n_out", "eq", rhs_field="n", rhs_divisor=columns)


def _num_columns(fusion: Fusion | None) -> int:
    """Columns of A B^T that one of D is made of."""
    return fusion.num_columns if isinstance(fusion, Activation) else 1


@functools.cache
def _dtype_rule(symbol: str, names: tuple[str, ...]) -> Rule:
    return Rule(f"dtype.{symbol}", "in", tuple(dtypes.dtype(name).number for name in names))
