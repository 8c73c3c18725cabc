# SPDX-License-Identifier: Apache-2.0
"""Problems that a grid's y and z, or offsets of 32 bits, could not hold: of such other libraries' users reported."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from opdeck.core import dtypes, registry
from opdeck.core.devices import Device, open_device
from opdeck.core.operator import Operator
from opdeck.core.verify import compare
from opdeck.plugins.fmha_fwd import plugin, reference

TOLERANCE = dtypes.dtype("bf16").tolerance


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("emulator:sm_100a", hazards="strict")


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize(
    ("variant", "max_ctas", "num_ctas"),
    [
        ("fmha_fwd_sm100a_bf16_d64_persistent_none", 2, 257 + 2),  # those that sort come first
        pytest.param("fmha_fwd_sm100a_bf16_d64_none", None, 65537, marks=pytest.mark.full),
    ],
)
def test_batch_times_heads_above_65535(variant: str, max_ctas: int | None, num_ctas: int, device: Device) -> None:
    batch = 65537
    q, k, v = (normal(batch, 1, 1, 64) for _ in range(3))
    out = np.full_like(q, np.nan)
    used = np.zeros(batch, np.int32)  # all but a few have no query, so that this is quick
    used[[0, 65535, 65536]] = 1
    registry.get("fmha_fwd")(q, k, v, out=out, seqused_q=used, max_ctas=max_ctas, variant=variant, device=device)
    report = device.last_report()
    assert report is not None
    assert report.num_ctas == num_ctas
    assert np.array_equal(out[used == 1], v[used == 1])  # of one key
    assert np.isnan(out[used == 0].astype(np.float32)).all()


def test_rows_whose_offsets_pass_32_bits(device: Device) -> None:
    """Packed keys that begin 2^31 elements behind those of an empty sequence; that memory is reserved, not touched."""
    first_row, sq, sk = 1 << 25, 130, 140
    q, out = normal(sq, 2, 64), np.full((sq, 2, 64), np.nan, ml_dtypes.bfloat16)
    k, v = (np.empty((first_row + sk, 1, 64), ml_dtypes.bfloat16) for _ in range(2))
    k[first_row:], v[first_row:] = normal(sk, 1, 64), normal(sk, 1, 64)
    cu_seqlens_q, cu_seqlens_k = (np.array([0, *ends], np.int32) for ends in ((0, sq), (first_row, first_row + sk)))
    _, lse = registry.get("fmha_fwd")(
        *(q, k, v), out=out, return_lse=True, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, device=device
    )
    far = slice(first_row, first_row + sk)
    want_o, want_lse = reference.forward(q[None], k[None, far], v[None, far], None, 64**-0.5)
    assert TOLERANCE is not None
    assert compare(out[None], want_o).within(TOLERANCE)
    assert compare(lse[None], want_lse).within(TOLERANCE)


@pytest.mark.parametrize("schedule", ["individual", "persistent", "dynamic"])
@pytest.mark.parametrize(
    ("lengths", "clamped"),
    [
        ({"seqused_q": (-1, 999), "seqused_k": (999, 130)}, {"seqused_q": (0, 300), "seqused_k": (300, 130)}),
        (
            {"cu_seqlens_q": (300, 130, 290), "cu_seqlens_k": (0, 70, 999)},
            {"cu_seqlens_q": (130, 130, 290), "cu_seqlens_k": (0, 70, 300)},
        ),
    ],
    ids=["used", "packed"],
)
def test_lengths_that_nobody_checks_lead_nowhere_else(
    lengths: dict[str, tuple[int, ...]], clamped: dict[str, tuple[int, ...]], schedule: str, device: Device
) -> None:
    """As on a GPU, where the host does not read them."""
    unchecked = Operator(replace(plugin.opdeck_operators()[0], check_values=None))
    is_packed = "cu_seqlens_q" in lengths
    q, k, v = (normal(1 if is_packed else 2, 300, 1, 64) for _ in range(3))
    out = np.full_like(q, np.nan)
    words = ("fmha_fwd_sm100a_bf16_d64", *({schedule} - {"individual"}), "none")
    arrays = {name: np.array(values, np.int32) for name, values in lengths.items()}
    call = (x[0] if is_packed else x for x in (q, k, v))
    unchecked(*call, **arrays, out=out[0] if is_packed else out, variant="_".join(words), max_ctas=2, device=device)
    options = {name: np.array(values, np.int32) for name, values in clamped.items()}
    want, magnitude = (reference.forward(q, k, values, None, 64**-0.5, options)[0] for values in (v, abs(v)))
    is_used = ~np.isnan(want)
    assert np.array_equal(np.isnan(out.astype(np.float32)), ~is_used)
    # Rows of few keys: P and O are each rounded once, by a part of the weighted values' and of O's own magnitude.
    rounded = float(ml_dtypes.finfo(ml_dtypes.bfloat16).eps) / 2
    assert (abs(out.astype(np.float64) - want) <= rounded * (magnitude + abs(want)))[is_used].all()
    assert TOLERANCE is not None
    assert compare(out[is_used], want[is_used]).within(replace(TOLERANCE, mean_abs=np.inf))
