# SPDX-License-Identifier: Apache-2.0
"""report.py: what a block-scaled format costs and saves: bytes, and how far its numbers are from the originals.

Who calls it: `opdeck mx report`, users.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from opdeck.core import transfer
from opdeck.core.mx.quantize import exact_values
from opdeck.core.mx.tensor import MxTensor


@dataclass(frozen=True)
class Accuracy:
    """How far the numbers of a tensor are from those that it was made of.

    max_abs: largest |error|. relative: that over the largest |number|. snr_db: signal to noise, 10 log10 of the ratio
    of powers. block_snr_db: the same of each block of the format, (..., rows, K / block); infinite where there is no
    error, NaN where a block is zero.
    """

    max_abs: float
    relative: float
    snr_db: float
    block_snr_db: npt.NDArray[np.float64]

    @property
    def worst_block_snr_db(self) -> float:
        """Of the blocks that are not zero; infinite when all are."""
        known = self.block_snr_db[~np.isnan(self.block_snr_db)]
        return float(known.min()) if known.size else math.inf


def accuracy(tensor: MxTensor, original: Any) -> Accuracy:
    """Compares a tensor with the finite numbers, of its shape, that it was quantised from."""
    wanted = transfer.to_numpy(original).astype(np.float64)
    if wanted.shape != tensor.shape:
        raise ValueError(f"original: got shape {wanted.shape}, want {tensor.shape}")
    errors = exact_values(tensor) - wanted
    largest, max_abs = float(np.abs(wanted).max(initial=0.0)), float(np.abs(errors).max(initial=0.0))
    blocks = (*wanted.shape[:-1], -1, tensor.format.block)
    return Accuracy(
        max_abs=max_abs,
        relative=max_abs / largest if largest > 0.0 else 0.0,
        snr_db=float(_snr_db((wanted**2).sum(), (errors**2).sum())),
        block_snr_db=_snr_db((wanted**2).reshape(blocks).sum(axis=-1), (errors**2).reshape(blocks).sum(axis=-1)),
    )


def _snr_db(signal: Any, noise: Any) -> npt.NDArray[np.float64]:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios: npt.NDArray[np.float64] = 10.0 * np.log10(np.asarray(signal) / np.asarray(noise))
    return np.where(np.asarray(signal) > 0.0, ratios, np.nan)
