# SPDX-License-Identifier: Apache-2.0
"""Shared memory layouts, tensor maps and tiled MMAs of the Hopper forward kernel.

Called by kernel.py on the host (tensor maps) and in the kernel (layouts, MMAs). Source: PTX ISA, "wgmma.mma_async":
the 128-byte swizzle, K-major for Q and K, MN-major for V, whose rows are the K dimension of the second product.
Limits: fp16 and bf16; head dim a multiple of 64, contiguous in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute
from cutlass import Float32
from cutlass.block import block_copy
from cutlass.cute.nvgpu import OperandMajorMode, cpasync
from cutlass.cute.nvgpu.warpgroup import Field, OperandSource
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers as sm90

from opdeck.plugins.fmha_fwd.sm90.config import WGMMA_M, Config


@dataclass(frozen=True)
class TmaTile:
    """A tensor map and its two ends: gmem (tile_0, tile_1, tile_idx) and smem (tile_0, tile_1, stage)."""

    atom: cute.CopyAtom
    gmem: cute.Tensor
    smem: cute.Tensor

    @cute.jit
    def load(self, tile_idx: Any, handle: Any) -> None:
        """Fill the stage of `handle`, an acquired producer stage, with tile `tile_idx`."""
        gmem = cute.group_modes(self.gmem[None, None, tile_idx], 0, 2)
        smem = cute.group_modes(self.smem[None, None, handle.index], 0, 2)
        block_copy(self.atom, gmem, smem, tma_bar_ptr=handle.barrier)

    @cute.jit
    def store(self, stage: Any, tile_idx: Any) -> None:
        """Write stage `stage` to tile `tile_idx`, as part of the current bulk group."""
        smem = cute.group_modes(self.smem[None, None, stage], 0, 2)
        block_copy(self.atom, smem, cute.group_modes(self.gmem[None, None, tile_idx], 0, 2))


@dataclass(frozen=True)
class TiledMmas:
    """qk_first overwrites its accumulator, qk and pv add to theirs; pv takes P from registers."""

    qk_first: cute.TiledMma
    qk: cute.TiledMma
    pv: cute.TiledMma


@dataclass(frozen=True)
class Operands:
    """The shapes of a variant: tiles from `config`, elements of `dtype`."""

    config: Config
    dtype: Any

    def smem_layouts(self) -> tuple[Any, Any, Any]:
        """Staged layouts of sQ (tile_m, D, 1), sK (tile_n, D, stage), sV (D, tile_n, stage)."""
        cfg, dtype = self.config, self.dtype
        qk_shape, pv_shape = (cfg.tile_m, cfg.tile_n, cfg.head_dim), (cfg.tile_m, cfg.head_dim, cfg.tile_n)
        return (
            sm90.make_smem_layout_a(LayoutEnum.ROW_MAJOR, qk_shape, dtype, 1),
            sm90.make_smem_layout_b(LayoutEnum.ROW_MAJOR, qk_shape, dtype, cfg.kv_stages),
            sm90.make_smem_layout_b(LayoutEnum.COL_MAJOR, pv_shape, dtype, cfg.kv_stages),
        )

    def tensor_maps(self, q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, o: cute.Tensor) -> tuple[Any, ...]:
        """(atom, tensor) of q, k, v, o: tensors are (S, D, H, B), but v (D, S, H, B); a store is 64 rows of O."""
        cfg = self.config
        q_layout, k_layout, v_layout = self.smem_layouts()
        o_layout = cute.composition(cute.select(q_layout, mode=[0, 1]), (WGMMA_M, cfg.head_dim))
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        maps = (
            cpasync.make_tiled_tma_atom(load, _permute(q, "SDHB"), q_layout, (cfg.tile_m, cfg.head_dim)),
            cpasync.make_tiled_tma_atom(load, _permute(k, "SDHB"), k_layout, (cfg.tile_n, cfg.head_dim)),
            cpasync.make_tiled_tma_atom(load, _permute(v, "DSHB"), v_layout, (cfg.head_dim, cfg.tile_n)),
            cpasync.make_tiled_tma_atom(store, _permute(o, "SDHB"), o_layout, (WGMMA_M, cfg.head_dim)),
        )
        return tuple((info.atom, info.tma_tensor) for info in maps)

    def tiled_mmas(self) -> TiledMmas:
        """QK (tile_m, tile_n) and PV (tile_m, D), the rows shared out to the consumer warpgroups."""
        cfg, dtype = self.config, self.dtype
        warpgroups = (cfg.num_consumer_warpgroups, 1, 1)
        k_major, mn_major = OperandMajorMode.K, OperandMajorMode.MN

        def make(v_major: OperandMajorMode, num_cols: int, source: OperandSource, adds: bool) -> cute.TiledMma:
            shape = (WGMMA_M, num_cols)
            mma = sm90.make_trivial_tiled_mma(dtype, dtype, k_major, v_major, Float32, warpgroups, shape, source)
            mma.set(Field.ACCUMULATE, adds)
            return mma

        return TiledMmas(
            qk_first=make(k_major, cfg.tile_n, OperandSource.SMEM, False),
            qk=make(k_major, cfg.tile_n, OperandSource.SMEM, True),
            pv=make(mn_major, cfg.head_dim, OperandSource.RMEM, True),
        )


def _permute(tensor: cute.Tensor, order: str) -> cute.Tensor:
    """A (B, S, H, D) tensor seen with its modes in another order."""
    modes = ["BSHD".index(mode) for mode in order]
    return cute.make_tensor(tensor.iterator, cute.select(tensor.layout, mode=modes))
