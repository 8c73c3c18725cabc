# SPDX-License-Identifier: Apache-2.0
"""mx_gemm for sm_100a and sm_103a: D = alpha * A B^T + beta * C + bias, with a scale for each block of
A and B along K. Wiring only.

Called by: the variant rows of the family, through `make`.
Source: PTX ISA 9.x, "tcgen05.mma" with block scaling; a persistent grid of clusters, in each CTA a load, an mma and
four epilogue warps, so that the epilogue of one tile overlaps the products of the next.
Limits: K a positive multiple of 32; one CTA an SM.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint32
from cutlass.cute.nvgpu import tcgen05
from cutlass.cutlass_dsl import max as max_dsl
from cutlass.cutlass_dsl import min as min_dsl
from cutlass.utils import SmemAllocator, blockscaled_layout

from opdeck.core.fusion.intmath import ceil_div
from opdeck.core.kernels.pipelines import cluster_barrier, make_pipelines, tmem_after_wait, tmem_before_signal
from opdeck.core.variant import Variant
from opdeck.plugins.mx_gemm.sm100 import wide_k
from opdeck.plugins.mx_gemm.sm100.config import (
    CTA_M,
    NUM_EPILOGUE_WARPS,
    NUM_TAIL_BARRIERS,
    SCALE_ROWS,
    SCALE_WORD_BLOCKS,
    SMEM_ALIGN_BYTES,
    WARP_ROWS,
    Config,
)
from opdeck.plugins.mx_gemm.sm100.epilogue import EpiloguePort, EpilogueRole, Results, Terms
from opdeck.plugins.mx_gemm.sm100.k_tail import TailPort, TailScales
from opdeck.plugins.mx_gemm.sm100.load import LoadPort, LoadRole, TmaTile
from opdeck.plugins.mx_gemm.sm100.mma import MmaPort, MmaRole, ScalePort
from opdeck.plugins.mx_gemm.sm100.operands import (
    ELEMENTS,
    Mma,
    TensorMaps,
    Tensors,
    cta_group,
    make_mma,
    make_tensor_maps,
    smem_element,
    stored_cols,
    stored_element,
)
from opdeck.plugins.mx_gemm.sm100.work import KTiles, TileGrid, Work


def make(variant: Variant) -> Callable[..., None]:
    """The @cute.jit entry of a variant: entry of the schema's arguments in their order, leaves and the stream.

    Raises: ValueError when the variant's configuration could not run.
    """
    config = Config.of(variant)
    config.check()
    gemm = MxGemm(config, variant.fusion)

    @cute.kernel
    def clear(amax: cute.Tensor) -> None:
        amax[cute.arch.thread_idx()[0]] = Float32(0.0)

    @cute.kernel
    def kernel(maps: TensorMaps, terms: Terms, results: Results, extents: Extents, leaves: Any) -> None:
        gemm.run_cta(maps, terms, results, extents, leaves)

    @cute.jit
    def entry(a, b, a_scale, b_scale, c, bias, d, d_block_scale, amax, alpha, beta, max_ctas, d_scale, *rest):  # type: ignore[no-untyped-def]
        *leaves, stream = rest
        maps = make_tensor_maps(config, make_mma(config), Tensors(a, b, a_scale, b_scale, c, d))
        extents = Extents(*(Int32(extent) for extent in (*a.shape, b.shape[1])))
        num_clusters = min_dsl(gemm.tile_grid(extents).count, max_dsl(max_ctas // config.cluster.num_ctas, 1))
        if amax.iterator.toint() != 0:
            clear(amax).launch(grid=(1, 1, 1), block=(1, 1, 1), stream=stream)
        terms = Terms(alpha, beta, c.iterator.toint() != 0, bias)
        results = Results(d_block_scale, amax, d_scale, Int32(d.shape[2]))
        kernel(maps, terms, results, extents, leaves).launch(
            grid=(config.cluster_m, config.cluster_n, num_clusters),
            block=(config.roles.num_threads, 1, 1),
            cluster=(config.cluster_m, config.cluster_n, 1),
            stream=stream,
            min_blocks_per_mp=1,
        )

    for function in (clear, kernel, entry):
        function.set_name_prefix(f"opdeck_{variant.id}", remove_cutlass_symbol=True, keep_mangled_name=False)
    return entry


@dataclass(frozen=True)
class Extents:
    num_batches: Int32
    m: Int32
    k: Int32
    n: Int32


@dataclass(frozen=True)
class Cta:
    """What the ports of a CTA's roles are cut from."""

    mma: Mma
    storage: Any
    edges: dict[str, Any]
    tmem_base: cute.Pointer


class MxGemm:
    """What the host function and the kernel of one variant share."""

    def __init__(self, config: Config, activation: Any) -> None:
        self.config = config
        self.activation = activation

    def tile_grid(self, extents: Extents) -> TileGrid:
        """Cluster tiles of D."""
        config = self.config
        rows, cols = CTA_M * config.cluster_m, config.mma_n * config.cluster_n
        num_m, num_n = ceil_div(extents.m, rows), ceil_div(extents.n, cols)
        return TileGrid(num_m, num_n, extents.num_batches, config.band_tiles)

    @cute.jit
    def run_cta(self, maps: TensorMaps, terms: Terms, results: Results, extents: Extents, leaves: Any) -> None:
        """Kernel body: shared memory, barriers and tensor memory, then each warp runs its role."""
        config, roles = self.config, self.config.roles
        is_pair = config.num_pair_ctas == 2
        work = self.work(extents)
        mma = make_mma(config)
        storage = SmemAllocator().allocate(self.storage_type(mma))
        warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        edges = make_pipelines(config.topology, storage.barriers.data_ptr())
        if warp_idx == roles["epilogue"].first_warp:
            for warp in range(NUM_EPILOGUE_WARPS):
                cute.arch.mbarrier_init(storage.c_barriers.data_ptr() + warp, 1)
            for barrier in range(NUM_TAIL_BARRIERS):
                cute.arch.mbarrier_init(storage.tail_barriers.data_ptr() + barrier, 1)
            cute.arch.alloc_tmem(config.tmem.alloc_cols, storage.tmem_base.ptr, is_two_cta=is_pair)
        cute.arch.mbarrier_init_fence()
        tmem_before_signal()
        cluster_barrier(config.cluster)
        tmem_after_wait()
        cta = Cta(mma, storage, edges, cute.arch.retrieve_tmem_ptr(Float32, 16, storage.tmem_base.ptr))

        if warp_idx < roles["epilogue"].end_warp:
            activation = None if self.activation is None else self.activation.with_leaves(leaves)
            port = self.epilogue_port(cta, maps, extents.m)
            EpilogueRole(config, port, terms, results, activation).run(work)
        if warp_idx == roles["mma"].first_warp:
            if work.pair_idx == 0:
                MmaRole(config, self.mma_port(cta)).run(work)
            elif cutlass.const_expr(config.mma_blocks > 1):
                TailScales(config, self.tail_port(cta)).follow(work)
        if warp_idx == roles["load"].first_warp:
            LoadRole(config, self.load_port(cta, maps, work)).run(work)

        # Nobody leaves while others may still signal its barriers, or read its shared or tensor memory.
        tmem_before_signal()
        cluster_barrier(config.cluster)
        tmem_after_wait()
        if warp_idx == roles["epilogue"].first_warp:
            cute.arch.relinquish_tmem_alloc_permit(is_two_cta=is_pair)
            cute.arch.dealloc_tmem(cta.tmem_base, config.tmem.alloc_cols, is_two_cta=is_pair)

    def work(self, extents: Extents) -> Work:
        """This CTA's share."""
        config = self.config
        x, y, cluster_idx = cute.arch.block_idx()
        pair = config.num_pair_ctas
        return Work(
            grid=self.tile_grid(extents),
            k_tiles=KTiles.of(extents.k, config),
            cluster_idx=cluster_idx,
            num_clusters=cute.arch.grid_dim()[2],
            mmas_per_cluster=(config.cluster_m // pair, config.cluster_n),
            m_in_cluster=x // pair,
            n_in_cluster=y,
            num_pair_ctas=pair,
            pair_idx=x % pair,
        )

    def storage_type(self, mma: Mma) -> Any:
        """The shared memory of a CTA; sizes as in Config.smem_bytes, which the CPU checks."""
        config = self.config
        scale_type, c_type, d_type = ELEMENTS[config.scale], ELEMENTS[config.c], stored_element(config)
        a_type, b_type = smem_element(config, config.a), smem_element(config, config.b)

        @cute.struct
        class Storage:
            if config.has_c_buffer:
                c: cute.struct.Align[cute.struct.MemRange[c_type, cute.cosize(mma.c_layout.outer)], SMEM_ALIGN_BYTES]
            d: cute.struct.Align[cute.struct.MemRange[d_type, cute.cosize(mma.d_layout.outer)], SMEM_ALIGN_BYTES]
            a: cute.struct.Align[cute.struct.MemRange[a_type, cute.cosize(mma.a_layout.outer)], SMEM_ALIGN_BYTES]
            b: cute.struct.Align[cute.struct.MemRange[b_type, cute.cosize(mma.b_layout.outer)], SMEM_ALIGN_BYTES]
            a_scale: cute.struct.Align[
                cute.struct.MemRange[scale_type, cute.cosize(mma.a_scale_layout)], SMEM_ALIGN_BYTES
            ]
            b_scale: cute.struct.Align[
                cute.struct.MemRange[scale_type, cute.cosize(mma.b_scale_layout)], SMEM_ALIGN_BYTES
            ]
            barriers: cute.struct.MemRange[Int64, config.topology.num_barriers]
            c_barriers: cute.struct.MemRange[Int64, NUM_EPILOGUE_WARPS]
            tail_barriers: cute.struct.MemRange[Int64, NUM_TAIL_BARRIERS]
            tmem_base: Int32

        return Storage

    def load_port(self, cta: Cta, maps: TensorMaps, work: Work) -> LoadPort:
        mma, storage = cta.mma, cta.storage
        m, n, k = mma.tiler
        scale_n = mma.scale_b_tiler[1]
        tiled, scale_b = mma.tiled.get_slice(work.pair_idx), mma.scale_b.get_slice(0)
        smem_a, smem_b = self.smem_operands(cta)
        along_m, along_n = self.multicast("M"), self.multicast("N")
        return LoadPort(
            a=TmaTile(maps.a_atom, tiled.partition_A(cute.flat_divide(maps.a, (m, k))), smem_a, along_n),
            b=TmaTile(maps.b_atom, tiled.partition_B(cute.flat_divide(maps.b, (n, k))), smem_b, along_m),
            a_scale=TmaTile(
                maps.a_scale_atom,
                tiled.partition_A(cute.local_tile(maps.a_scale, (m, k), (None, None, None))),
                storage.a_scale.get_tensor(mma.a_scale_layout),
                along_n,
            ),
            b_scale=TmaTile(
                maps.b_scale_atom,
                scale_b.partition_B(cute.local_tile(maps.b_scale, (scale_n, k), (None, None, None))),
                storage.b_scale.get_tensor(mma.b_scale_layout),
                along_m,
            ),
            ab_edge=cta.edges["ab"],
        )

    def multicast(self, dim: str) -> dict[str, Any]:
        """block_copy's arguments for a tile that all MMAs of the cluster along `dim` need."""
        config = self.config
        num_mmas = {"M": config.cluster_m // config.num_pair_ctas, "N": config.cluster_n}[dim]
        if num_mmas == 1:
            return {}
        shape = (config.cluster_m, config.cluster_n)
        is_pair = config.num_pair_ctas == 2
        # The dimension that block_copy asks for is the one along which the tile changes, its documentation
        # notwithstanding.
        changes = {"M": "N", "N": "M"}[dim]
        return {"tma_multicast": {"cluster_shape": shape, "multicast_dim": changes, "use_2cta_mma_inst": is_pair}}

    def smem_operands(self, cta: Cta) -> tuple[cute.Tensor, cute.Tensor]:
        mma, storage = cta.mma, cta.storage
        return (
            storage.a.get_tensor(mma.a_layout.outer, swizzle=mma.a_layout.inner),
            storage.b.get_tensor(mma.b_layout.outer, swizzle=mma.b_layout.inner),
        )

    def mma_port(self, cta: Cta) -> MmaPort:
        config, mma, storage, tmem_base = self.config, cta.mma, cta.storage, cta.tmem_base
        smem_a, smem_b = self.smem_operands(cta)
        acc_layout = mma.tiled.make_fragment_C(mma.tiled.partition_shape_C(mma.tiler[:2])).layout
        scale, block = ELEMENTS[config.scale], config.block_elems
        atom = cute.make_copy_atom(tcgen05.Cp4x32x128bOp(cta_group(config)), scale)

        def scale_port(name: str, smem_layout: Any, make_layout: Callable[..., Any]) -> ScalePort:
            one_stage = cute.select(smem_layout, mode=[0, 1, 2])
            tmem_cols = tmem_base + config.tmem.offset(name)
            tmem = cute.make_tensor(
                cute.recast_ptr(tmem_cols, dtype=scale), make_layout(mma.tiled, mma.tiler, block, one_stage)
            )
            copy = tcgen05.make_s2t_copy(atom, cute.filter_zeros(tmem))
            return ScalePort(copy, getattr(storage, name).get_tensor(smem_layout), tmem, tmem_cols)

        a_scale = scale_port("a_scale", mma.a_scale_layout, blockscaled_layout.make_tmem_layout_sfa)
        b_scale = scale_port("b_scale", mma.b_scale_layout, blockscaled_layout.make_tmem_layout_sfb)
        return MmaPort(
            tiled_mma=mma.tiled,
            a=mma.tiled.make_fragment_A(smem_a),
            b=mma.tiled.make_fragment_B(smem_b),
            a_scale=a_scale,
            b_scale=b_scale,
            acc=cute.make_tensor(tmem_base + config.tmem.offset("acc"), acc_layout),
            ab_edge=cta.edges["ab"],
            acc_edge=cta.edges["acc"],
            wide_k=self.wide_k_port(cta) if config.wide_k else None,
            tail=self.tail_port(cta),
        )

    def tail_port(self, cta: Cta) -> TailPort:
        config, storage = self.config, cta.storage

        def words(name: str) -> cute.Tensor:
            rows, num_words = SCALE_ROWS, config.scale_words
            chunks = config.stage_bytes[name] // (rows * num_words * SCALE_WORD_BLOCKS)
            layout = cute.make_layout((rows, num_words, chunks, config.ab_stages))
            return cute.make_tensor(cute.recast_ptr(getattr(storage, name).data_ptr(), dtype=Uint32), layout)

        asked = storage.tail_barriers.data_ptr()
        # Of the two CTAs of a pair, whose ranks differ in the last bit, the other.
        peer_rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster()) ^ 1
        return TailPort(words("a_scale"), words("b_scale"), asked, asked + 1, peer_rank)

    def wide_k_port(self, cta: Cta) -> wide_k.WideKPort:
        config, mma, storage = self.config, cta.mma, cta.storage

        def operand(name: str, layout: Any, rows: int) -> cute.Tensor:
            return wide_k.bytes_of(config, getattr(storage, name).data_ptr(), layout.inner, rows)

        def words(name: str, rows: int) -> wide_k.WordPort:
            columns = cta.tmem_base + config.tmem.offset(name)
            return wide_k.word_port(config, getattr(storage, name).data_ptr(), columns, rows)

        return wide_k.WideKPort(
            tiled_mma=wide_k.tiled_mma(config),
            a=operand("a", mma.a_layout, CTA_M),
            b=operand("b", mma.b_layout, config.cta_n),
            a_scale=words("a_scale", CTA_M),
            b_scale=words("b_scale", config.scale_n),
            ab_edge=cta.edges["ab"],
        )

    def epilogue_port(self, cta: Cta, maps: TensorMaps, num_rows: Int32) -> EpiloguePort:
        config, mma, storage = self.config, cta.mma, cta.storage
        c_storage = storage.c if config.has_c_buffer else storage.d
        return EpiloguePort(
            row=cute.arch.thread_idx()[0] % (NUM_EPILOGUE_WARPS * WARP_ROWS),
            num_rows=num_rows,
            acc_base=cta.tmem_base + config.tmem.offset("acc"),
            c_atom=maps.c_atom,
            c_gmem=cute.flat_divide(maps.c, (WARP_ROWS, config.c_cols)),
            c_smem=c_storage.get_tensor(mma.c_layout.outer, swizzle=mma.c_layout.inner),
            d_atom=maps.d_atom,
            d_gmem=cute.flat_divide(maps.d, (WARP_ROWS, stored_cols(config))),
            d_smem=storage.d.get_tensor(mma.d_layout.outer, swizzle=mma.d_layout.inner),
            c_barriers=storage.c_barriers.data_ptr(),
            acc_edge=cta.edges["acc"],
        )
