# SPDX-License-Identifier: Apache-2.0
"""Fused attention forward for Hopper (sm_90a): wiring of the roles.

Named by the variant rows as "opdeck.plugins.fmha_fwd.sm90.kernel:make"; compiled by opdeck.aot or just in time.
O = softmax(Q K^T * softmax_scale) V, LSE natural. fp16/bf16, head dim 64 or 128, GQA, any Sq >= 1 and Sk >= 0.
One CTA attends for one tile of query rows of one head: a warp loads Q, K, V by TMA (load.py); each consumer warpgroup
multiplies, takes the softmax (consumer.py) and stores (store.py) 64 of the rows. config.py declares roles and edges.
Limits: softmax_scale > 0; strides multiples of 16 bytes (tensor maps), head dim contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.memory import SmemAllocator

from opdeck.core.errors import ArgumentTypeError
from opdeck.core.fusion import Mask, Residual
from opdeck.core.fusion.intmath import ceil_div, min_
from opdeck.core.kernels.pipelines import make_pipelines
from opdeck.core.kernels.schedule import heads_per_section
from opdeck.core.kernels.topology import WARP_THREADS
from opdeck.core.variant import Variant
from opdeck.plugins.fmha_fwd.sm90.config import ELEM_BYTES, SMEM_ALIGN_BYTES, WGMMA_M, Config
from opdeck.plugins.fmha_fwd.sm90.consumer import ConsumerPort, ConsumerRole
from opdeck.plugins.fmha_fwd.sm90.load import LoadPort, LoadRole
from opdeck.plugins.fmha_fwd.sm90.mask import TileMask, masked_tiles
from opdeck.plugins.fmha_fwd.sm90.operands import Operands, TmaTile
from opdeck.plugins.fmha_fwd.sm90.softmax import OnlineSoftmax, rows_of
from opdeck.plugins.fmha_fwd.sm90.store import StorePort, StoreRole
from opdeck.plugins.fmha_fwd.sm90.work import Sizes, Work
from opdeck.plugins.fmha_fwd.variants import LENGTHS, SCALES

DTYPES = {"fp16": cutlass.Float16, "bf16": cutlass.BFloat16}


def make(variant: Variant) -> Any:
    """The @cute.jit entry of a variant, of the arguments of SCHEMA, leaves and a stream.

    The lengths (LENGTHS) and the scales of elements (SCALES) are absent: the rows accept no problem that has any.
    max_ctas is for persistent kernels, which this is not.

    Raises: ValueError when the variant's config could not run; ArgumentTypeError when its fusion is no Mask.
    """
    config = Config.of(variant)
    config.check()
    fusion = Residual() if variant.fusion is None else variant.fusion
    if not isinstance(fusion, Mask):
        raise ArgumentTypeError(f"fusion of {variant.id}", fusion.canonical_name, "a Mask, or none")
    cta = Cta(config, Operands(config, DTYPES[variant.dtype]))

    @cute.kernel
    def kernel(maps: Any, lse: cute.Tensor, scales: Scales, section_heads: Int32, leaves: Any) -> None:
        cta.run(maps, lse, scales, section_heads, fusion.with_leaves(leaves))

    @cute.jit
    def entry(q: Any, k: Any, v: Any, o: Any, lse: Any, softmax_scale: Any, *rest: Any) -> None:
        _, *others = rest[len(LENGTHS) :]
        out_scale, *leaves, stream = others[len(SCALES) :]
        (batch, sq, num_heads, _), (_, sk, num_kv_heads, _) = q.shape, k.shape
        kv_head_bytes = sk * (2 * config.head_dim * ELEM_BYTES)
        # Never more than there are, so that 32 bits hold every product of the schedule.
        section_heads = min_(heads_per_section(kv_head_bytes, num_heads // num_kv_heads), num_heads * batch)
        scales = Scales(softmax_scale, out_scale)
        kernel(cta.operands.tensor_maps(q, k, v, o), lse, scales, Int32(section_heads), leaves).launch(
            grid=(ceil_div(sq, config.tile_m) * num_heads * batch, 1, 1),
            block=(config.roles.num_threads, 1, 1),
            stream=stream,
            min_blocks_per_mp=1,
        )

    for function in (kernel, entry):
        function.set_name_prefix(f"opdeck_{variant.id}", remove_cutlass_symbol=True, keep_mangled_name=False)
    return entry


@dataclass(frozen=True)
class Scales:
    """What S is multiplied by, and O before it is rounded."""

    softmax: Float32
    out: Float32


@dataclass(frozen=True)
class Cta:
    """The kernel body of one variant."""

    config: Config
    operands: Operands

    @cute.jit
    def run(self, maps: Any, lse: cute.Tensor, scales: Scales, section_heads: Int32, fusion: Mask) -> None:
        """Find the CTA's work, make its shared memory and pipelines, and give each warpgroup its role."""
        config = self.config
        mQ, mK = maps[0][1], maps[1][1]
        sizes = Sizes(*(Int32(extent) for extent in (mQ.shape[3], mQ.shape[2], mK.shape[2], mQ.shape[0], mK.shape[0])))
        work = Work.of(cute.arch.block_idx()[0], section_heads, sizes, config, fusion)
        smem = SmemAllocator()
        q, k, v, o = self.tma_tiles(smem, maps, work)
        edges = make_pipelines(config.topology, smem.allocate_array(Int64, config.topology.num_barriers))
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        if warp_idx < config.roles["consumer"].first_warp:
            cute.arch.setmaxregister_decrease(config.producer_regs)
            if warp_idx == config.roles["load"].first_warp:
                LoadRole().run(LoadPort(q, k, v, *(edges[name].make_producer() for name in "qkv")), work)
        else:
            cute.arch.setmaxregister_increase(config.consumer_regs)
            mask = fusion.at(work.batch, work.head).mask
            port = ConsumerPort(q.smem, k.smem, v.smem, *(edges[name].make_consumer() for name in "qkv"))
            store_port = StorePort(q.smem[None, None, 0], o, lse)
            self.consume(port, store_port, work, masked_tiles(mask, work.origin, config.tile_n), scales)

    @cute.jit
    def consume(self, port: ConsumerPort, store_port: StorePort, work: Work, mask: TileMask, scales: Scales) -> None:
        """Consumer warpgroups: attend, normalise, store."""
        thread = cute.arch.thread_idx()[0] - self.config.roles["consumer"].first_warp * WARP_THREADS
        mmas = self.operands.tiled_mmas()
        consumer = ConsumerRole.make(port, mmas, self.config, thread)
        softmax = OnlineSoftmax.start(scales.softmax)
        consumer.run(softmax, mask, work.ranges)
        lse = softmax.finish(rows_of(consumer.acc_o), scales.out)
        store = StoreRole(store_port, thread)
        store.store_output(consumer.acc_o, mmas.pv, work.q_first // WGMMA_M)
        store.store_lse(lse, consumer.coords, work)

    def tma_tiles(self, smem: SmemAllocator, maps: Any, work: Work) -> list[TmaTile]:
        """Q, K, V of the CTA's head, and O over the shared memory of Q in tiles of one warpgroup's rows."""
        config, dtype = self.config, self.operands.dtype
        (q_atom, mQ), (k_atom, mK), (v_atom, mV), (o_atom, mO) = maps
        q_tile, kv_tile, o_tile = ((rows, config.head_dim) for rows in (config.tile_m, config.tile_n, WGMMA_M))
        sQ, sK, sV = (
            smem.allocate_tensor(dtype, layout.outer, SMEM_ALIGN_BYTES, swizzle=layout.inner)
            for layout in self.operands.smem_layouts()
        )
        gQ = cute.local_tile(mQ[None, None, work.head, work.batch], q_tile, (None, 0))
        gK = cute.local_tile(mK[None, None, work.kv_head, work.batch], kv_tile, (None, 0))
        gV = cute.local_tile(mV[None, None, work.kv_head, work.batch], kv_tile[::-1], (0, None))
        gO = cute.local_tile(mO[None, None, work.head, work.batch], o_tile, (None, 0))
        sO = cute.local_tile(sQ[None, None, 0], o_tile, (None, 0))
        return [TmaTile(q_atom, gQ, sQ), TmaTile(k_atom, gK, sK), TmaTile(v_atom, gV, sV), TmaTile(o_atom, gO, sO)]
