# SPDX-License-Identifier: Apache-2.0
"""Fused attention forward for Hopper (sm_90a): wiring of the roles.

Named by the variant rows as "opdeck.plugins.fmha_fwd.sm90.kernel:make"; compiled by opdeck.aot or just in time.
O = softmax(Q K^T * softmax_scale) V, LSE natural. fp16/bf16, head dim 64 or 128, GQA, any Sq >= 1 and Sk >= 0.
One CTA attends for one tile of `tile_m` query rows of one head:

    warpgroup 0      producer   warp 0 loads Q, K, V by TMA; the other warps only hand their registers over
    warpgroup 1..    consumer   QK, softmax and PV of 64 rows each, then stores them

    edge   from -> to            stages       arrivals when full / free
    q      load -> consumers     1            TMA bytes / one a consumer warp
    k, v   load -> consumers     kv_stages    TMA bytes / one a consumer warp

Limits: softmax_scale > 0; strides multiples of 16 bytes (tensor maps), head dim contiguous.
"""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, pipeline, utils
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.nvgpu.warpgroup import Field, OperandMajorMode, OperandSource
from cutlass.utils import LayoutEnum
from cutlass.utils import hopper_helpers as sm90

from opdeck.core.fusion import Coords, Residual
from opdeck.plugins.fmha_fwd.sm90.config import SMEM_ALIGN_BYTES, WARPGROUP_THREADS, WARPGROUP_WARPS, WGMMA_M, Config
from opdeck.plugins.fmha_fwd.sm90.consumer import ConsumerPort, ConsumerRole
from opdeck.plugins.fmha_fwd.sm90.load import LoadPort, LoadRole, TmaTile
from opdeck.plugins.fmha_fwd.sm90.mask import FusionMask
from opdeck.plugins.fmha_fwd.sm90.softmax import OnlineSoftmax, rows_of
from opdeck.plugins.fmha_fwd.sm90.store import StorePort, StoreRole

DTYPES = {"fp16": cutlass.Float16, "bf16": cutlass.BFloat16}


def make(variant: Any) -> Any:
    """The @cute.jit entry of a variant: entry(q, k, v, o, lse, softmax_scale, stream), named after the variant."""
    config = Config.from_mapping(variant.config, variant.head_dim)
    fmha = FmhaForward(config, DTYPES[variant.dtype], Residual() if variant.fusion is None else variant.fusion)

    @cute.kernel
    def kernel(q: Any, k: Any, v: Any, o: Any, lse: cute.Tensor, softmax_scale: Float32):
        fmha.run_cta((q, k, v, o), lse, softmax_scale)

    @cute.jit
    def entry(
        q: cute.Tensor,
        k: cute.Tensor,
        v: cute.Tensor,
        o: cute.Tensor,
        lse: cute.Tensor,
        softmax_scale: Float32,
        stream: cuda.CUstream,
    ):
        maps = fmha.tensor_maps(q, k, v, o)
        num_q_blocks = cute.ceil_div(q.shape[1], config.tile_m)
        kernel(*maps, lse, softmax_scale).launch(
            grid=(num_q_blocks * q.shape[2] * q.shape[0], 1, 1),
            block=(config.num_threads, 1, 1),
            stream=stream,
            min_blocks_per_mp=1,
        )

    for function in (kernel, entry):
        function.set_name_prefix(variant.id, remove_cutlass_symbol=True, keep_mangled_name=False)
    return entry


class FmhaForward:
    """What the host function and the kernel of one variant share."""

    def __init__(self, config: Config, dtype: Any, fusion: Any) -> None:
        self.config = config
        self.dtype = dtype
        self.fusion = fusion

    def smem_layouts(self) -> tuple[Any, Any, Any]:
        """Staged layouts of sQ (tile_m, D, 1), sK (tile_n, D, stages), sV (D, tile_n, stages)."""
        cfg = self.config
        qk_tile, pv_tile = (cfg.tile_m, cfg.tile_n, cfg.head_dim), (cfg.tile_m, cfg.head_dim, cfg.tile_n)
        return (
            sm90.make_smem_layout_a(LayoutEnum.ROW_MAJOR, qk_tile, self.dtype, 1),
            sm90.make_smem_layout_b(LayoutEnum.ROW_MAJOR, qk_tile, self.dtype, cfg.kv_stages),
            sm90.make_smem_layout_b(LayoutEnum.COL_MAJOR, pv_tile, self.dtype, cfg.kv_stages),
        )

    def tensor_maps(self, q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, o: cute.Tensor) -> tuple[Any, ...]:
        """(atom, tensor) of q, k, o as (S, D, H, B) and of v as (D, S, H, B), tiled for the roles."""
        cfg = self.config
        lq, lk, lv = self.smem_layouts()
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        lo = cute.composition(cute.select(lq, mode=[0, 1]), (WGMMA_M, cfg.head_dim))
        sdhb, dshb = [1, 3, 2, 0], [3, 1, 2, 0]
        return (
            cpasync.make_tiled_tma_atom(load, permute(q, sdhb), lq, (cfg.tile_m, cfg.head_dim)),
            cpasync.make_tiled_tma_atom(load, permute(k, sdhb), lk, (cfg.tile_n, cfg.head_dim)),
            cpasync.make_tiled_tma_atom(load, permute(v, dshb), lv, (cfg.head_dim, cfg.tile_n)),
            cpasync.make_tiled_tma_atom(store, permute(o, sdhb), lo, (WGMMA_M, cfg.head_dim)),
        )

    @cute.jit
    def run_cta(self, maps: Any, lse: cute.Tensor, softmax_scale: Float32) -> None:
        """Kernel body: place the CTA, make its shared memory and pipelines, and give each warpgroup its role."""
        cfg = self.config
        mQ, mK, mO = maps[0][1], maps[1][1], maps[3][1]
        sq, sk, num_heads = Int32(mQ.shape[0]), Int32(mK.shape[0]), Int32(mQ.shape[2])
        q_block, head, batch = self.work_tile(sq, num_heads)
        kv_head = head // (num_heads // Int32(mK.shape[2]))
        ranges = self.fusion.tile_ranges(q_block, (cfg.tile_m, cfg.tile_n), sq, sk)
        smem = utils.SmemAllocator()
        tiles = self.load_tiles(smem, maps, (head, kv_head, batch))
        pipelines = self.pipelines(smem)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        if warp < WARPGROUP_WARPS:
            cute.arch.setmaxregister_decrease(cfg.producer_regs)
            if warp == 0:
                port = LoadPort(*tiles, *(p.make_producer() for p in pipelines))
                LoadRole().run(port, q_block, ranges[0], ranges[3])
        else:
            cute.arch.setmaxregister_increase(cfg.consumer_regs)
            ends = [p.make_consumer() for p in pipelines]
            gO = cute.local_tile(mO[None, None, head, batch], (WGMMA_M, cfg.head_dim), (None, 0))
            origin = Coords(batch, head, q_block * cfg.tile_m, 0, sq, sk)
            mask = FusionMask(self.fusion, origin, cfg.tile_n)
            self.consume(tiles, ends, (maps[3][0], gO, lse[batch, head, None]), mask, ranges, softmax_scale)

    @cute.jit
    def consume(self, tiles: Any, ends: Any, out: Any, mask: FusionMask, ranges: Any, softmax_scale: Float32) -> None:
        """Consumer warpgroups: attend, normalise, store."""
        cfg = self.config
        thread = cute.arch.thread_idx()[0] - WARPGROUP_THREADS
        sQ, sK, sV = (tile.smem for tile in tiles)
        mmas = self.tiled_mmas()
        port = ConsumerPort(*mmas, sQ, sK, sV, *ends)
        role = ConsumerRole.make(port, (cfg.tile_m, cfg.tile_n, cfg.head_dim), thread)
        softmax = OnlineSoftmax.start(softmax_scale)
        role.run(softmax, mask, ranges)
        lse = cute.make_rmem_tensor_like(softmax.row_max)
        softmax.finish(rows_of(role.acc_o), lse)
        tma_o, gO, gLSE = out
        store = StoreRole(StorePort(tma_o, gO, sQ[None, None, 0], gLSE), port.pv_mma, thread)
        store.store_output(role.acc_o, mask.origin.q // WGMMA_M)
        store.store_lse(lse, role.coords, mask.origin.q)

    def tiled_mmas(self) -> tuple[cute.TiledMma, cute.TiledMma, cute.TiledMma]:
        """QK from shared memory, overwriting and adding to the accumulator; PV with P in registers, adding."""
        cfg, dtype = self.config, self.dtype
        warpgroups = (cfg.num_consumer_warpgroups, 1, 1)
        qk_shape, pv_shape = (WGMMA_M, cfg.tile_n), (WGMMA_M, cfg.head_dim)
        majors = OperandMajorMode.K, OperandMajorMode.K
        qk_first = sm90.make_trivial_tiled_mma(dtype, dtype, *majors, Float32, warpgroups, qk_shape)
        qk = sm90.make_trivial_tiled_mma(dtype, dtype, *majors, Float32, warpgroups, qk_shape)
        majors = OperandMajorMode.K, OperandMajorMode.MN
        pv = sm90.make_trivial_tiled_mma(dtype, dtype, *majors, Float32, warpgroups, pv_shape, OperandSource.RMEM)
        qk_first.set(Field.ACCUMULATE, False)
        qk.set(Field.ACCUMULATE, True)
        pv.set(Field.ACCUMULATE, True)
        return qk_first, qk, pv

    def load_tiles(self, smem: utils.SmemAllocator, maps: Any, place: tuple[Int32, Int32, Int32]) -> list[TmaTile]:
        """Q, K and V of one (query head, kv head, batch): gmem tiled along the sequence, smem stages allocated."""
        cfg = self.config
        head, kv_head, batch = place
        (atom_q, mQ), (atom_k, mK), (atom_v, mV), _ = maps
        gQ = cute.local_tile(mQ[None, None, head, batch], (cfg.tile_m, cfg.head_dim), (None, 0))
        gK = cute.local_tile(mK[None, None, kv_head, batch], (cfg.tile_n, cfg.head_dim), (None, 0))
        gV = cute.local_tile(mV[None, None, kv_head, batch], (cfg.head_dim, cfg.tile_n), (0, None))
        layouts = self.smem_layouts()
        stages = [smem.allocate_tensor(self.dtype, la.outer, SMEM_ALIGN_BYTES, swizzle=la.inner) for la in layouts]
        return [TmaTile(*tile) for tile in zip((atom_q, atom_k, atom_v), (gQ, gK, gV), stages, strict=True)]

    def pipelines(self, smem: utils.SmemAllocator) -> list[pipeline.PipelineTmaAsync]:
        """The edges q, k, v, from the load warp to the consumer warps; the caller synchronises the CTA."""
        cfg = self.config
        edges = ((1, cfg.q_tile_bytes), (cfg.kv_stages, cfg.kv_tile_bytes), (cfg.kv_stages, cfg.kv_tile_bytes))
        return [
            pipeline.PipelineTmaAsync.create(
                num_stages=num_stages,
                producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
                consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, cfg.num_consumer_warps),
                tx_count=tile_bytes,
                barrier_storage=smem.allocate_array(Int64, 2 * num_stages),
                cta_layout_vmnk=cute.make_layout((1, 1, 1, 1)),
                defer_sync=True,
            )
            for num_stages, tile_bytes in edges
        ]

    def work_tile(self, sq: Int32, num_heads: Int32) -> tuple[Int32, Int32, Int32]:
        """(q block, head, batch) of this CTA; blocks of later queries first, as causal masks give those more keys."""
        cta, _, _ = cute.arch.block_idx()
        num_q_blocks = cute.ceil_div(sq, self.config.tile_m)
        head_batch = cta // num_q_blocks
        return num_q_blocks - 1 - cta % num_q_blocks, head_batch % num_heads, head_batch // num_heads


def permute(tensor: cute.Tensor, modes: list[int]) -> cute.Tensor:
    return cute.make_tensor(tensor.iterator, cute.select(tensor.layout, mode=modes))
