# SPDX-License-Identifier: Apache-2.0
"""Every wrong argument of fmha_fwd is refused with its name, what it got and what it wants, and touches no output."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest

from opdeck.core import registry
from opdeck.core.devices import open_device
from opdeck.core.errors import ArgumentError, ArgumentTypeError, OpdeckError
from opdeck.core.fusion import (
    Alibi,
    Bias,
    Causal,
    Document,
    Extent,
    Int32Leaf,
    IntervalMask,
    PrefixLM,
    Sink,
    Softcap,
    block_sparse,
)
from opdeck.core.fusion import Window as BuiltInWindow

BF16 = ml_dtypes.bfloat16
SPARSE = block_sparse(Causal(), Extent(1, 1, 16, 24))
DECREASING_SPANS = np.tile(np.array([0, 7], np.int32), (2, 16, 1))
DECREASING_SPANS[1, 3, 1] = 6


def arguments() -> dict[str, Any]:
    """A right call."""
    q = np.ones((2, 16, 4, 64), BF16)
    k = np.ones((2, 24, 2, 64), BF16)
    return {"q": q, "k": k, "v": k.copy(), "out": np.full(q.shape, 7, BF16), "lse": np.full((2, 4, 16), 7, np.float32)}


def packed(**changes: Any) -> dict[str, Any]:
    """A right call with packed sequences, changed."""
    call = {name: array[0] for name, array in arguments().items()}
    return call | {"cu_seqlens_q": int32(0, 9, 16), "cu_seqlens_k": int32(0, 24, 24)} | changes


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def strided(shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    """An array of zeros with these strides in elements."""
    return np.lib.stride_tricks.as_strided(np.zeros(1 << 16, BF16), shape, [2 * stride for stride in strides])


def read_only() -> np.ndarray:
    array = np.zeros((2, 16, 4, 64), BF16)
    array.flags.writeable = False
    return array


class Exports:
    """An object whose export by DLPack gives `capsule`, or raises it."""

    def __init__(self, capsule: object) -> None:
        self.capsule = capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_: object) -> object:
        if isinstance(self.capsule, Exception):
            raise self.capsule
        return self.capsule


@dataclass(frozen=True)
class Window(IntervalMask):
    """For wrong values of its leaf and of its static field."""

    width: Int32Leaf = 4
    side: Any = "left"
    name: ClassVar[str] = "test.window"


def fp8(**changes: Any) -> dict[str, Any]:
    """A right call with elements of 8 bits, changed."""
    call = {name: np.ones(arguments()[name].shape, ml_dtypes.float8_e4m3fn) for name in ("q", "k", "v")}
    return call | changes


def float32(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def overlapping(step: int) -> dict[str, Any]:
    """q and out in one buffer, out `step` elements behind q."""
    buffer = np.zeros(2 * 2 * 16 * 4 * 64, BF16)
    q, out = (buffer[begin : begin + 2 * 16 * 4 * 64].reshape(2, 16, 4, 64) for begin in (0, step))
    return {"q": q, "out": out}


PAGES = np.ones((2, 12, 2, 64), BF16)


def paged(**changes: Any) -> dict[str, Any]:
    """A right call with packed queries and keys in pages, changed."""
    call = {"k": PAGES, "v": PAGES, "cu_seqlens_k": None, "seqused_k": int32(1, 2)}
    return packed(block_table=int32(0, 1).reshape(2, 1), **call) | changes


LENGTHS: list[tuple[dict[str, Any], type[OpdeckError], str]] = [
    ({"cu_seqlens_q": int32(0, 16)}, ArgumentError, "cu_seqlens_k: got None, want an array, as cu_seqlens_q (packed"),
    (packed(cu_seqlens_q=None), ArgumentError, "cu_seqlens_q: got None, want an array, as cu_seqlens_k (packed"),
    (packed(q=np.ones((1, 16, 4, 64), BF16)), ArgumentError, "q: got 4 dims (1, 16, 4, 64), want 3 dims"),
    (packed(cu_seqlens_k=int32(0, 4)), ArgumentError, "cu_seqlens_k: got num_offsets = 2 in shape (2,), want"),
    (packed(cu_seqlens_q=int32(), cu_seqlens_k=int32()), ArgumentError, "cu_seqlens_q: got num_offsets = 0, want >= 1"),
    (packed(cu_seqlens_q=np.array([0, 9, 16])), ArgumentTypeError, "cu_seqlens_q: got dtype int64, want int32"),
    (packed(seqused_k=int32(1)), ArgumentError, "seqused_k: got num_seqs = 1, want num_offsets - 1 = 2"),
    (
        packed(seqused_q=int32(1), seqused_k=int32(1, 2)),
        ArgumentError,
        "seqused_q: got num_seqs = 1, want num_offsets - 1 = 2",
    ),
    (
        packed(seqused_q=int32(1, 2), seqused_k=int32(1)),
        ArgumentError,
        "seqused_k: got num_seqs = 1 in shape (1,), want num_seqs = 2, as seqused_q has",
    ),
    (
        {"seqused_q": int32(1, 2, 3), "seqused_k": int32(1, 2)},
        ArgumentError,
        "seqused_q: got num_seqs = 3, want b = 2",
    ),
    (
        paged(block_table=int32(0, 1, 0).reshape(3, 1)),
        ArgumentError,
        "block_table: got num_seqs = 3 in shape (3, 1), want num_seqs = 2, as seqused_k has",
    ),
    (paged(seqused_k=int32(1)), ArgumentError, "seqused_k: got num_seqs = 1, want num_offsets - 1 = 2"),
    ({"seqused_q": int32(1, 2, 3)}, ArgumentError, "seqused_q: got num_seqs = 3, want b = 2"),
    (
        {"seqused_q": int32(1, 2), "seqused_k": int32(1)},
        ArgumentError,
        "seqused_k: got num_seqs = 1 in shape (1,), want",
    ),
    (
        {"block_table": int32(0, 1).reshape(2, 1)},
        ArgumentError,
        "seqused_k: got None, want an array, as block_table",
    ),
    (
        packed(block_table=int32(0, 1).reshape(2, 1)),
        ArgumentError,
        "cu_seqlens_k: got an array, want None (block_table says where keys are)",
    ),
    (
        {"block_table": int32(0).reshape(1, 1), "seqused_k": int32(1)},
        ArgumentError,
        "seqused_k: got num_seqs = 1, want b = 2",
    ),
    (
        {"block_table": int32().reshape(2, 0), "seqused_k": int32(0, 0)},
        ArgumentError,
        "block_table: got max_pages = 0, want >= 1",
    ),
    (
        {"block_table": int32(0, 1), "seqused_k": int32(1, 1)},
        ArgumentError,
        "block_table: got 1 dims (2,), want 2 dims (num_seqs, max_pages)",
    ),
    (
        packed(cu_seqlens_q=int32(0, 16, 9)),
        ArgumentError,
        "cu_seqlens_q: got 9 behind 16, as the end of sequence 1, want",
    ),
    (
        packed(cu_seqlens_k=int32(0, 9, 25)),
        ArgumentError,
        "cu_seqlens_k: got 0 .. 25, want within 0 .. 24, the rows of k",
    ),
    (packed(cu_seqlens_q=int32(-1, 9, 16)), ArgumentError, "cu_seqlens_q: got -1 .. 16, want within 0 .. 16, the rows"),
    (
        packed(seqused_q=int32(9, 8)),
        ArgumentError,
        "seqused_q: got 8 for sequence 1, want 0 .. 7, the rows that it has",
    ),
    (
        {"seqused_k": int32(-1, 8)},
        ArgumentError,
        "seqused_k: got -1 for sequence 0, want 0 .. 24, the rows that it has",
    ),
    (
        {"block_table": int32(0, 1, 1, 0).reshape(2, 2), "seqused_k": int32(9, 49)},
        ArgumentError,
        "seqused_k: got 49 for sequence 1, want 0 .. 48, the rows that it has",
    ),
    (
        {"block_table": int32(1, -1, 0, 2).reshape(2, 2), "seqused_k": int32(24, 25)},
        ArgumentError,
        "block_table: got page 2 at 1 of sequence 1, want less than 2, the pages of k, and at least 0",
    ),
    (
        {"page_table": int32(0, 1)},
        ArgumentTypeError,
        "page_table: got an argument that fmha_fwd does not have, want block_table",
    ),
    (
        {"max_seqlen_q": 9},
        ArgumentTypeError,
        "max_seqlen_q: got an argument that fmha_fwd does not have, want no bound",
    ),
]
TYPES_AND_SCALES: list[tuple[dict[str, Any], type[OpdeckError], str]] = [
    (fp8(k=np.ones((2, 24, 2, 64), ml_dtypes.float8_e5m2)), ArgumentTypeError, "k: got dtype fp8_e5m2, want fp8_e4m3"),
    (fp8(out=np.ones((2, 16, 4, 64), np.float32)), ArgumentTypeError, "out: got dtype fp32, want bf16|fp16|fp8_e4m3"),
    (fp8(out_dtype="fp16"), ArgumentError, "out_dtype: got 'fp16', want bf16, the dtype of out"),
    (fp8(out=None, out_dtype="fp32"), ArgumentError, "out_dtype: got 'fp32', want bf16|fp16|fp8_e4m3, for a q of fp8"),
    (fp8(out=None, out_dtype=["bf16"]), ArgumentError, "out_dtype: got ['bf16'], want fp16|"),
    (fp8(out=None, out_dtype="half2"), ArgumentError, "out_dtype: got 'half2', want fp16|"),
    ({"out": None, "out_dtype": "fp16"}, ArgumentError, "out_dtype: got 'fp16', want bf16, the dtype of q"),
    (fp8(q_scale=float32(2, 4)), ArgumentError, "q_scale: got hk = 4 in shape (2, 4), want hk = 2, as k has"),
    (fp8(v_scale=float32(3, 2)), ArgumentError, "v_scale: got num_seqs = 3, want b = 2"),
    (fp8(k_scale=float32(2)), ArgumentError, "k_scale: got 1 dims (2,), want 2 dims (num_seqs, hk)"),
    (fp8(k_scale=np.ones((2, 2))), ArgumentTypeError, "k_scale: got dtype float64, want fp32"),
    (fp8(k_scale=np.ones((2, 2), np.float16)), ArgumentTypeError, "k_scale: got dtype fp16, want fp32"),
    (fp8(q_scale=0), ArgumentError, "q_scale: got 0, want > 0"),
    (fp8(k_scale=-1.5), ArgumentError, "k_scale: got -1.5, want > 0"),
    (fp8(v_scale="2"), ArgumentTypeError, "v_scale: got str, want"),
    (fp8(out_scale="2"), ArgumentTypeError, "out_scale: got '2', want a number"),
    (fp8(v_scale=float("inf")), ArgumentError, "v_scale: got inf, want a finite number"),
    (fp8(q_scale=10**400), ArgumentError, "q_scale: got a larger one than floats are, want a finite number"),
    (fp8(v_scale=10**400), ArgumentError, "v_scale: got a larger one than floats are, want a finite number"),
    (fp8(k_scale=1e-60), ArgumentError, "k_scale: got 1e-60, want > 0"),
    (fp8(q_scale=np.array([[1, 2], [0.5, 0]], np.float32)), ArgumentError, "q_scale: got 0.0 at [1, 1], want finite"),
    (fp8(k_scale=-float32(1)), ArgumentError, "k_scale: got -1.0 at [0, 0], want finite numbers > 0"),
    (fp8(v_scale=float32(2, 2) * np.nan), ArgumentError, "v_scale: got nan at [0, 0], want finite numbers"),
    (fp8(q_descale=1.0), ArgumentTypeError, "q_descale: got an argument that fmha_fwd does not have, want q_scale"),
]
WRONG: list[tuple[dict[str, Any] | Callable[[], dict[str, Any]], type[OpdeckError], str]] = [
    ({"q": None}, ArgumentTypeError, "q: got NoneType, want a numpy array, a torch tensor"),
    ({"q": [1.0]}, ArgumentTypeError, "q: got list, want a numpy array"),
    ({"q": np.zeros((2, 16, 4, 64))}, ArgumentTypeError, "q: got dtype float64, want fp16|bf16|fp8_e4m3|fp8_e5m2"),
    ({"q": np.zeros((2, 16, 4, 64), np.float32)}, ArgumentTypeError, "q: got dtype fp32, want fp16|bf16"),
    ({"k": np.zeros((2, 24, 2, 64), np.float16)}, ArgumentTypeError, "k: got dtype fp16, want bf16, the dtype of q"),
    ({"q": np.zeros((2, 16, 64), BF16)}, ArgumentError, "q: got 3 dims (2, 16, 64), want 4 dims"),
    (
        {"k": np.zeros((3, 24, 2, 64), BF16), "v": np.zeros((3, 24, 2, 64), BF16)},
        ArgumentError,
        "k: got b_kv = 3, want b = 2",
    ),
    ({"k": np.zeros((2, 24, 2, 32), BF16)}, ArgumentError, "k: got dqk = 32"),
    ({"v": np.zeros((2, 25, 2, 64), BF16)}, ArgumentError, "v: got sk = 25 in shape (2, 25, 2, 64), want sk = 24"),
    ({"v": np.zeros((2, 24, 1, 64), BF16)}, ArgumentError, "v: got hk = 1"),
    (
        {"q": np.zeros((2, 16, 3, 64), BF16), "out": None, "lse": None},
        ArgumentError,
        "q: got hq = 3, want a multiple of hk = 2",
    ),
    (
        {"out": np.zeros((2, 16, 4, 64), np.float16)},
        ArgumentTypeError,
        "out: got dtype fp16, want bf16, the dtype",
    ),
    ({"out": np.zeros((2, 15, 4, 64), BF16)}, ArgumentError, "out: got sq = 15"),
    ({"lse": np.zeros((2, 4, 16), np.float64)}, ArgumentTypeError, "lse: got dtype float64, want fp32"),
    ({"lse": np.zeros((2, 4, 16), BF16)}, ArgumentTypeError, "lse: got dtype bf16, want fp32"),
    ({"lse": np.zeros((2, 16, 4), np.float32)}, ArgumentError, "lse: got hq = 16 in shape (2, 16, 4), want hq = 4"),
    (lambda: {"out": read_only()}, ArgumentError, "out: got a read-only array, want one that may be written to"),
    (
        lambda: {"out": strided((2, 16, 4, 64), (4096, 256, 32, 1))},
        ArgumentError,
        "out: got shape (2, 16, 4, 64) with strides (4096, 256, 32, 1), want elements that do not overlap",
    ),
    (
        lambda: {"q": strided((2, 16, 4, 64), (8192, 512, 128, 2))},
        ArgumentError,
        "q: got a stride of 2 elements in dim dqk, want 1",
    ),
    (
        lambda: {"q": strided((2, 16, 4, 64), (8192, 260, 64, 1))},
        ArgumentError,
        "q: got a stride of 260 elements in dim sq, want a multiple of 16 bytes",
    ),
    (
        lambda: {"k": strided((2, 24, 2, 64), (4096, 128, 0, 1))},
        ArgumentError,
        "k: got a stride of 0 elements in dim hk, want > 0",
    ),
    (
        lambda: {"q": arguments()["q"][:, ::-1]},
        ArgumentError,
        "q: got a stride of -256 elements in dim sq, want > 0",
    ),
    (lambda: {"q": np.zeros((2, 16, 4, 72), BF16)[..., 1:65]}, ArgumentError, "q: got data at address 0x"),
    ({"softmax_scale": 0.0}, ArgumentError, "softmax_scale: got 0, want > 0"),
    ({"softmax_scale": float("nan")}, ArgumentError, "softmax_scale: got nan, want a finite number"),
    ({"softmax_scale": "auto"}, ArgumentTypeError, "softmax_scale: got 'auto', want a number"),
    ({"softmax_scale": "0.5"}, ArgumentTypeError, "softmax_scale: got '0.5', want a number"),
    ({"softmax_scale": True}, ArgumentTypeError, "softmax_scale: got True, want a number"),
    ({"softmax_scale": 10**400}, ArgumentError, "softmax_scale: got a larger one than floats are, want a finite"),
    ({"softmax_scale": 1e39}, ArgumentError, "softmax_scale: got 1e+39, want a finite number of fp32"),
    ({"softmax_scale": 1e-50}, ArgumentError, "softmax_scale: got 0, want > 0"),
    ({"q": Exports(None)}, ArgumentTypeError, "q: got Exports whose export by DLPack fails: PyCapsule_GetPointer"),
    ({"q": Exports(BufferError("busy"))}, ArgumentTypeError, "q: got Exports whose export by DLPack fails: busy, want"),
    ({"q": np.ma.masked_all((2, 16, 4, 64), BF16)}, ArgumentTypeError, "q: got a masked array, want a numpy array"),
    (lambda: overlapping(0), ArgumentError, "out: got the memory of q, want memory of its own"),
    (lambda: overlapping(64), ArgumentError, "out: got the memory of q, want memory of its own"),
    ({"mask": Window(1.5)}, ArgumentTypeError, "test.window.width: got 1.5, want an int"),
    ({"mask": Window(1 << 31)}, ArgumentError, "test.window.width: got 2147483648, want an int of 32 bits"),
    ({"mask": Window(side=[1])}, ArgumentTypeError, "test.window.side: got list, want an int, bool, enum, str"),
    ({"mask": Window(side=0.5)}, ArgumentTypeError, "test.window.side: got float, want an int, bool, enum, str"),
    (
        {"mask": Alibi(np.zeros(2, np.float32))},
        ArgumentError,
        "alibi.slopes: got 2 in dim 1 of shape (1, 2), want num_heads = 4",
    ),
    (
        {"mask": Causal() & Bias(np.zeros((3, 4, 16, 24), np.float32))},
        ArgumentError,
        "bias.bias: got 3 in dim 0 of shape (3, 4, 16, 24), want batch = 2|1",
    ),
    (
        {"mask": block_sparse(Causal(), Extent(1, 1, 17, 24))},
        ArgumentError,
        "mask: got a block_sparse of 17 queries and 24 keys, want one for the call's 16 and 24",
    ),
    (
        {"mask": SPARSE.replace(tiles=np.zeros((1, 1, 1, 2), np.int32))},
        ArgumentError,
        "block_sparse.tiles: got 2 in dim 3 of shape (1, 1, 1, 2), want k_tiles = 1",
    ),
    (
        {"mask": SPARSE.replace(ranges=np.zeros((3, 1, 1, 4), np.int32))},
        ArgumentError,
        "block_sparse.ranges: got 3 in dim 0 of shape (3, 1, 1, 4), want batch = 2|1",
    ),
    (
        {"mask": SPARSE.replace(lengths=np.array([[16, 24]], np.int64))},
        ArgumentTypeError,
        "block_sparse.lengths: got dtype int64, want int32",
    ),
    ({"mask": Bias(np.zeros((1, 1, 1, 23), BF16))}, ArgumentError, "bias.bias: got 23 in dim 3"),
    ({"mask": Bias(np.zeros((1, 24), BF16))}, ArgumentError, "bias.bias: got 2 dims (1, 24), want 4 dims"),
    ({"mask": Document(np.zeros((2, 16, 3), np.int32))}, ArgumentError, "document.spans: got 3 in dim 2"),
    (
        {"mask": Document(DECREASING_SPANS) & Causal()},
        ArgumentError,
        "document.spans: got 6 at [1, 3, 1], behind 7, want bounds that never decrease with q",
    ),
    ({"mask": PrefixLM(np.zeros(2, np.int64))}, ArgumentTypeError, "prefix_lm.lengths: got dtype int64, want int32"),
    ({"mask": Sink(np.zeros(5, np.float32))}, ArgumentError, "sink.logits: got 5 in dim 0 of shape (5,)"),
    ({"mask": Softcap("50")}, ArgumentTypeError, "softcap.cap: got '50', want a number"),
    ({"mask": Softcap(None)}, ArgumentTypeError, "softcap.cap: got None, want a number"),
    ({"mask": Causal() & Sink(None)}, ArgumentTypeError, "sink.logits: got None, want an array"),
    ({"mask": BuiltInWindow(1.5, 0)}, ArgumentTypeError, "window.left: got 1.5, want an int"),
    ({"mask": "causal"}, ArgumentTypeError, "mask: got 'causal', want None or a Fusion (Causal(), score_mod(fn, aux)"),
    ({"mask": True}, ArgumentTypeError, "mask: got True, want None or a Fusion"),
    ({"layout": "sbhd"}, ArgumentError, "layout: got 'sbhd', want bshd|bhsd"),
    ({"device": "cuda"}, ArgumentError, "device: got 'cuda', want cuda:N|"),
    ({"device": 0}, ArgumentTypeError, "device: got 0, want a device string or a Device"),
    ({"causal": True}, ArgumentTypeError, "causal: got an argument that fmha_fwd does not have, want mask=Causal()"),
    ({"sm_scale": 1.0}, ArgumentTypeError, "sm_scale: got an argument that fmha_fwd does not have, want softmax_scale"),
    ({"max_ctas": 0}, ArgumentError, "max_ctas: got 0, want >= 1"),
    ({"max_ctas": 1.5}, ArgumentTypeError, "max_ctas: got 1.5, want an int"),
    ({"variant": "fmha"}, ArgumentError, "variant: got 'fmha', want the id of a variant of fmha_fwd"),
    ({"colour": 1}, ArgumentTypeError, "colour: got an argument that fmha_fwd does not have, want one that it has"),
]
ALL_WRONG = WRONG + LENGTHS + TYPES_AND_SCALES


@pytest.mark.parametrize(("changes", "kind", "message"), ALL_WRONG, ids=[row[2][:40] for row in ALL_WRONG])
def test_wrong_argument_is_named(changes: Any, kind: type[OpdeckError], message: str) -> None:
    wrong = changes() if callable(changes) else changes
    call = {**arguments(), **wrong}
    with pytest.raises(kind, match=re.escape(message)):
        registry.get("fmha_fwd")(**call)
    for name in {"out", "lse"} - wrong.keys():
        assert (call[name] == 7).all()


@pytest.mark.parametrize(
    ("wrong", "kind", "message"),
    [
        ({"name": None}, ArgumentTypeError, "device: got None, want a device string"),
        ({"name": "emulator:sm_90a", "schedule": 5}, ArgumentTypeError, "schedule: got 5, want a str or None"),
        ({"name": "emulator:sm_90a", "hazards": []}, ArgumentTypeError, "hazards: got [], want a str or None"),
        ({"name": "emulator:sm_90a", "schedule": "late"}, ArgumentError, 'schedule: got "late", want eager|lazy|'),
        ({"name": "emulator:sm_90a", "hazards": "maybe"}, ArgumentError, "hazards: got 'maybe', want on|off|strict"),
    ],
)
def test_wrong_device_is_named(wrong: dict[str, Any], kind: type[OpdeckError], message: str) -> None:
    with pytest.raises(kind, match=f"^{re.escape(message)}"):
        open_device(**wrong)


def test_the_right_call_is_right() -> None:
    call = arguments()
    registry.get("fmha_fwd")(**call)
    assert (call["out"] == 1).all()


def test_errors_are_standard_exceptions_too() -> None:
    assert issubclass(ArgumentError, ValueError)
    assert issubclass(ArgumentTypeError, TypeError)
    error = ArgumentError.from_text("q: got 96, want 64|128")
    assert (error.argument, error.got, error.want) == ("q", "96", "64|128")
