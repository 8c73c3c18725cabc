# SPDX-License-Identifier: Apache-2.0
"""The two MMAs of attention, their shared-memory layouts and the TMA atoms that fill them.

Called by: kernel.py, on the host side of the entry (tensor maps) and again in the kernel (all of it is static).
Source: PTX ISA 9.x, "tcgen05 matrix descriptors" (128-byte swizzle) and "Tensor maps" (bounds, zero fill).
Limits: tensor-map extents are 32-bit and strides multiples of 16 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.utils as utils
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from cutlass.utils import blackwell_helpers as sm100_utils

from opdeck.core.fusion.intmath import max_
from opdeck.core.kernels.pipelines import cluster_layout
from opdeck.core.variant import Variant
from opdeck.plugins.fmha_fwd.sm100.config import NUM_Q_TILES, Config

ELEMENTS = {
    "fp16": cutlass.Float16,
    "bf16": cutlass.BFloat16,
    "fp8_e4m3": cutlass.Float8E4M3FN,
    "fp8_e5m2": cutlass.Float8E5M2,
}


@dataclass(frozen=True)
class Mmas:
    """S = Q K^T (both operands from shared memory) and O = P V (P from tensor memory), with staged smem layouts."""

    qk: Any
    pv: Any
    qk_tiler: tuple[int, int, int]
    pv_tiler: tuple[int, int, int]
    q_layout: Any
    k_layout: Any
    v_layout: Any
    p_layout: Any
    o_layout: Any


@dataclass(frozen=True)
class Elements:
    """Types of the elements of Q, K and V, of P and of O."""

    qkv: Any
    p: Any
    out: Any

    @staticmethod
    def of(variant: Variant) -> Elements:
        qkv, out = ELEMENTS[variant.dtype], ELEMENTS[variant.symbol_dtypes["O"]]
        # P is rounded finer than e5m2 would.
        return Elements(qkv, cutlass.Float8E4M3FN if qkv.width == 8 else qkv, out)


def make_mmas(config: Config, elements: Elements) -> Mmas:
    dtype = elements.qkv
    qk_tiler = (config.mma_m, config.tile_n, config.d_qk)
    pv_tiler = (config.mma_m, config.d_v, config.tile_n)
    k_major, mn_major = OperandMajorMode.K, OperandMajorMode.MN
    group = cta_group(config)
    qk = sm100_utils.make_trivial_tiled_mma(dtype, dtype, k_major, k_major, Float32, group, qk_tiler[:2])
    pv = sm100_utils.make_trivial_tiled_mma(
        elements.p, dtype, k_major, mn_major, Float32, group, pv_tiler[:2], tcgen05.OperandSource.TMEM
    )
    return Mmas(
        qk=qk,
        pv=pv,
        qk_tiler=qk_tiler,
        pv_tiler=pv_tiler,
        q_layout=_in_slots(
            sm100_utils.make_smem_layout_a(qk, qk_tiler, dtype, 1), NUM_Q_TILES, config.q_slot_bytes, dtype
        ),
        k_layout=sm100_utils.make_smem_layout_b(qk, qk_tiler, dtype, config.k_stages),
        v_layout=sm100_utils.make_smem_layout_b(pv, pv_tiler, dtype, config.v_stages),
        p_layout=sm100_utils.make_smem_layout_a(pv, pv_tiler, elements.p, 1),
        o_layout=_in_slots(
            sm100_utils.make_smem_layout_epi(elements.out, utils.LayoutEnum.ROW_MAJOR, o_tiler(config), 1),
            config.o_stages,
            config.o_slot_bytes,
            elements.out,
        ),
    )


def cta_group(config: Config) -> Any:
    return tcgen05.CtaGroup.ONE if config.num_pair_ctas == 1 else tcgen05.CtaGroup.TWO


def o_tiler(config: Config) -> tuple[int, int]:
    """Rows and columns of O that a CTA stores at once."""
    return config.tile_m, config.d_v


def _in_slots(one_tile: Any, num_slots: int, slot_bytes: int, dtype: Any) -> Any:
    """The layout of a tile, whose last mode is of extent 1, for as many tiles as there are slots."""
    slots = cute.make_layout(num_slots, stride=slot_bytes * 8 // dtype.width)
    modes = list(range(cute.rank(one_tile) - 1))
    outer = cute.append(cute.select(one_tile.outer, mode=modes), slots)
    return cute.make_composed_layout(one_tile.inner, 0, outer)


@dataclass(frozen=True)
class TensorMaps:
    """A TMA atom and its coordinate tensor for each tensor, modes (row, D, head, batch), v (D, row, head, batch)."""

    q_atom: Any
    q: cute.Tensor
    k_atom: Any
    k: cute.Tensor
    v_atom: Any
    v: cute.Tensor
    o_atom: Any
    o: cute.Tensor
    score_tensors: tuple[Any, ...] = ()
    """ScoreTensorMap of the score function that has a tensor, if there is one."""


def make_tensor_maps(
    config: Config, mmas: Mmas, q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, o: cute.Tensor
) -> TensorMaps:
    """Tensor maps of (B, S, H, D) tensors."""
    load, store = cpasync.CopyBulkTensorTileG2SOp(cta_group(config)), cpasync.CopyBulkTensorTileS2GOp()
    cluster = cluster_layout(config.cluster).shape

    def one_stage(layout: Any) -> Any:
        return cute.select(layout, mode=[0, 1, 2])

    q_atom, q_map = cute.nvgpu.make_tiled_tma_atom_A(
        load, row_major(q), one_stage(mmas.q_layout), mmas.qk_tiler, mmas.qk, cluster
    )
    k_atom, k_map = cute.nvgpu.make_tiled_tma_atom_B(
        load, row_major(k), one_stage(mmas.k_layout), mmas.qk_tiler, mmas.qk, cluster
    )
    v_atom, v_map = cute.nvgpu.make_tiled_tma_atom_B(
        load, col_major(v), one_stage(mmas.v_layout), mmas.pv_tiler, mmas.pv, cluster
    )
    o_atom, o_map = cpasync.make_tiled_tma_atom(
        store, row_major(o), cute.select(mmas.o_layout, mode=[0, 1]), o_tiler(config)
    )
    return TensorMaps(q_atom, q_map, k_atom, k_map, v_atom, v_map, o_atom, o_map)


def row_major(x: cute.Tensor) -> cute.Tensor:
    """(B, S, H, D) as (S, D, H, B)."""
    return _permuted(x, (1, 3, 2, 0))


def col_major(x: cute.Tensor) -> cute.Tensor:
    """(B, S, H, D) as (D, S, H, B)."""
    return _permuted(x, (3, 1, 2, 0))


def _permuted(x: cute.Tensor, order: tuple[int, ...]) -> cute.Tensor:
    # Extents become 32-bit, as a tensor map has them, and at least 1: a map of an empty K or V must be valid too,
    # although no tile of it is ever loaded.
    shape = tuple(x.shape[i] if isinstance(x.shape[i], int) else max_(Int32(x.shape[i]), Int32(1)) for i in order)
    return cute.make_tensor(x.iterator, cute.make_layout(shape, stride=tuple(x.stride[i] for i in order)))
