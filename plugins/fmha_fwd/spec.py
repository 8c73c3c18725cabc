# SPDX-License-Identifier: Apache-2.0
"""spec.py: the arguments of fmha_fwd and the public call.

Who calls it: plugin.py. The rows of SCHEMA are checked in Python (opdeck.core.problem) and in C (abi/src/bind.c) alike.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from opdeck.core import arrays, dtypes
from opdeck.core.arrays import TensorView
from opdeck.core.errors import ArgumentError, ArgumentTypeError
from opdeck.core.family import OutputSpec, Request
from opdeck.core.fusion import AttentionFusion, Residual, blocks
from opdeck.core.scalars import fp32_number
from opdeck.core.schema import ArgSpec, FamilySchema, Product, Rule, Size

# Of O, by the element type of q, k and v; the first is that of a new array.
OUT_DTYPES: Mapping[str, tuple[str, ...]] = {
    "fp16": ("fp16",),
    "bf16": ("bf16",),
    "fp8_e4m3": ("bf16", "fp16", "fp8_e4m3"),
    "fp8_e5m2": ("bf16", "fp16", "fp8_e4m3"),
}


def _attention_tensor(name: str, dims: tuple[str, ...]) -> ArgSpec:
    return ArgSpec(name, "tensor", "read", dims, "T", tuple(OUT_DTYPES), align_bytes=16, contiguous_last=True)


def _output(name: str, dims: tuple[str, ...]) -> ArgSpec:
    kinds = tuple(dict.fromkeys(itertools.chain(*OUT_DTYPES.values())))
    return ArgSpec(name, "tensor", "write", dims, "O", kinds, align_bytes=16, contiguous_last=True)


def _out_dtype_rule(given: str) -> Rule:
    allowed = tuple(dtypes.dtype(name).number for name in OUT_DTYPES[given])
    return Rule("dtype.O", "in", allowed, when=("dtype.T", dtypes.dtype(given).number))


def _scale(name: str) -> ArgSpec:
    return ArgSpec(name, "tensor", "read", ("num_seqs", "hk"), None, ("fp32",), optional=True, align_bytes=4)


def _lengths(name: str, dim: str) -> ArgSpec:
    return ArgSpec(name, "tensor", "read", (dim,), None, ("int32",), optional=True, align_bytes=4, contiguous_last=True)


def _without(*names: str) -> tuple[Rule, ...]:
    return tuple(Rule(f"has.{name}", "eq", (0,)) for name in names)


# How long packed sequences are, and those in pages, the kernel alone knows. Lists of tiles are of the rows in use.
_SIZES = (
    Size("batch", "num_offsets", plus=-1, when=(Rule("has.cu_seqlens_q", "eq", (1,)),)),
    Size("batch", "b", when=_without("cu_seqlens_q")),
    Size("num_heads", "hq"),
    Size("sq", "sq", when=_without("cu_seqlens_q")),
    Size("sk", "sk", when=_without("cu_seqlens_q", "block_table")),
    Size("q_tiles", "sq", blocks.TILE, when=_without("cu_seqlens_q", "seqused_q")),
    Size("q_tile_pairs", "sq", blocks.TILE * blocks.TILES_PER_LIST, when=_without("cu_seqlens_q", "seqused_q")),
    Size("k_tiles", "sk", blocks.TILE, when=_without("cu_seqlens_q", "seqused_k")),
)

# Packed sequences lie behind each other in dim sq or sk of one batch entry. With a block_table K and V are b_kv pages
# of sk rows.
SCHEMA = FamilySchema(
    name="fmha_fwd",
    args=(
        _attention_tensor("q", ("b", "sq", "hq", "dqk")),
        _attention_tensor("k", ("b_kv", "sk", "hk", "dqk")),
        _attention_tensor("v", ("b_kv", "sk", "hk", "dv")),
        _output("o", ("b", "sq", "hq", "dv")),
        ArgSpec("lse", "tensor", "write", ("b", "hq", "sq"), "L", ("fp32",), optional=True, align_bytes=4),
        # Kernels take the row maximum of raw scores, which is that of scaled ones only when the scale is positive.
        ArgSpec("softmax_scale", "f32", optional=True, default=("rsqrt", "dqk")),
        _lengths("cu_seqlens_q", "num_offsets"),
        _lengths("cu_seqlens_k", "num_offsets"),
        _lengths("seqused_q", "num_seqs"),
        _lengths("seqused_k", "num_seqs"),
        ArgSpec(
            *("block_table", "tensor", "read", ("num_seqs", "max_pages"), None, ("int32",)),
            optional=True,
            align_bytes=4,
            contiguous_last=True,
        ),
        ArgSpec("max_ctas", "i32", optional=True, default=("num_sms", "")),
        _scale("q_scale"),
        _scale("k_scale"),
        _scale("v_scale"),
        ArgSpec("out_scale", "f32", optional=True, default=("one", "")),
    ),
    checks=(
        Rule("hk", "ge", (1,)),
        Rule("hq", "multiple_of", rhs_field="hk"),
        Rule("dqk", "ge", (1,)),
        Rule("dv", "ge", (1,)),
        Rule("softmax_scale", "gt", (0,)),
        Rule("max_ctas", "ge", (1,)),
        Rule("has.cu_seqlens_q", "eq", rhs_field="has.cu_seqlens_k", when=("has.block_table", 0)),
        Rule("has.cu_seqlens_k", "eq", (0,), when=("has.block_table", 1)),
        Rule("has.seqused_k", "eq", (1,), when=("has.block_table", 1)),
        Rule("max_pages", "ge", (1,), when=("has.block_table", 1)),
        Rule("sk", "ge", (1,), when=("has.block_table", 1)),
        Rule("b_kv", "eq", rhs_field="b", when=("has.block_table", 0)),
        Rule("b", "eq", (1,), when=("has.cu_seqlens_q", 1)),
        Rule("num_offsets", "ge", (1,), when=("has.cu_seqlens_q", 1)),
        Rule("num_seqs", "eq", rhs_field="num_offsets", rhs_plus=-1, when=("has.cu_seqlens_q", 1)),
        Rule("num_seqs", "eq", rhs_field="b", when=("has.cu_seqlens_q", 0)),
        *map(_out_dtype_rule, OUT_DTYPES),
    ),
    empty=(Rule("b", "eq", (0,)), Rule("sq", "eq", (0,)), Rule("hq", "eq", (0,))),
    # Packed sequences have at least one each, of however few rows.
    products=(
        Product("q_blocks_of_256", (("b", 1), ("hq", 1), ("sq", 256))),
        Product("q_blocks_of_256", (("batch", 1), ("hq", 1))),
    ),
    sizes=_SIZES,
)

# Dim d of the schema's (b, s, h, d) is the user's dim order[d].
_LAYOUTS: Mapping[str, tuple[int | None, ...]] = {"bshd": (0, 1, 2, 3), "bhsd": (0, 2, 1, 3)}
_PACKED_LAYOUTS: Mapping[str, tuple[int | None, ...]] = {"bshd": (None, 0, 1, 2), "bhsd": (None, 1, 0, 2)}


# What other libraries call our arguments.
_ALIASES: Mapping[str, str] = {
    "causal": "mask=Causal() of opdeck.core.fusion",
    "is_causal": 'mask=Causal(align="top_left") of opdeck.core.fusion',
    "attn_mask": "mask",
    "sm_scale": "softmax_scale",
    "scale": "softmax_scale",
    "query": "q",
    "key": "k",
    "value": "v",
    "return_softmax_lse": "return_lse",
    "return_attn_probs": "return_lse",
    "output": "out",
    "qkv_layout": "layout",
    "tensor_layout": "layout",
    "max_seqlen_q": "no bound: the kernels need none",
    "max_seqlen_k": "no bound: the kernels need none",
    "cu_seqlens": "cu_seqlens_q and cu_seqlens_k",
    "cu_seqlens_kv": "cu_seqlens_k",
    "cache_seqlens": "seqused_k",
    "page_table": "block_table",
    "kv_indices": "block_table",
    "seq_lens": "seqused_k",
    "q_descale": "q_scale",
    "k_descale": "k_scale",
    "v_descale": "v_scale",
    "o_scale": "out_scale",
}


_MASK_HINT = "Causal(), score_mod(fn, aux), mask_mod(fn, aux), .. of opdeck.core.fusion"


def call(
    q: Any,
    k: Any,
    v: Any,
    mask: AttentionFusion | None = None,
    softmax_scale: float | None = None,
    return_lse: bool = False,
    out: Any = None,
    lse: Any = None,
    layout: str = "bshd",
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    seqused_q: Any = None,
    seqused_k: Any = None,
    block_table: Any = None,
    max_ctas: int | None = None,
    q_scale: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
    out_scale: float = 1.0,
    out_dtype: str | None = None,
    **unknown: Any,
) -> Request:
    """Attention forward: O = softmax(mask(Q K^T * softmax_scale)) V, a softmax over the keys that a query sees.

    q: (B, Sq, Hq, D). k: (B, Sk, Hk, D). v: (B, Sk, Hk, Dv). Hq is a multiple of Hk: query head h reads key head
    h // (Hq // Hk). fp16, bf16, fp8_e4m3 or fp8_e5m2, all three alike; any strides whose last is 1 and whose others are
    multiples of 16 bytes.
    mask: None (every key) or a Fusion such as Causal(), Alibi(slopes) & Causal(): masks, score functions, a sink.
    softmax_scale: > 0; None is 1 / sqrt(D).
    out: (B, Sq, Hq, Dv), or None for a new array of q's library, of out_dtype: that of q, and for fp8 "bf16" (which is
    what None means), "fp16" or "fp8_e4m3", to which O is rounded with saturation.
    lse: (B, Hq, Sq) fp32, natural log of the sum of exponentials, whatever the layout; given or with return_lse=True.
    layout: "bshd", or "bhsd" when dims 1 and 2 of q, k, v and out are swapped. Nothing is copied.
    cu_seqlens_q, cu_seqlens_k: (N + 1,) int32 for N packed sequences, both or neither. q is then (T, Hq, D), k and v
    (Tk, Hk, D), out (T, Hq, Dv), lse (Hq, T) (with "bhsd" the heads of the first four come first), and sequence i has
    the rows from cu_seqlens[i] to before cu_seqlens[i + 1], which may be none. Masks count within a sequence.
    seqused_q, seqused_k: (N,) or unpacked (B,) int32: how many rows of each sequence count, the first ones. What the
    others hold, NaN included, reaches no result; those of out and lse are not written. On the arrays' device, as
    cu_seqlens. Values out of range are errors where the arrays are the host's; on a GPU nobody reads them before the
    kernel, which takes no rows but those that there are.
    block_table: (N, M) or unpacked (B, M) int32: k and v are then pages, (num_pages, page, Hk, D) and (.., Dv), also
    where q is packed, and the keys of sequence i are the first seqused_k[i] rows of the pages block_table[i, 0],
    block_table[i, 1], ... Entries past the last page in use are not read and may be anything. No cu_seqlens_k then.
    max_ctas: CTAs that a persistent kernel may take at a time, in pairs at least two; None is one for each SM of the
    device.
    q_scale, k_scale, v_scale: what the elements of q, k and v are multiplied by: a number, or fp32 arrays of one
    element or (N, Hk) or unpacked (B, Hk), on the arrays' device; q_scale is that of the query heads of a key head.
    Those of q and k must be > 0, which nobody checks of arrays on a GPU. Score functions see scaled logits.
    out_scale: what O is multiplied by before it is rounded.
    device: "cuda:N", "emulator:sm_100a", "cpu", a Device, or None: OPDECK_DEVICE, else where the arrays are.
    stream: a CUstream address or an object with `cuda_stream` or `__cuda_stream__`; None is the current one.
    variant: the id of the kernel to launch, as `opdeck explain` lists them; None is the first that accepts.

    Scores times softmax_scale may reach 1e8 on a GPU: beyond, the fp32 exponents of a row cannot be told apart, and its
    results may be 0 or NaN.

    Returns out, or (out, lse) with return_lse. A query that sees no key gets O = 0 and LSE = -inf.
    Raises: ArgumentError, ArgumentTypeError (naming argument, got, wanted), Unsupported (a reason a variant).
    """
    for name in unknown:
        raise ArgumentTypeError(name, "an argument that fmha_fwd does not have", _ALIASES.get(name, "one that it has"))
    if mask is not None and not isinstance(mask, AttentionFusion):
        raise ArgumentTypeError(
            "mask",
            repr(mask),
            "None or a Fusion",
            _MASK_HINT,
        )
    if not isinstance(layout, str) or layout not in _LAYOUTS:
        raise ArgumentError("layout", repr(layout), "|".join(_LAYOUTS))
    is_packed, is_paged = cu_seqlens_q is not None, block_table is not None
    if is_paged and cu_seqlens_k is not None:
        raise ArgumentError("cu_seqlens_k", "an array", "None", "block_table says where keys are")
    if is_paged and seqused_k is None:
        raise ArgumentError("seqused_k", None, "an array, as block_table")
    if not is_paged and is_packed != (cu_seqlens_k is not None):
        missing, given = ("cu_seqlens_k", "cu_seqlens_q") if is_packed else ("cu_seqlens_q", "cu_seqlens_k")
        raise ArgumentError(missing, None, f"an array, as {given}", "packed keys go with packed queries")
    order = (_PACKED_LAYOUTS if is_packed else _LAYOUTS)[layout]
    kv_order = _LAYOUTS[layout] if is_paged else order
    q_view = arrays.view(q, "q").permuted(order)
    k_view, v_view = (arrays.view(x, name).permuted(kv_order) for name, x in (("k", k), ("v", v)))
    if mask is not None and not (is_packed or is_paged or seqused_q is not None or seqused_k is not None):
        mask.check_lengths(q_view.shape[1], k_view.shape[1])
    outputs = {"o": OutputSpec(out, q, "out", order, dtype=_out_dtype(q_view, out, out_dtype))}
    if return_lse or lse is not None:
        outputs["lse"] = OutputSpec(lse, q, "lse", (None, 0, 1) if is_packed else (0, 1, 2))
    lengths = {
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "seqused_q": seqused_q,
        "seqused_k": seqused_k,
        "block_table": block_table,
    }
    inputs = {"q": q_view, "k": k_view, "v": v_view}
    inputs |= {name: arrays.view(array, name) for name, array in lengths.items() if array is not None}
    scales = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale}
    scalars = {"softmax_scale": softmax_scale, "out_scale": out_scale, "max_ctas": max_ctas}
    return Request(
        inputs=inputs | _scale_views(inputs, scales),
        outputs=outputs,
        returned=("o", "lse") if return_lse else ("o",),
        scalars=_with_numbers(inputs, scalars, scales),
        # The end of K is every kernel's business: a mask of nothing else is no mask.
        fusion=None if mask == Residual() else mask,
    )


def _out_dtype(q: TensorView, out: Any, out_dtype: str | None) -> str:
    """The canonical name of O's element type."""
    allowed = OUT_DTYPES.get(q.dtype)
    if allowed is None:
        raise ArgumentTypeError("q", f"dtype {q.dtype}", "|".join(OUT_DTYPES))
    want = "|".join(allowed) + (", the dtype of q" if allowed == (q.dtype,) else f", for a q of {q.dtype}")
    named = None if out_dtype is None else dtypes.dtype(out_dtype, "out_dtype").name
    if named not in (None, *allowed):
        raise ArgumentError("out_dtype", repr(out_dtype), want)
    if out is None:
        return named or allowed[0]
    given = arrays.view(out, "out").dtype
    if given not in allowed:
        raise ArgumentTypeError("out", f"dtype {given}", want)
    if named not in (None, given):
        raise ArgumentError("out_dtype", repr(out_dtype), f"{given}, the dtype of out")
    return given


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _scale_views(inputs: Mapping[str, TensorView], scales: Mapping[str, Any]) -> dict[str, TensorView]:
    """Views (N, Hk) of the scales that are arrays; one element is that of all."""
    offsets = inputs.get("cu_seqlens_q")
    num_seqs = inputs["q"].shape[0] if offsets is None else offsets.shape[0] - 1
    views = {}
    for name, scale in scales.items():
        if scale is not None and not _is_number(scale):
            view = arrays.view(scale, name)
            if math.prod(view.shape) == 1:
                view = view._replace(shape=(num_seqs, inputs["k"].shape[2]), strides=(0, 0))
            views[name] = view
    return views


def _with_numbers(
    inputs: Mapping[str, TensorView], scalars: Mapping[str, Any], scales: Mapping[str, Any]
) -> dict[str, Any]:
    """The scalars that are given, with the scales that are numbers in them: of q and k in softmax_scale, of v in
    out_scale."""
    of_q, of_k, of_v = (fp32_number(name, scale) if _is_number(scale) else 1.0 for name, scale in scales.items())
    for name, scale in (("q_scale", of_q), ("k_scale", of_k)):
        if not scale > 0:
            raise ArgumentError(name, scales[name], "> 0")
    softmax_scale = scalars["softmax_scale"]
    if softmax_scale is None and of_q * of_k != 1.0:
        softmax_scale = 1.0 / math.sqrt(max(1, inputs["q"].shape[3]))
    scaled = {"softmax_scale": _times(softmax_scale, of_q * of_k), "out_scale": _times(scalars["out_scale"], of_v)}
    return {name: value for name, value in {**scalars, **scaled}.items() if value is not None}


def _times(value: Any, factor: float) -> Any:
    """The product; of what is no number, or one that no float holds, the value, which whoever takes it refuses."""
    try:
        return float(value) * factor if _is_number(value) else value
    except OverflowError:
        return value
