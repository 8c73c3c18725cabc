# SPDX-License-Identifier: Apache-2.0
"""variants.py: the kernels of fmha_fwd, as rows: dtype x head dim x mask x arch, and the references.

Who calls it: plugin.py. A new head dim, dtype or arch is one entry of a table here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from opdeck.core import dtypes
from opdeck.core.arch import CPU, arch
from opdeck.core.fusion import AttentionFusion, Bias, Causal, Fusion, Mask
from opdeck.core.schema import Rule
from opdeck.core.variant import Variant, fusion_slug

DTYPES = ("fp16", "bf16")
LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "block_table")
"""Arguments that say which rows are a sequence's."""
FUSIONS: tuple[Fusion | None, ...] = (None, Causal(), Causal(align="top_left"))
Dims = tuple[int, int]
"""Head dims of Q and K, and of V and O."""


@dataclass(frozen=True)
class Kernel:
    """A kernel source: for which archs, with which config for each pair of head dims, and which fusions it can run.

    score_config: what the config has instead for fusions that are more than a mask. default_dims: those of the
    rows that packs hold unasked, by element type. schedule: as ids say it, "" for one block a CTA.
    """

    factory: str
    archs: tuple[str, ...]
    config_by_dims: Mapping[Dims, Mapping[str, int | str]]
    default_dims: Mapping[str, tuple[Dims, ...]]
    accept: tuple[Rule, ...] = ()
    fusion_type: type[Fusion] = Fusion
    score_config: Mapping[str, int | str] = field(default_factory=dict)
    schedule: str = ""


_BLACKWELL: dict[str, int | str] = {
    "tile_m": 128,
    "tile_n": 128,
    "softmax_regs": 192,
    "correction_regs": 88,
    "other_regs": 40,
    "p_head_elems": 96,
    "rescale_threshold_log2": 8,
    "schedule": "individual",
}
# sm_100a: MUFU is the bottleneck, so a part of exp2 runs on the FMA pipe. sm_103a has twice the MUFU rate and loads
# that deliver the row maximum.
# Registers that no kernel spills with: masks with run-time arguments need more where their tile ranges are computed, in
# all warps; score functions and sinks more in the correction.
_SCORE_REGS = {"correction_regs": 96, "other_regs": 32}
_SM100 = _BLACKWELL | {"exp2_poly_elems": 4, "row_max_by_load": 0}
_SM103 = _BLACKWELL | {"exp2_poly_elems": 0, "row_max_by_load": 1}
_STAGES: Mapping[Dims, Mapping[str, int]] = {
    (32, 32): {"k_stages": 4, "v_stages": 4},
    (64, 64): {"k_stages": 4, "v_stages": 4},
    (96, 96): {"k_stages": 3, "v_stages": 3},
    (128, 128): {"k_stages": 2, "v_stages": 2},
    (192, 128): {"k_stages": 2, "v_stages": 1},
}
# Persistent kernels have a buffer for O besides.
_PERSISTENT_STAGES: Mapping[Dims, Mapping[str, int | str]] = {
    dims: {**_STAGES[dims], "schedule": "persistent"} for dims in ((32, 32), (64, 64), (96, 96), (128, 128))
}
# Continuous integration compiles each of these rows for each arch and fusion.
_BLACKWELL_DEFAULTS: Mapping[str, tuple[Dims, ...]] = {
    "fp16": ((64, 64), (128, 128)),
    "bf16": ((32, 32), (64, 64), (128, 128), (192, 128)),
}
# TMA loads tiles of 128 keys, each from one page.
_WHOLE_TILE_PAGES = (Rule("sk", "multiple_of", (128,), when=("has.block_table", 1)),)
KERNELS = (
    Kernel(
        factory="opdeck.plugins.fmha_fwd.sm100.kernel:make",
        archs=("sm_100a",),
        config_by_dims={dims: {**_SM100, **stages} for dims, stages in _STAGES.items()},
        default_dims=_BLACKWELL_DEFAULTS,
        accept=_WHOLE_TILE_PAGES,
        score_config=_SCORE_REGS,
    ),
    Kernel(
        factory="opdeck.plugins.fmha_fwd.sm100.kernel:make",
        archs=("sm_103a",),
        config_by_dims={dims: {**_SM103, **stages} for dims, stages in _STAGES.items()},
        default_dims=_BLACKWELL_DEFAULTS,
        accept=_WHOLE_TILE_PAGES,
        score_config=_SCORE_REGS,
    ),
    *(
        Kernel(
            factory="opdeck.plugins.fmha_fwd.sm100.kernel:make",
            archs=(arch_name,),
            config_by_dims={dims: {**config, **stages} for dims, stages in _PERSISTENT_STAGES.items()},
            default_dims={},
            accept=_WHOLE_TILE_PAGES,
            score_config=_SCORE_REGS,
            schedule="persistent",
        )
        for arch_name, config in (("sm_100a", _SM100), ("sm_103a", _SM103))
    ),
    Kernel(
        factory="opdeck.plugins.fmha_fwd.sm90.kernel:make",
        archs=("sm_90a",),
        config_by_dims={
            (64, 64): {"tile_m": 128, "tile_n": 128, "kv_stages": 4, "producer_regs": 24, "consumer_regs": 240},
            (128, 128): {"tile_m": 128, "tile_n": 128, "kv_stages": 2, "producer_regs": 24, "consumer_regs": 240},
        },
        default_dims={dtype: ((64, 64), (128, 128)) for dtype in DTYPES},
        accept=tuple(Rule(f"has.{name}", "eq", (0,)) for name in LENGTHS),
        fusion_type=Mask,
    ),
)
REFERENCE_FACTORY = "opdeck.plugins.fmha_fwd.reference:make"


def rows(fusions: Sequence[Fusion | None]) -> tuple[Variant, ...]:
    """The variants of the given fusions, in priority order; the reference, which serves any head dim, comes last."""
    compiled = [
        _compiled_row(kernel, arch_name, dtype, dims, fusion)
        for kernel in KERNELS
        for arch_name in kernel.archs
        for dtype in DTYPES
        for dims in kernel.config_by_dims
        for fusion in fusions
        if fusion is None or (isinstance(fusion, kernel.fusion_type) and not _has_bias(fusion))
    ]
    return (*compiled, *(_reference_row(dtype, fusion) for dtype in DTYPES for fusion in fusions))


def _has_bias(fusion: Fusion) -> bool:
    """Whether a fusion adds a Bias: kernels that do would spill, for want of a load of it ahead of the softmax."""
    return isinstance(fusion, AttentionFusion) and any(isinstance(score, Bias) for score in fusion.scores)


def _compiled_row(kernel: Kernel, arch_name: str, dtype: str, dims: Dims, fusion: Fusion | None) -> Variant:
    d_qk, d_v = dims
    dims_slug = f"d{d_qk}" if d_qk == d_v else f"d{d_qk}x{d_v}"
    is_mask = fusion is None or isinstance(fusion, Mask)
    words = ("fmha_fwd", arch(arch_name).slug, dtype, dims_slug, kernel.schedule, fusion_slug(fusion))
    return Variant(
        id="_".join(filter(None, words)),
        family="fmha_fwd",
        arch=arch_name,
        dtype=dtype,
        fusion=fusion,
        accept=(_dtype_rule(dtype), Rule("dqk", "eq", (d_qk,)), Rule("dv", "eq", (d_v,)), *kernel.accept),
        config={**kernel.config_by_dims[dims], **({} if is_mask else kernel.score_config)},
        factory=kernel.factory,
        static_dims={"dqk": d_qk, "dv": d_v},
        in_default_pack=dims in kernel.default_dims.get(dtype, ()),
    )


def _reference_row(dtype: str, fusion: Fusion | None) -> Variant:
    return Variant(
        id=f"fmha_fwd_{CPU.slug}_{dtype}_{fusion_slug(fusion)}",
        family="fmha_fwd",
        arch=CPU.name,
        dtype=dtype,
        fusion=fusion,
        accept=(_dtype_rule(dtype),),
        config={},
        factory=REFERENCE_FACTORY,
        static_dims={},
    )


def _dtype_rule(dtype: str) -> Rule:
    return Rule("dtype.T", "eq", (dtypes.dtype(dtype).number,))
