# SPDX-License-Identifier: Apache-2.0
"""scale_layout.py: block scales as a matrix ("linear") and in the tiles that GPUs read ("128x4").

Who calls it: the quantiser, MxTensor, users who hold scales of another library.
Source: the scale layout of cuBLASLt and CUTLASS, torch's SWIZZLE_32_4_4. The scale of row r and block c is in tile
(r // 128, c // 4), at byte (r % 32) * 16 + (r // 32 % 4) * 4 + c % 4 of its 512.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from opdeck.core.mx.formats import SCALE_TILE_BYTES, SCALE_TILE_COLS, SCALE_TILE_ROWS

_TILE_LANES = 32  # rows r, r + 32, r + 64, r + 96 of a tile are neighbours in memory

Array = npt.NDArray[Any]


def tile_scales(linear: Array) -> Array:
    """Tiles (..., row tiles, column tiles, 512) of scales (..., rows, blocks); what pads them is zero bytes."""
    *batch, rows, cols = linear.shape
    row_tiles, col_tiles = -(-rows // SCALE_TILE_ROWS), -(-cols // SCALE_TILE_COLS)
    padded = np.zeros((*batch, row_tiles * SCALE_TILE_ROWS, col_tiles * SCALE_TILE_COLS), np.uint8)
    padded[..., :rows, :cols] = linear.view(np.uint8)
    lanes = SCALE_TILE_ROWS // _TILE_LANES
    split = padded.reshape(*batch, row_tiles, lanes, _TILE_LANES, col_tiles, SCALE_TILE_COLS)
    dims = tuple(range(len(batch)))
    first = len(batch)
    tiles = split.transpose(*dims, first, first + 3, first + 2, first + 1, first + 4)
    return np.ascontiguousarray(tiles).reshape(*batch, row_tiles, col_tiles, SCALE_TILE_BYTES).view(linear.dtype)


def untile_scales(tiles: Array, rows: int, cols: int) -> Array:
    """Scales (..., rows, cols) of tiles (..., row tiles, column tiles, 512)."""
    *batch, row_tiles, col_tiles, _ = tiles.shape
    lanes = SCALE_TILE_ROWS // _TILE_LANES
    split = tiles.view(np.uint8).reshape(*batch, row_tiles, col_tiles, _TILE_LANES, lanes, SCALE_TILE_COLS)
    dims = tuple(range(len(batch)))
    first = len(batch)
    matrix = split.transpose(*dims, first, first + 3, first + 2, first + 1, first + 4)
    linear = matrix.reshape(*batch, row_tiles * SCALE_TILE_ROWS, col_tiles * SCALE_TILE_COLS)[..., :rows, :cols]
    return np.ascontiguousarray(linear).view(tiles.dtype)
