# SPDX-License-Identifier: Apache-2.0
"""Every wrong argument of fmha_fwd is refused with its name, what it got and what it wants, and touches no output."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from opdeck.core import registry
from opdeck.core.errors import ArgumentError, ArgumentTypeError, OpdeckError

BF16 = ml_dtypes.bfloat16


def arguments() -> dict[str, Any]:
    """A right call."""
    q = np.ones((2, 16, 4, 64), BF16)
    k = np.ones((2, 24, 2, 64), BF16)
    return {"q": q, "k": k, "v": k.copy(), "out": np.full(q.shape, 7, BF16), "lse": np.full((2, 4, 16), 7, np.float32)}


def strided(shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    """An array of zeros with these strides in elements."""
    return np.lib.stride_tricks.as_strided(np.zeros(1 << 16, BF16), shape, [2 * stride for stride in strides])


def read_only() -> np.ndarray:
    array = np.zeros((2, 16, 4, 64), BF16)
    array.flags.writeable = False
    return array


WRONG: list[tuple[dict[str, Any] | Callable[[], dict[str, Any]], type[OpdeckError], str]] = [
    ({"q": None}, ArgumentTypeError, "q: got NoneType, want a numpy array, a torch tensor"),
    ({"q": [1.0]}, ArgumentTypeError, "q: got list, want a numpy array"),
    ({"q": np.zeros((2, 16, 4, 64))}, ArgumentTypeError, "q: got dtype float64, want fp16|bf16"),
    ({"q": np.zeros((2, 16, 4, 64), np.float32)}, ArgumentTypeError, "q: got dtype fp32, want fp16|bf16"),
    ({"k": np.zeros((2, 24, 2, 64), np.float16)}, ArgumentTypeError, "k: got dtype fp16, want bf16, the dtype of q"),
    ({"q": np.zeros((2, 16, 64), BF16)}, ArgumentError, "q: got 3 dims (2, 16, 64), want 4 dims"),
    (
        {"k": np.zeros((3, 24, 2, 64), BF16)},
        ArgumentError,
        "k: got b = 3 in shape (3, 24, 2, 64), want b = 2, as q has",
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
    ({"lse": np.zeros((2, 4, 16), np.float64)}, ArgumentTypeError, "lse: got dtype float64, want fp16|"),
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
    ({"mask": "causal"}, ArgumentTypeError, "mask: got 'causal', want None or a Mask (such as Causal()"),
    ({"mask": True}, ArgumentTypeError, "mask: got True, want None or a Mask"),
    ({"layout": "sbhd"}, ArgumentError, "layout: got 'sbhd', want bshd|bhsd"),
    ({"device": "cuda"}, ArgumentError, "device: got 'cuda', want cuda:N|"),
    ({"causal": True}, ArgumentTypeError, "causal: got an argument that fmha_fwd does not have, want mask=Causal()"),
    ({"sm_scale": 1.0}, ArgumentTypeError, "sm_scale: got an argument that fmha_fwd does not have, want softmax_scale"),
    ({"colour": 1}, ArgumentTypeError, "colour: got an argument that fmha_fwd does not have, want one that it has"),
]


@pytest.mark.parametrize(("changes", "kind", "message"), WRONG, ids=[message[:40] for _, _, message in WRONG])
def test_wrong_argument_is_named(changes: Any, kind: type[OpdeckError], message: str) -> None:
    wrong = changes() if callable(changes) else changes
    call = {**arguments(), **wrong}
    with pytest.raises(kind, match=re.escape(message)):
        registry.get("fmha_fwd")(**call)
    for name in {"out", "lse"} - wrong.keys():
        assert (call[name] == 7).all()


def test_the_right_call_is_right() -> None:
    call = arguments()
    registry.get("fmha_fwd")(**call)
    assert (call["out"] == 1).all()


def test_errors_are_standard_exceptions_too() -> None:
    assert issubclass(ArgumentError, ValueError)
    assert issubclass(ArgumentTypeError, TypeError)
    error = ArgumentError.from_text("q: got 96, want 64|128")
    assert (error.argument, error.got, error.want) == ("q", "96", "64|128")
