# SPDX-License-Identifier: Apache-2.0
"""The block-scaled MMA, its shared-memory layouts and the TMA atoms that fill and empty them.

Called by: kernel.py, on the host side of the entry (tensor maps) and again in the kernel (all of it is static).
Source: PTX ISA 9.x, "tcgen05.mma block scaling", "Tensor maps" (bounds, zero fill; 4- and 6-bit elements padded to a
byte); the 128x4 layout of scales: tile (row / 128, column / 4) of 512 bytes, inside it (row % 32) * 16 + (row / 32 % 4)
* 4 + column % 4.
Limits: tensor-map extents are 32-bit and strides multiples of 16 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.utils as utils
from cutlass import Int32
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from cutlass.utils import blackwell_helpers, blockscaled_layout

from opdeck.core.fusion.intmath import ceil_div
from opdeck.core.kernels.pipelines import cluster_layout
from opdeck.plugins.mx_gemm.sm100.config import NUM_EPILOGUE_WARPS, SCALE_WORD_BLOCKS, WARP_ROWS, Config

ELEMENTS = {
    "fp8_e4m3": cutlass.Float8E4M3FN,
    "fp8_e5m2": cutlass.Float8E5M2,
    "fp6_e3m2": cutlass.Float6E3M2FN,
    "fp6_e2m3": cutlass.Float6E2M3FN,
    "fp4_e2m1": cutlass.Float4E2M1FN,
    "e8m0": cutlass.Float8E8M0FNU,
    "ue4m3": cutlass.Float8E4M3FN,
    "fp16": cutlass.Float16,
    "bf16": cutlass.BFloat16,
    "fp32": cutlass.Float32,
}

PADDED_BOX_ELEMS = 128
PIECE_BYTES = 16


@dataclass(frozen=True)
class Mma:
    """The MMA and the layouts of its operands in shared memory, stages last; C's and D's have one a warp and buffer.

    scale_b is an MMA for partitioning alone: each CTA of a pair needs the scales of all of B's columns.
    """

    tiled: Any
    scale_b: Any
    tiler: tuple[int, int, int]
    scale_b_tiler: tuple[int, int, int]
    a_layout: Any
    b_layout: Any
    a_scale_layout: Any
    b_scale_layout: Any
    c_layout: Any
    d_layout: Any


def make_mma(config: Config) -> Mma:
    tiler = (config.mma_m, config.mma_n, config.tile_k)
    scale_b_tiler = (128, config.scale_n, config.tile_k)
    tiled = _tiled_mma(config, cta_group(config), tiler[:2])
    a_smem, b_smem = smem_element(config, config.a), smem_element(config, config.b)
    stages = config.ab_stages
    d_layout = _box_layout(stored_element(config), stored_cols(config), NUM_EPILOGUE_WARPS * config.d_stages)
    return Mma(
        tiled=tiled,
        scale_b=_tiled_mma(config, tcgen05.CtaGroup.ONE, scale_b_tiler[:2]),
        tiler=tiler,
        scale_b_tiler=scale_b_tiler,
        a_layout=blackwell_helpers.make_smem_layout_a(tiled, tiler, a_smem, stages),
        b_layout=blackwell_helpers.make_smem_layout_b(tiled, tiler, b_smem, stages),
        a_scale_layout=blockscaled_layout.make_smem_layout_sfa(tiled, tiler, config.block_elems, stages),
        b_scale_layout=blockscaled_layout.make_smem_layout_sfb(tiled, tiler, config.block_elems, stages),
        c_layout=_box_layout(ELEMENTS[config.c], config.c_cols, NUM_EPILOGUE_WARPS)
        if config.has_c_buffer
        else d_layout,
        d_layout=d_layout,
    )


def _box_layout(element: Any, cols: int, num_buffers: int) -> Any:
    """Boxes that one warp of the epilogue moves."""
    row_major = utils.LayoutEnum.ROW_MAJOR
    return blackwell_helpers.make_smem_layout_epi(element, row_major, (WARP_ROWS, cols), num_buffers)


def stored_element(config: Config) -> Any:
    """What the epilogue moves D as: its numbers, or the bytes of block-scaled elements."""
    return cutlass.Uint8 if config.d_format else ELEMENTS[config.d]


def stored_cols(config: Config) -> int:
    """Columns of a box of D in such units."""
    return config.store_bytes if config.d_format else config.store_cols


def cta_group(config: Config) -> Any:
    return tcgen05.CtaGroup.ONE if config.num_pair_ctas == 1 else tcgen05.CtaGroup.TWO


def _tiled_mma(config: Config, group: Any, shape_mn: tuple[int, int]) -> Any:
    a_major, b_major = (OperandMajorMode.MN if name in config.transposed else OperandMajorMode.K for name in ("a", "b"))
    a, b, scale = ELEMENTS[config.a], ELEMENTS[config.b], ELEMENTS[config.scale]
    return blackwell_helpers.make_blockscaled_trivial_tiled_mma(
        a, b, a_major, b_major, scale, config.block_elems, group, shape_mn
    )


def smem_element(config: Config, element: str) -> Any:
    """The type of an operand's elements in shared memory: a byte where TMA pads them to one."""
    kept = ELEMENTS[element]
    return kept if kept.width == config.smem_elem_bits else cutlass.Int8


@dataclass(frozen=True)
class TensorMaps:
    """A TMA atom and its coordinate tensor for each tensor: a (M, K, L), b (N, K, L), c and d (M, N, L), scales in the
    shape of their operand with the 128x4 layout."""

    a_atom: Any
    a: cute.Tensor
    b_atom: Any
    b: cute.Tensor
    a_scale_atom: Any
    a_scale: cute.Tensor
    b_scale_atom: Any
    b_scale: cute.Tensor
    c_atom: Any
    c: cute.Tensor
    d_atom: Any
    d: cute.Tensor


@dataclass(frozen=True)
class Tensors:
    """What TMA moves: a (L, M, K), b (L, N, K), scales (L, tiles along M or N, tiles along K, 512), c and d (L, M,
    N); c is absent where its pointer is null."""

    a: cute.Tensor
    b: cute.Tensor
    a_scale: cute.Tensor
    b_scale: cute.Tensor
    c: cute.Tensor
    d: cute.Tensor


def make_tensor_maps(config: Config, mma: Mma, tensors: Tensors) -> TensorMaps:
    load = cpasync.CopyBulkTensorTileG2SOp(cta_group(config))
    a, b = operand(config, tensors.a, config.a), operand(config, tensors.b, config.b)
    a_atom, a_map = _load_atom_a(config, mma, load, a)
    b_atom, b_map = _load_atom_b(config, mma, load, b)
    cluster = cluster_layout(config.cluster).shape
    a_scale_atom, a_scale_map = cute.nvgpu.make_tiled_tma_atom_A(
        load,
        scales(config, tensors.a_scale),
        one_stage(mma.a_scale_layout),
        mma.tiler,
        mma.tiled,
        cluster,
        internal_type=cutlass.Int16,
    )
    b_scale_atom, b_scale_map = cute.nvgpu.make_tiled_tma_atom_B(
        load,
        scales(config, tensors.b_scale),
        one_stage(mma.b_scale_layout),
        mma.scale_b_tiler,
        mma.scale_b,
        cluster,
        internal_type=cutlass.Int16,
    )
    c_box, d_box = (WARP_ROWS, config.c_cols), (WARP_ROWS, stored_cols(config))
    c_layout, d_layout = (cute.select(layout, mode=[0, 1]) for layout in (mma.c_layout, mma.d_layout))
    # Each CTA of a pair loads its own C, on a barrier of its own.
    load_c, store_d = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE), cpasync.CopyBulkTensorTileS2GOp()
    return TensorMaps(
        *(a_atom, a_map, b_atom, b_map, a_scale_atom, a_scale_map, b_scale_atom, b_scale_map),
        *cpasync.make_tiled_tma_atom(load_c, rows_first(tensors.c), c_layout, c_box),
        *cpasync.make_tiled_tma_atom(store_d, rows_first(_stored(config, tensors.d)), d_layout, d_box),
    )


def _stored(config: Config, d: cute.Tensor) -> cute.Tensor:
    """D (L, M, N) as what the epilogue moves it as."""
    if not config.d_format:
        return d
    elems = 8 // d.element_type.width
    num_batches, rows, cols = d.shape
    batch_stride, row_stride = (cute.assume(d.stride[i] // elems, PIECE_BYTES) for i in (0, 1))
    layout = cute.make_layout((num_batches, rows, cols // elems), stride=(batch_stride, row_stride, 1))
    return cute.make_tensor(cute.recast_ptr(d.iterator, dtype=cutlass.Uint8), layout)


def _load_atom_a(config: Config, mma: Mma, load: Any, a: cute.Tensor) -> tuple[Any, cute.Tensor]:
    element = smem_element(config, config.a)
    padded = None if element is ELEMENTS[config.a] else element
    return cute.nvgpu.make_tiled_tma_atom_A(
        load,
        a,
        one_stage(mma.a_layout),
        mma.tiler,
        mma.tiled,
        cluster_layout(config.cluster).shape,
        internal_type=padded,
    )


def _load_atom_b(config: Config, mma: Mma, load: Any, b: cute.Tensor) -> tuple[Any, cute.Tensor]:
    element = smem_element(config, config.b)
    padded = None if element is ELEMENTS[config.b] else element
    return cute.nvgpu.make_tiled_tma_atom_B(
        load,
        b,
        one_stage(mma.b_layout),
        mma.tiler,
        mma.tiled,
        cluster_layout(config.cluster).shape,
        internal_type=padded,
    )


def one_stage(layout: Any) -> Any:
    return cute.select(layout, mode=[0, 1, 2])


def operand(config: Config, x: cute.Tensor, name: str) -> cute.Tensor:
    """(L, rows, K) of elements `name` as (rows, K, L)."""
    permuted = rows_first(x)
    rows, k, num_batches = permuted.shape
    if smem_element(config, name) is not ELEMENTS[name]:
        # A map of padded elements must have whole boxes along K. The MMAs of what lies past K are not issued.
        k = cute.assume(ceil_div(k, PADDED_BOX_ELEMS) * PADDED_BOX_ELEMS, PADDED_BOX_ELEMS)
    return cute.make_tensor(permuted.iterator, cute.make_layout((rows, k, num_batches), stride=permuted.stride))


def scales(config: Config, x: cute.Tensor) -> cute.Tensor:
    """(L, tiles along rows, tiles along K, 512) as (rows, K, L), each scale repeated over its block."""
    rows, columns = (32, 4), (config.block_elems, SCALE_WORD_BLOCKS)
    num_batches, row_tiles, k_tiles = (Int32(x.shape[i]) for i in range(3))
    batch_stride, row_stride, k_stride = (x.stride[i] for i in range(3))
    shape = ((rows, row_tiles), (columns, k_tiles), num_batches)
    stride = (((16, 4), row_stride), ((0, 1), k_stride), batch_stride)
    return cute.make_tensor(x.iterator, cute.make_layout(shape, stride=stride))


def rows_first(x: cute.Tensor) -> cute.Tensor:
    """(L, rows, columns) as (rows, columns, L), with 32-bit extents, as a tensor map has them."""
    shape = tuple(Int32(x.shape[i]) for i in (1, 2, 0))
    return cute.make_tensor(x.iterator, cute.make_layout(shape, stride=tuple(x.stride[i] for i in (1, 2, 0))))
