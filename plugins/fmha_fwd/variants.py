# SPDX-License-Identifier: Apache-2.0
"""variants.py: the kernels of fmha_fwd, as rows: dtype x head dim x mask x arch, and the references.

Who calls it: plugin.py. A new head dim, dtype or arch is one entry of a table here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import NoneType

from opdeck.core import dtypes
from opdeck.core.arch import CPU, arch
from opdeck.core.fusion import (
    AttentionFusion,
    BlockSparse,
    Causal,
    Fusion,
    IntervalMask,
    Leaf,
    LeafKind,
    Mask,
    Residual,
    Score,
    TensorScore,
)
from opdeck.core.fusion.compose import MaskAnd
from opdeck.core.fusion.functions import ScoreFunction
from opdeck.core.schema import Rule, RuleOp, WorkspaceTerm
from opdeck.core.variant import Variant, fusion_key, fusion_slug

DTYPES = ("fp16", "bf16", "fp8_e4m3", "fp8_e5m2")
LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "block_table")
"""Arguments that say which rows are a sequence's."""
SCALES = ("q_scale", "k_scale", "v_scale")
FUSIONS: tuple[Fusion | None, ...] = (None, Causal(), Causal(align="top_left"))
Dims = tuple[int, int]
"""Head dims of Q and K, and of V and O."""
Types = tuple[str, str]
"""Element types of Q, K and V, and of O."""


@dataclass(frozen=True)
class _Preference:
    """The rules of Variant.prefer of a kernel's rows: of those without a mask, whose blocks are alike long, and of the
    others; none of those with a user's function of scores, for which such a kernel lacks registers as a rule, or with a
    tensor of 32 bits, for which it has smaller K tiles than another."""

    unmasked: tuple[Rule, ...] = ()
    masked: tuple[Rule, ...] = ()

    def rules(self, fusion: Fusion | None) -> tuple[Rule, ...]:
        if _has_score_function(fusion) or _has_tensor_of(_SCHEDULED_HEAVY_TENSOR_BITS, fusion):
            return ()
        is_masked = isinstance(fusion, AttentionFusion) and not isinstance(fusion.mask, Residual)
        return self.masked if is_masked else self.unmasked


def _has_score_function(fusion: Fusion | None) -> bool:
    """Whether a user's function of scores is among its parts."""
    return isinstance(fusion, AttentionFusion) and any(isinstance(score, ScoreFunction) for score in fusion.scores)


@dataclass(frozen=True)
class Kernel:
    """A kernel source: for which archs, with which types, with which config for each pair of head dims, and which
    fusions it can run.

    score_config: what the config has instead for fusions that are more than a mask; function_config: for those with a
    user's function of scores, which may read tensors for every key; tensor_config: for a score function with a tensor,
    which takes shared memory, by head dims; heavy_config: smaller K tiles, for fusions that take many registers a
    score; heavy_tensor_config: for those with such a tensor, or with one of heavy_tensor_bits or more. default_dims:
    those of the rows that packs hold unasked, by types. schedule: as ids say it, "" for one block a CTA. dims_op: "eq",
    or "le" where head dims may be smaller than the kernel's, which TMA fills up with zeros.
    """

    factory: str
    archs: tuple[str, ...]
    types: tuple[Types, ...]
    config_by_dims: Mapping[Dims, Mapping[str, int | str]]
    default_dims: Mapping[Types, tuple[Dims, ...]]
    accept: tuple[Rule, ...] = ()
    fusion_type: type[Fusion | None] = Fusion
    refused_masks: tuple[type[Mask], ...] = ()
    score_config: Mapping[str, int | str] = field(default_factory=dict)
    function_config: Mapping[str, int | str] = field(default_factory=dict)
    tensor_config: Mapping[Dims, Mapping[str, int]] = field(default_factory=dict)
    heavy_config: Mapping[str, int] = field(default_factory=dict)
    heavy_tensor_config: Mapping[str, int] = field(default_factory=dict)
    heavy_tensor_bits: int = 64
    schedule: str = ""
    prefer: _Preference = _Preference()
    workspace: tuple[WorkspaceTerm, ...] = ()
    dims_op: RuleOp = "eq"


_BLACKWELL: dict[str, int | str] = {
    "tile_m": 128,
    "tile_n": 128,
    "softmax_regs": 192,
    "correction_regs": 88,
    "other_regs": 40,
    "p_head_elems": 96,
    "v_blocks": 1,
    "schedule": "individual",
    "o_buffers": 0,
}
# sm_100a: MUFU is the bottleneck, so a part of exp2 runs on the FMA pipe. sm_103a has twice the MUFU rate and loads
# that deliver the row maximum.
# Registers that no kernel spills with: masks with run-time arguments need more where their tile ranges are computed, in
# all warps; score functions and sinks more in the correction.
_SCORE_REGS = {"correction_regs": 96, "other_regs": 32}
_BLACKWELL_ARCHS: Mapping[str, Mapping[str, int]] = {
    "sm_100a": {"exp2_poly_elems": 20, "row_max_by_load": 0},
    "sm_103a": {"exp2_poly_elems": 0, "row_max_by_load": 1},
}
_16_BIT: Mapping[str, int] = {"rescale_threshold_log2": 8, "p_scale_log2": 0}
# P of e4m3 uses its range up to 2^8, which leaves no room to grow. With 4 and 4 instead, rows that one key dominates
# have twice the error: that key's P is rounded too.
_8_BIT: Mapping[str, int] = {"rescale_threshold_log2": 0, "p_scale_log2": 8}
# So that there are two stages.
_TILES_OF_64 = {"tile_n": 64, "p_head_elems": 32}
# O of 256 columns for two query tiles would take all of tensor memory: a CTA computes 128 of them.
_HALVES = {"d_v": 128, "v_blocks": 2}
_STAGES_16_BIT: Mapping[Dims, Mapping[str, int]] = {
    (32, 32): {"k_stages": 4, "v_stages": 4},
    (64, 64): {"k_stages": 4, "v_stages": 4},
    (96, 96): {"k_stages": 3, "v_stages": 3},
    (128, 128): {"k_stages": 2, "v_stages": 2},
    (192, 128): {"k_stages": 2, "v_stages": 1},
    (256, 128): {**_TILES_OF_64, "k_stages": 2, "v_stages": 2},
    (256, 256): {**_HALVES, **_TILES_OF_64, "k_stages": 2, "v_stages": 2},
}
_STAGES_8_BIT: Mapping[Dims, Mapping[str, int]] = {
    (32, 32): {"k_stages": 4, "v_stages": 4},
    (64, 64): {"k_stages": 4, "v_stages": 4},
    (96, 96): {"k_stages": 4, "v_stages": 4, "correction_regs": 80, "other_regs": 48},  # with 88 ptxas 13.0 spills
    (128, 128): {"k_stages": 4, "v_stages": 4},
    (192, 128): {"k_stages": 3, "v_stages": 3},
    (256, 128): {"k_stages": 3, "v_stages": 2},
    (256, 256): {**_HALVES, "k_stages": 3, "v_stages": 2},
}
_TYPES_16_BIT: tuple[Types, ...] = (("fp16", "fp16"), ("bf16", "bf16"))
_TYPES_8_BIT: tuple[Types, ...] = tuple(itertools.product(("fp8_e4m3", "fp8_e5m2"), ("bf16", "fp16", "fp8_e4m3")))
# Continuous integration compiles each of these rows for each arch and fusion.
_BLACKWELL_DEFAULTS: Mapping[Types, tuple[Dims, ...]] = {
    ("fp16", "fp16"): ((64, 64), (128, 128)),
    ("bf16", "bf16"): ((32, 32), (64, 64), (128, 128), (192, 128)),
    ("fp8_e4m3", "bf16"): ((128, 128),),
}
# TMA loads tiles of 128 keys, each from one page.
_OTHER_PAGES = "pages of other sizes: fmha_gen, which this version lacks"
_WHOLE_TILE_PAGES = Rule("sk", "multiple_of", (128,), when=("has.block_table", 1), hint=_OTHER_PAGES)


# Those that leave room for a score function's tensor, and its ring. O has no buffer of its own.
_RING_OF_64_KIB, _RING_OF_32_KIB = ({"score_tensor_ring_bytes": num_kib * 1024} for num_kib in (64, 32))
_TENSOR_REGS = {"softmax_regs": 200, "correction_regs": 80, "other_regs": 32}
_TENSOR = {**_TENSOR_REGS, **_RING_OF_64_KIB, "o_buffers": 0}
# Half the scores of a row leave registers to other values, and to the other roles.
_REGS_OF_64 = {"softmax_regs": 160, "correction_regs": 112, "other_regs": 80}
_TENSOR_REGS_OF_64 = {"softmax_regs": 160, "correction_regs": 120, "other_regs": 72}
_TENSOR_OF_64 = {**_TILES_OF_64, **_TENSOR_REGS_OF_64, **_RING_OF_32_KIB, "o_buffers": 0}
_TENSOR_STAGES_16_BIT: Mapping[Dims, Mapping[str, int]] = {
    (32, 32): _TENSOR,
    (64, 64): _TENSOR,
    (96, 96): {**_TENSOR, "k_stages": 2, "v_stages": 2},
    (128, 128): {**_TENSOR, "k_stages": 2, "v_stages": 1},
    (192, 128): {**_TENSOR_OF_64, "k_stages": 2, "v_stages": 2},
    (256, 128): {**_TENSOR_OF_64, "k_stages": 1, "v_stages": 2},
    (256, 256): {**_TENSOR_OF_64, "k_stages": 1, "v_stages": 2},
}
_TENSOR_STAGES_8_BIT: Mapping[Dims, Mapping[str, int]] = {
    (32, 32): _TENSOR,
    (64, 64): _TENSOR,
    (96, 96): _TENSOR,
    (128, 128): {**_TENSOR, "k_stages": 3, "v_stages": 3},
    (192, 128): {**_TENSOR, "k_stages": 2, "v_stages": 2},
    (256, 128): {**_TENSOR, "k_stages": 2, "v_stages": 2},
    (256, 256): {**_TENSOR, "k_stages": 2, "v_stages": 2},
}
# The correction keeps more over a block in CTAs that take several. The softmax has that to give where K tiles have 64
# keys, as all kernels have with a tensor of 32 bits, or the tensor has 16 bits.
_SCHEDULED_REGS_OF_64 = {"softmax_regs": 184, "correction_regs": 96, "other_regs": 48}
_SCHEDULED_TENSOR_REGS = {"softmax_regs": 192, "correction_regs": 96, "other_regs": 32}
_SCHEDULED_HEAVY_TENSOR_BITS = 32
_FUNCTION_REGS = {"softmax_regs": 208, "correction_regs": 64, "other_regs": 32}


@dataclass(frozen=True)
class _Bits:
    """What the size of elements decides: how P is scaled, and stages without and with a score function's tensor."""

    types: tuple[Types, ...]
    config: Mapping[str, int]
    stages: Mapping[Dims, Mapping[str, int]]
    tensor_stages: Mapping[Dims, Mapping[str, int]]


_16_BITS = _Bits(_TYPES_16_BIT, _16_BIT, _STAGES_16_BIT, _TENSOR_STAGES_16_BIT)
_8_BITS = _Bits(_TYPES_8_BIT, _8_BIT, _STAGES_8_BIT, _TENSOR_STAGES_8_BIT)


def _blackwell(arch_name: str, bits: _Bits) -> Kernel:
    common = {**_BLACKWELL, **_BLACKWELL_ARCHS[arch_name], **bits.config}
    return Kernel(
        factory="opdeck.plugins.fmha_fwd.sm100.kernel:make",
        archs=(arch_name,),
        types=bits.types,
        config_by_dims={dims: {**common, **of_dims} for dims, of_dims in bits.stages.items()},
        default_dims=_BLACKWELL_DEFAULTS,
        accept=(_WHOLE_TILE_PAGES,),
        score_config=_SCORE_REGS,
        function_config=_FUNCTION_REGS,
        tensor_config=bits.tensor_stages,
        heavy_config={**_TILES_OF_64, **_REGS_OF_64},
        heavy_tensor_config={**_TILES_OF_64, **_TENSOR_REGS_OF_64},
        dims_op="le",
    )


_NO_LENGTHS = tuple(Rule(f"has.{name}", "eq", (0,)) for name in LENGTHS)
# More blocks than SMs: a CTA that takes several loads the Q of the next while the O of the last is stored, and sets
# barriers and tensor memory up once. Of blocks of one length a fixed share is as good as any; where lengths differ, the
# next one goes to whoever is done.
_MANY_BLOCKS = Rule("q_blocks_of_256", "gt", rhs_field="num_sms")
_MANY_EQUAL = (_MANY_BLOCKS, *_NO_LENGTHS)
# Pairs load half as much of K and V. They keep two CTAs in step, by signals from SM to SM, begin and end together, and
# work on up to 128 rows more than there are. Those are a sixteenth of 2048 queries, and with 2048 keys the loop is long
# against its ends. Where the softmax takes longer than MMAs and loads, in 8 bits and with head dims up to 64, there is
# nothing to gain.
_LONG = tuple(Rule(name, "ge", (2048,)) for name in ("sq", "sk"))
_LARGE_HEADS = Rule("dqk", "gt", (64,))
_PREFER: Mapping[str, _Preference] = {
    "persistent": _Preference(unmasked=_MANY_EQUAL),
    "pair": _Preference(unmasked=(*_MANY_EQUAL, *_LONG, _LARGE_HEADS)),
    "dynamic": _Preference(unmasked=(_MANY_BLOCKS,), masked=(_MANY_BLOCKS,)),
}


ORDER_GROUP_SEQS = 256
"""Sequences that are sorted by length together."""
ORDER_ROW_BYTES = 8
# Where there are lengths: a row for each sequence and one more.
_ORDER_WORKSPACE = (
    WorkspaceTerm(ORDER_ROW_BYTES, (("num_offsets", 1),)),
    *(WorkspaceTerm(2 * ORDER_ROW_BYTES, (("num_seqs", 1), (f"has.seqused_{name}", 1))) for name in "qk"),
)


def _scheduled(kernel: Kernel, schedule: str) -> Kernel:
    """The kernel by a schedule in which CTAs take several blocks."""
    # Head dims of more than 128 of 16 bits leave no room for a buffer of O.
    config_by_dims = {
        dims: {
            **config,
            **(_SCHEDULED_REGS_OF_64 if _TILES_OF_64.items() <= config.items() else {}),
            "schedule": schedule,
            "o_buffers": int(max(dims) <= 128 or kernel.types == _TYPES_8_BIT),
        }
        for dims, config in kernel.config_by_dims.items()
    }
    of_128 = {dims: config for dims, config in kernel.tensor_config.items() if _TENSOR_REGS.items() <= config.items()}
    return replace(
        kernel,
        config_by_dims=config_by_dims,
        tensor_config={**kernel.tensor_config, **{dims: {**of_128[dims], **_SCHEDULED_TENSOR_REGS} for dims in of_128}},
        heavy_tensor_bits=_SCHEDULED_HEAVY_TENSOR_BITS,
        default_dims={},
        schedule=schedule,
        workspace=_ORDER_WORKSPACE,
        prefer=_PREFER[schedule],
    )


# A CTA's half of each K and V tile leaves room for more stages, and for a buffer of O.
_PAIR_STAGES: Mapping[Dims, Mapping[str, int]] = {
    (64, 64): {"k_stages": 4, "v_stages": 4},
    (128, 128): {"k_stages": 4, "v_stages": 4},
    (192, 128): {"k_stages": 2, "v_stages": 3},
}


def _paired(kernel: Kernel) -> Kernel:
    """The kernel by pairs of CTAs that share MMAs, and so must visit the same K tiles: without masks and lengths."""
    scheduled = _scheduled(kernel, "pair")
    configs = {dims: {**scheduled.config_by_dims[dims], **stages} for dims, stages in _PAIR_STAGES.items()}
    return replace(
        scheduled,
        config_by_dims={dims: {**config, "o_buffers": 1} for dims, config in configs.items()},
        accept=(*kernel.accept, *_NO_LENGTHS),
        fusion_type=NoneType,
        workspace=(),
        prefer=_PREFER["pair"] if kernel.types == _TYPES_16_BIT else _Preference(),
    )


_INDIVIDUAL = [_blackwell(arch_name, bits) for bits in (_16_BITS, _8_BITS) for arch_name in _BLACKWELL_ARCHS]
KERNELS = (
    *_INDIVIDUAL,
    *map(_paired, _INDIVIDUAL),
    *(_scheduled(kernel, schedule) for schedule in ("persistent", "dynamic") for kernel in _INDIVIDUAL),
    Kernel(
        factory="opdeck.plugins.fmha_fwd.sm90.kernel:make",
        archs=("sm_90a",),
        types=_TYPES_16_BIT,
        config_by_dims={
            (64, 64): {"tile_m": 128, "tile_n": 128, "kv_stages": 4, "producer_regs": 24, "consumer_regs": 240},
            (128, 128): {"tile_m": 128, "tile_n": 128, "kv_stages": 2, "producer_regs": 24, "consumer_regs": 240},
        },
        default_dims={types: ((64, 64), (128, 128)) for types in _TYPES_16_BIT},
        accept=(*_NO_LENGTHS, *(Rule(f"has.{name}", "eq", (0,)) for name in SCALES)),
        fusion_type=Mask,
        refused_masks=(BlockSparse,),
    ),
)
REFERENCE_FACTORY = "opdeck.plugins.fmha_fwd.reference:make"


def rows(fusions: Sequence[Fusion | None]) -> tuple[Variant, ...]:
    """The variants of the given fusions, in priority order; the reference, which serves any head dim, comes last."""
    compiled = [
        row
        for kernel in KERNELS
        for arch_name in kernel.archs
        for types in kernel.types
        for dims in kernel.config_by_dims
        for fusion in fusions
        if _can_run(kernel, dims, fusion)
        for row in _with_spare(kernel, _compiled_row(kernel, arch_name, types, dims, fusion))
    ]
    return (*compiled, *(_reference_row(dtype, fusion) for dtype in DTYPES for fusion in fusions))


def _can_run(kernel: Kernel, dims: Dims, fusion: Fusion | None) -> bool:
    if fusion is None:
        return True
    if isinstance(fusion, AttentionFusion) and isinstance(fusion.mask, kernel.refused_masks):
        return False
    num_tensors = len(_tensor_leaves(fusion))
    return isinstance(fusion, kernel.fusion_type) and num_tensors <= (dims in kernel.tensor_config)


def _tensor_leaves(fusion: Fusion | None) -> list[Leaf]:
    """The tensors of the fusion's score functions that have one."""
    scores = fusion.scores if isinstance(fusion, AttentionFusion) else ()
    return [leaf for score in scores if isinstance(score, TensorScore) for leaf in score.leaves() if leaf.align_bytes]


def _config(kernel: Kernel, dims: Dims, fusion: Fusion | None) -> dict[str, int | str]:
    config = {"d_qk": dims[0], "d_v": dims[1], **kernel.config_by_dims[dims]}
    if fusion is not None and not isinstance(fusion, Mask):
        config |= kernel.score_config
    if _has_score_function(fusion):
        config |= kernel.function_config
    for leaf in _tensor_leaves(fusion):
        config |= {**kernel.tensor_config[dims], "score_tensor_bytes": _bits(leaf) // 8}
    of_tiles = _smaller_tiles(kernel, fusion)
    is_heavy = _is_heavy(fusion) or _has_tensor_of(kernel.heavy_tensor_bits, fusion)
    return _in_smaller_tiles(config, of_tiles) if of_tiles and is_heavy else config


def _bits(leaf: Leaf) -> int:
    return dtypes.dtype(leaf.dtype).bits


def _has_tensor_of(bits: int, fusion: Fusion | None) -> bool:
    """Whether a score function has a tensor of that many bits an element or more."""
    return any(_bits(leaf) >= bits for leaf in _tensor_leaves(fusion))


def _smaller_tiles(kernel: Kernel, fusion: Fusion | None) -> Mapping[str, int]:
    return kernel.heavy_tensor_config if _tensor_leaves(fusion) else kernel.heavy_config


def _with_spare(kernel: Kernel, row: Variant) -> Iterator[Variant]:
    """The row, and behind one whose fusion is not known to fit in the registers the same in smaller K tiles: it is
    compiled where the first spills."""
    yield row
    of_tiles = _smaller_tiles(kernel, row.fusion)
    if kernel.schedule or not of_tiles or row.config["tile_n"] == of_tiles["tile_n"] or _is_known(row.fusion):
        return
    words = row.id.removesuffix(fusion_slug(row.fusion)), f"k{of_tiles['tile_n']}_", fusion_slug(row.fusion)
    yield replace(row, id="".join(words), config=_in_smaller_tiles(row.config, of_tiles), in_default_pack=False)


def _is_known(fusion: Fusion | None) -> bool:
    return fusion_key(fusion) in {fusion_key(known) for known in FUSIONS}


# Registers that a score function takes for each score. A sink counts as one, and so does a joined mask.
_WEIGHTS: tuple[tuple[type[Score], int], ...] = ((TensorScore, 2), (ScoreFunction, 3), (Score, 1))
_HEAVY = 4


def _weight(score: Score) -> int:
    """One with a tensor that computes logit by logit keeps the row's elements besides: ptxas loads them first."""
    if isinstance(score, TensorScore) and type(score).apply_score_with is TensorScore.apply_score_with:
        return _HEAVY
    return next(of_type for kind, of_type in _WEIGHTS if isinstance(score, kind))


def _is_heavy(fusion: Fusion | None) -> bool:
    """Whether 128 scores of a row and what the fusion computes of them take more registers than a thread has."""
    if not isinstance(fusion, AttentionFusion):
        return False
    weight = sum(map(_weight, fusion.scores))
    mask = fusion.mask.inner if isinstance(fusion.mask, BlockSparse) else fusion.mask
    weight += len(fusion.sinks) + isinstance(mask, MaskAnd)
    if weight >= _HEAVY or isinstance(mask, IntervalMask):
        return weight >= _HEAVY
    # Asked key by key: what its function takes comes besides.
    reads_tensors = any(leaf.kind is LeafKind.TENSOR for leaf in mask.leaves())
    return reads_tensors or isinstance(mask, MaskAnd) or not isinstance(fusion, Mask)


def _in_smaller_tiles(config: Mapping[str, int | str], of_tiles: Mapping[str, int]) -> dict[str, int | str]:
    """The config with other K tiles, in the same shared memory."""
    ratio = int(config["tile_n"]) // of_tiles["tile_n"]
    stages = {name: int(config[name]) * ratio for name in ("k_stages", "v_stages")}
    ring = {name: int(config[name]) // ratio for name in ("score_tensor_ring_bytes",) if name in config}
    return {**config, **of_tiles, **stages, **ring}


def _compiled_row(kernel: Kernel, arch_name: str, types: Types, dims: Dims, fusion: Fusion | None) -> Variant:
    (dtype, out_dtype), (d_qk, d_v) = types, dims
    types_slug = dtype if dtype == out_dtype else f"{dtype}_{out_dtype}"
    dims_slug = f"d{d_qk}" if d_qk == d_v else f"d{d_qk}x{d_v}"
    words = ("fmha_fwd", arch(arch_name).slug, types_slug, dims_slug, kernel.schedule, fusion_slug(fusion))
    return Variant(
        id="_".join(filter(None, words)),
        family="fmha_fwd",
        arch=arch_name,
        dtype=dtype,
        fusion=fusion,
        accept=(
            _dtype_rule("T", dtype),
            _dtype_rule("O", out_dtype),
            Rule("dqk", kernel.dims_op, (d_qk,)),
            Rule("dv", kernel.dims_op, (d_v,)),
            # O is stored 16 bytes at a time.
            Rule("dv", "multiple_of", (128 // dtypes.dtype(out_dtype).bits,)),
            *kernel.accept,
        ),
        config=_config(kernel, dims, fusion),
        factory=kernel.factory,
        static_dims={"dqk": d_qk, "dv": d_v} if kernel.dims_op == "eq" else {},
        symbol_dtypes={"O": out_dtype},
        in_default_pack=dims in kernel.default_dims.get(types, ()),
        prefer=kernel.prefer.rules(fusion),
        workspace=kernel.workspace,
    )


def _reference_row(dtype: str, fusion: Fusion | None) -> Variant:
    return Variant(
        id=f"fmha_fwd_{CPU.slug}_{dtype}_{fusion_slug(fusion)}",
        family="fmha_fwd",
        arch=CPU.name,
        dtype=dtype,
        fusion=fusion,
        accept=(_dtype_rule("T", dtype),),
        config={},
        factory=REFERENCE_FACTORY,
        static_dims={},
    )


def _dtype_rule(symbol: str, dtype: str) -> Rule:
    return Rule(f"dtype.{symbol}", "eq", (dtypes.dtype(dtype).number,))
