# SPDX-License-Identifier: Apache-2.0
"""packing.py: elements of 4 and 6 bits in bytes, as GPUs and DLPack keep them.

Who calls it: opdeck.core.mx, arrays.py (as_numpy).
The elements of a row are one little-endian stream of bits: of two FP4 elements in a byte the first is the low nibble,
and four FP6 elements take three bytes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


def _group(bits: int) -> tuple[int, int]:
    """The fewest elements that fill whole bytes, and how many bytes."""
    num_bytes = math.lcm(bits, 8) // 8
    return num_bytes * 8 // bits, num_bytes


def pack(codes: Bytes, bits: int) -> Bytes:
    """Bytes (..., K * bits / 8) of element codes (..., K), the `bits` low bits of each. K fills whole bytes."""
    num_elems, num_bytes = _group(bits)
    groups = codes.reshape(*codes.shape[:-1], -1, num_elems).astype(np.uint32)
    words = np.bitwise_or.reduce(
        (groups & ((1 << bits) - 1)) << (bits * np.arange(num_elems, dtype=np.uint32)), axis=-1
    )
    packed = words[..., None] >> (8 * np.arange(num_bytes, dtype=np.uint32))
    rows: Bytes = packed.astype(np.uint8).reshape(*codes.shape[:-1], -1)
    return rows


def unpack(packed: npt.NDArray[Any], bits: int) -> Bytes:
    """Element codes (..., K) of bytes (..., K * bits / 8)."""
    num_elems, num_bytes = _group(bits)
    groups = packed.view(np.uint8).reshape(*packed.shape[:-1], -1, num_bytes).astype(np.uint32)
    words = np.bitwise_or.reduce(groups << (8 * np.arange(num_bytes, dtype=np.uint32)), axis=-1)
    unpacked = (words[..., None] >> (bits * np.arange(num_elems, dtype=np.uint32))) & ((1 << bits) - 1)
    codes: Bytes = unpacked.astype(np.uint8).reshape(*packed.shape[:-1], -1)
    return codes
