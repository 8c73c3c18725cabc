# SPDX-License-Identifier: Apache-2.0
"""mx_quantize: a thread encodes a block, a CTA the 128 x 4 blocks of a tile of scales.

Called by: the variant rows of the family, through `make`.
Limits: rows of x begin at multiples of 16 bytes, rows of elements under a byte at multiples of 32; K a multiple of 32.
What pads a tile of scales is written as zeros. Bound by memory: blocks are read and written as vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint8, Uint32

from opdeck.core.kernels.block_encoder import BLACKWELL, HOPPER, Arithmetic, BlockEncoder, inverse_of
from opdeck.core.mx.formats import SCALE_TILE_COLS, SCALE_TILE_ROWS, MxFormat, mx_format
from opdeck.core.variant import Variant

NUM_THREADS = SCALE_TILE_ROWS * SCALE_TILE_COLS
ALIGN_BYTES = 16
_TILE_LANES = 32  # rows r, r + 32, r + 64, r + 96 of a tile are neighbours in memory


def make(variant: Variant) -> Callable[..., None]:
    """The @cute.jit entry of a variant: entry(x, d, d_block_scale, d_scale, stream)."""
    arithmetic = HOPPER if variant.arch == "sm_90a" else BLACKWELL
    quantizer = Quantizer(mx_format(str(variant.config["format"])), arithmetic)

    @cute.kernel
    def kernel(tensors: Tensors, unit: Float32) -> None:
        quantizer.run_cta(tensors, unit)

    @cute.jit
    def entry(x, d, d_block_scale, d_scale, stream):  # type: ignore[no-untyped-def]
        num_batches, row_tiles, block_tiles = (Int32(d_block_scale.shape[i]) for i in range(3))
        kernel(Tensors(x, d, d_block_scale), d_scale).launch(
            grid=(num_batches * row_tiles * block_tiles, 1, 1), block=(NUM_THREADS, 1, 1), stream=stream
        )

    for function in (kernel, entry):
        function.set_name_prefix(f"opdeck_{variant.id}", remove_cutlass_symbol=True, keep_mangled_name=False)
    return entry


@dataclass(frozen=True)
class Tensors:
    """x and elements d (L, M, K), scales (L, tiles along M, tiles along K, 512)."""

    x: cute.Tensor
    d: cute.Tensor
    scales: cute.Tensor


@dataclass(frozen=True)
class Place:
    """A block: its row, which of the row it is, and the batch."""

    batch: Any
    row: Any
    block: Any


class Quantizer:
    """The kernel of one format."""

    def __init__(self, row: MxFormat, arithmetic: Arithmetic) -> None:
        self.row = row
        self.arithmetic = arithmetic

    @cute.jit
    def run_cta(self, tensors: Tensors, unit: Float32) -> None:
        """Kernel body: the CTA's tile of scales and its blocks."""
        _, row_tiles, block_tiles, _ = tensors.scales.shape
        tile, thread = cute.arch.block_idx()[0], cute.arch.thread_idx()[0]
        tile_row, block_tile = tile // Int32(block_tiles), tile % Int32(block_tiles)
        batch, row_tile = tile_row // Int32(row_tiles), tile_row % Int32(row_tiles)
        row, column = thread // SCALE_TILE_COLS, thread % SCALE_TILE_COLS
        place = Place(batch, row_tile * SCALE_TILE_ROWS + row, block_tile * SCALE_TILE_COLS + column)
        _, num_rows, k = tensors.x.shape
        code = Uint32(0)
        if place.row < num_rows and place.block * self.row.block < k:
            code = self.encode(tensors, place, unit)
        first = row % _TILE_LANES * (SCALE_TILE_ROWS // _TILE_LANES * SCALE_TILE_COLS) + row // _TILE_LANES * 4 + column
        scale_bytes = cute.recast_ptr(tensors.scales[batch, row_tile, block_tile, None].iterator, dtype=Uint8)
        cute.make_tensor(scale_bytes + first, cute.make_layout(1))[0] = Uint8(code)

    @cute.jit
    def encode(self, tensors: Tensors, place: Place, unit: Float32) -> Uint32:
        """Writes the elements of a block; returns the byte of its scale."""
        x, elems = tensors.x, self.row.block
        source = x[place.batch, place.row, None].iterator + Int64(place.block) * elems
        block = cute.make_tensor(source.align(ALIGN_BYTES), cute.make_layout(elems))
        loaded = cute.make_rmem_tensor(cute.make_layout(elems), x.element_type)
        cute.autovec_copy(block, loaded)
        values = cute.make_rmem_tensor(cute.make_layout(elems), Float32)
        values.store(loaded.load().to(Float32))
        encoded = BlockEncoder(self.row, inverse_of(unit), self.arithmetic).encode(values)
        words = cute.make_rmem_tensor(cute.make_layout(len(encoded.words)), Uint32)
        for i in cutlass.range_constexpr(len(encoded.words)):
            words[i] = encoded.words[i]
        cute.autovec_copy(words, self.target(tensors.d, place))
        return encoded.code

    def target(self, d: cute.Tensor, place: Place) -> cute.Tensor:
        """The words of a block's elements in memory."""
        bits, block_bytes = self.row.bits, self.row.block * self.row.bits // 8
        row_elems = place.batch * d.stride[0] + place.row * d.stride[1]
        first_byte = Int64(row_elems) * bits // 8 + Int64(place.block) * block_bytes
        start = cute.recast_ptr(d.iterator, dtype=Uint8) + first_byte
        aligned = start.align(min(block_bytes & -block_bytes, ALIGN_BYTES))
        return cute.make_tensor(cute.recast_ptr(aligned, dtype=Uint32), cute.make_layout(block_bytes // 4))
