# SPDX-License-Identifier: Apache-2.0
"""fmha_fwd for sm_100a and sm_103a: O = softmax(Q K^T * softmax_scale + mask) V and its log-sum-exp. Wiring only.

Called by: the variant rows of the family, through `make`.
Source: FlashAttention-4's pipeline: two query tiles of 128 rows a CTA take turns, so that the tensor pipe works for one
while a softmax warpgroup works on the other; S and P share tensor memory; rescaling is lazy.
Limits: fp16, bf16, e4m3 and e5m2; D and Dv <= 256; any Sq, Sk >= 0; Hq a multiple of Hk; softmax_scale > 0;
ceil(Sq / 256) * Hq * B * v_blocks < 2^31, packed (ceil(T / 256) + num_seqs) * Hq * v_blocks < 2^31; one CTA an SM (it
takes all of tensor memory).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint8
from cutlass.utils import SmemAllocator

from opdeck.core.fusion import Residual
from opdeck.core.fusion.intmath import ceil_div, max_, min_
from opdeck.core.kernels import schedule
from opdeck.core.kernels.pipelines import cluster_barrier, make_pipelines, tmem_after_wait, tmem_before_signal
from opdeck.core.kernels.tmem_tile import tmem_tensor, warp_uniform
from opdeck.core.kernels.topology import MBARRIER_BYTES
from opdeck.core.variant import Variant
from opdeck.plugins.fmha_fwd.sm100.blocks import (
    BlockQueue,
    EveryNthBlock,
    Grid,
    OneBlock,
    Sizes,
    TakenBlocks,
    for_each_block,
    pair_idx,
)
from opdeck.plugins.fmha_fwd.sm100.config import NUM_Q_TILES, Config, Schedule
from opdeck.plugins.fmha_fwd.sm100.correction import CorrectionPort, CorrectionRole
from opdeck.plugins.fmha_fwd.sm100.load import LoadPort, LoadRole, TmaTile, wait_for_commits
from opdeck.plugins.fmha_fwd.sm100.mma import MmaPort, MmaRole
from opdeck.plugins.fmha_fwd.sm100.operands import Elements, Mmas, TensorMaps, make_mmas, make_tensor_maps, o_tiler
from opdeck.plugins.fmha_fwd.sm100.order import OrderedSequences, make_sorter
from opdeck.plugins.fmha_fwd.sm100.scales import ElementScales, Scales
from opdeck.plugins.fmha_fwd.sm100.score_tensor import (
    ScoreTensorMap,
    ScoreTensorPort,
    ScoreTensorRole,
    ScoreTensorRows,
    allocate_stages,
    make_score_tensor_map,
    tensor_scores,
)
from opdeck.plugins.fmha_fwd.sm100.sequences import Sequences
from opdeck.plugins.fmha_fwd.sm100.softmax import SoftmaxPort, SoftmaxRole
from opdeck.plugins.fmha_fwd.sm100.store import StorePort, StoreRole
from opdeck.plugins.fmha_fwd.sm100.tail import TailPort, TailRole
from opdeck.plugins.fmha_fwd.sm100.work import LaneUses, Uses, Work
from opdeck.plugins.fmha_fwd.variants import LENGTHS, SCALES

SMEM_ALIGN_BYTES = 1024


def make(variant: Variant) -> Callable[..., None]:
    """The @cute.jit entry of a variant, of the arguments of SCHEMA, leaves and a stream.

    Raises: ValueError when the variant's configuration could not run.
    """
    config = Config.of(variant)
    config.check()
    fmha = FmhaForward(config, Elements.of(variant), Residual() if variant.fusion is None else variant.fusion)

    name = f"opdeck_{variant.id}"
    sort_sequences = make_sorter(config, fmha.fusion, name)

    @cute.kernel
    def kernel(maps: TensorMaps, outputs: Outputs, sequences: Sequences, scalars: Scalars, leaves: Any) -> None:
        fmha.run_cta(maps, outputs, sequences, scalars, leaves)

    @cute.jit
    def entry(q, k, v, o, lse, softmax_scale, *rest):  # type: ignore[no-untyped-def]
        sequences = Sequences(*rest[: len(LENGTHS)])
        max_ctas, *others = rest[len(LENGTHS) :]
        element_scales = ElementScales(*others[: len(SCALES) + 1])
        *leaves, stream = others[len(SCALES) + 1 :]
        if cutlass.const_expr(variant.workspace):
            sequences = OrderedSequences.of(sequences, q.shape[0], leaves.pop())
        maps = make_tensor_maps(config, make_mmas(config, fmha.elements), q, k, v, o)
        maps = replace(maps, score_tensors=fmha.score_tensor_maps(leaves))
        num_k_rows = sequences.num_k_rows(k.shape[1])
        num_lists, num_q_blocks = sequences.block_lists(q.shape[0], q.shape[1], config.block_m)
        scales = Scales.of(fmha.fusion, softmax_scale, element_scales)
        num_rows = num_lists * Int32(q.shape[2]) * config.v_blocks
        scalars = Scalars(scales, num_k_rows, num_lists, num_q_blocks, fmha.section_heads(q, k, num_k_rows, num_rows))
        pair = config.num_pair_ctas
        num_pairs = num_q_blocks * num_rows
        if cutlass.const_expr(config.is_persistent):
            num_pairs = min_(num_pairs, max_(max_ctas // pair, 1))
        if cutlass.const_expr(variant.workspace):
            sort_sequences(sequences, Int32(q.shape[1]), num_k_rows, leaves, stream)
        kernel(maps, Outputs(o, lse), sequences, scalars, leaves).launch(
            grid=(num_pairs * pair, 1, 1),
            block=(config.roles.num_threads, 1, 1),
            cluster=(pair, 1, 1) if pair > 1 else None,
            stream=stream,
            min_blocks_per_mp=1,
        )

    for function in (kernel, entry):
        function.set_name_prefix(name, remove_cutlass_symbol=True, keep_mangled_name=False)
    return entry


@dataclass(frozen=True)
class Outputs:
    """o (B, Sq, Hq, D) for what TMA does not store, lse (B, Hq, Sq) f32, absent when its pointer is null."""

    o: cute.Tensor
    lse: cute.Tensor


@dataclass(frozen=True)
class Scalars:
    """Scales; rows of K that a sequence may have, which the tensor maps do not tell; lists of blocks of a head, and
    blocks of a list; heads of a schedule section."""

    scales: Scales
    num_k_rows: Int32
    num_lists: Int32
    num_q_blocks: Int32
    section_heads: Int32


@dataclass(frozen=True)
class Operands:
    """What the roles read and write in global memory, and how scores are scaled and changed."""

    maps: TensorMaps
    outputs: Outputs
    scales: Scales
    fusion: Any
    num_k_rows: Int32
    sequences: Sequences

    def fusion_of(self, work: Work) -> Any:
        """The fusion as the head of a block has it."""
        return self.fusion.at(work.seq, work.head)


@dataclass(frozen=True)
class Cta:
    """What the ports of a CTA's roles are cut from."""

    mmas: Mmas
    storage: Any
    edges: dict[str, Any]
    tmem_base: cute.Pointer
    score_tensors: tuple[ScoreTensorPort, ...]


class FmhaForward:
    """What the host function and the kernel of one variant share."""

    def __init__(self, config: Config, elements: Elements, fusion: Any) -> None:
        self.config = config
        self.elements = elements
        self.fusion = fusion

    def section_heads(self, q: cute.Tensor, k: cute.Tensor, num_k_rows: Int32, num_rows: Int32) -> Int32:
        """Heads of a schedule section, each as often as V has blocks of columns; num_rows: such heads of all lists."""
        num_heads = q.shape[2]
        config = self.config
        row_elems = config.d_qk + config.d_v * config.v_blocks
        kv_head_bytes = Int64(num_k_rows) * (row_elems * config.elem_bits // 8)
        head_group = Int32(num_heads) // Int32(k.shape[2]) * config.v_blocks
        # Never more than there are, so that 32 bits hold every product of the schedule.
        return Int32(min_(schedule.heads_per_section(kv_head_bytes, head_group), Int64(num_rows)))

    def score_tensor_maps(self, leaves: Any) -> tuple[ScoreTensorMap, ...]:
        """Of the score function that has a tensor, if there is one."""
        fusion = self.fusion.with_leaves(leaves)
        return tuple(make_score_tensor_map(self.config, score.tensor) for score in tensor_scores(fusion))

    @cute.jit
    def run_cta(self, maps: TensorMaps, outputs: Outputs, sequences: Sequences, scalars: Scalars, leaves: Any) -> None:
        """Kernel body of a CTA, if it has rows."""
        num_q_rows, _, num_heads, _ = maps.q.shape
        sizes = Sizes(
            num_q_rows=num_q_rows,
            num_k_rows=scalars.num_k_rows,
            num_heads=num_heads,
            num_kv_heads=maps.k.shape[2],
            num_lists=scalars.num_lists,
            num_q_blocks=sequences.num_listed(scalars.num_q_blocks),
            section_heads=scalars.section_heads,
        )
        grid = Grid(self.config, sequences, sizes)
        fusion = self.fusion.with_leaves(leaves)
        operands = Operands(maps, outputs, scalars.scales, fusion, scalars.num_k_rows, sequences)
        if cutlass.const_expr(self.config.is_persistent):
            self.run_roles(operands, EveryNthBlock(grid))
        elif cutlass.const_expr(self.config.schedule is Schedule.DYNAMIC):
            self.run_roles(operands, grid)
        else:
            work = grid.work(grid.first_block)
            if work.exists(self.config):
                self.run_roles(operands, OneBlock(work))

    @cute.jit
    def run_roles(self, operands: Operands, blocks: Any) -> None:
        """Shared memory, barriers and tensor memory, then each warp runs its role on each of the CTA's blocks."""
        config, roles = self.config, self.config.roles
        mmas = make_mmas(config, self.elements)
        smem = SmemAllocator()
        score_tensor_buffers = [allocate_stages(smem, config, score) for score in tensor_scores(operands.fusion)]
        storage = smem.allocate(self.storage_type())
        warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        edges = make_pipelines(config.topology, storage.barriers.data_ptr())
        asking = blocks
        if cutlass.const_expr(config.schedule is Schedule.DYNAMIC):
            queue = BlockQueue(config, storage.barriers.data_ptr() + config.topology.num_barriers)
            if cute.arch.thread_idx()[0] == 0:
                BlockQueue.init(queue)
            blocks, asking = TakenBlocks(blocks, queue), TakenBlocks(blocks, queue, queue.ask)
        if warp_idx == roles["correction"].first_warp:
            cute.arch.alloc_tmem(config.tmem.alloc_cols, storage.tmem_base.ptr, is_two_cta=config.num_pair_ctas == 2)
        cute.arch.mbarrier_init_fence()
        tmem_before_signal()
        cluster_barrier(config.cluster)
        tmem_after_wait()
        tmem_base = warp_uniform(cute.arch.retrieve_tmem_ptr(Float32, 16, storage.tmem_base.ptr))
        score_tensors = tuple(
            ScoreTensorPort(score_tensor_map, buffer, edges["score_tensor"])
            for score_tensor_map, buffer in zip(operands.maps.score_tensors, score_tensor_buffers, strict=True)
        )
        cta = Cta(mmas, storage, edges, tmem_base, score_tensors)

        if warp_idx < roles["softmax"].end_warp:
            cute.arch.setmaxregister_increase(config.softmax_regs)
            for_each_block(blocks, partial(self.run_softmax, cta, operands), LaneUses())
        elif warp_idx < roles["correction"].end_warp:
            cute.arch.setmaxregister_decrease(config.correction_regs)
            for_each_block(blocks, partial(self.run_correction, cta, operands), Uses())
        else:
            cute.arch.setmaxregister_decrease(config.other_regs)
            if warp_idx == roles["mma"].first_warp and pair_idx(config) == 0:
                for_each_block(blocks, partial(self.run_mma, cta, operands), Uses())
            if warp_idx == roles["load"].first_warp:
                uses = for_each_block(blocks, partial(self.run_load, cta, operands), Uses())
                if cutlass.const_expr(config.num_pair_ctas > 1):
                    wait_for_commits(config, edges, uses)
            if warp_idx == roles["store"].first_warp:
                for_each_block(blocks, partial(self.run_store, cta, operands), Uses())
            if warp_idx == roles["tail"].first_warp:
                for_each_block(asking, partial(self.run_tail, cta, operands), Uses())

        # Nobody leaves while others may still signal its barriers, or read its shared or tensor memory.
        tmem_before_signal()
        cluster_barrier(config.cluster)
        tmem_after_wait()
        if warp_idx == roles["correction"].first_warp:
            cute.arch.relinquish_tmem_alloc_permit(is_two_cta=config.num_pair_ctas == 2)
            cute.arch.dealloc_tmem(tmem_base, config.tmem.alloc_cols, is_two_cta=config.num_pair_ctas == 2)

    def run_mma(self, cta: Cta, operands: Operands, work: Work, uses: Uses) -> Uses:
        return MmaRole(self.config, self.mma_port(cta), operands.fusion_of(work)).run(work, uses)

    def run_load(self, cta: Cta, operands: Operands, work: Work, uses: Uses) -> Uses:
        port = self.load_port(cta, operands, work)
        return LoadRole(self.config, port, operands.fusion_of(work)).run(work, uses)

    def run_store(self, cta: Cta, operands: Operands, work: Work, uses: Uses) -> Uses:
        next_uses = Uses(first=LaneUses(uses.first.blocks + 1))
        for port in cta.score_tensors:
            next_uses = ScoreTensorRole(self.config, port, operands.fusion_of(work)).run(work, uses)
        StoreRole(self.config, self.store_port(cta, operands, work)).run(work, uses.first)
        return next_uses

    def run_tail(self, cta: Cta, operands: Operands, work: Work, uses: Uses) -> Uses:
        if not self.config.may_cut_v:
            return uses
        _, _, smem_v = self.load_buffers(cta)
        cut_tile = work.cut_tile(self.config, operands.num_k_rows)
        port = TailPort(smem_v, cta.edges["v"], cta.edges["cut_v"], cut_tile)
        return TailRole(self.config, port, operands.fusion_of(work)).run(work, uses)

    def storage_type(self) -> Any:
        """The shared memory of a CTA; sizes as in Config.smem_bytes, which the CPU checks."""
        config = self.config
        q_bytes, k_bytes, v_bytes = (config.smem_bytes[name] for name in ("q_and_o", "k", "v"))

        num_words = sum(config.smem_bytes[name] for name in ("barriers", "block_queue")) // MBARRIER_BYTES

        @cute.struct
        class Storage:
            q_and_o: cute.struct.Align[cute.struct.MemRange[Uint8, q_bytes], SMEM_ALIGN_BYTES]
            k: cute.struct.Align[cute.struct.MemRange[Uint8, k_bytes], SMEM_ALIGN_BYTES]
            v: cute.struct.Align[cute.struct.MemRange[Uint8, v_bytes], SMEM_ALIGN_BYTES]
            factors: cute.struct.MemRange[Float32, NUM_Q_TILES * config.tile_m]
            row_sums: cute.struct.MemRange[Float32, NUM_Q_TILES * config.tile_m]
            barriers: cute.struct.Align[cute.struct.MemRange[Int64, num_words], 16]
            tmem_base: Int32

        return Storage

    def load_port(self, cta: Cta, operands: Operands, work: Work) -> LoadPort:
        maps, mmas, q_begin, k_begin = operands.maps, cta.mmas, work.q_rows.begin, work.k_rows.begin
        smem_q, smem_k, smem_v = self.load_buffers(cta)
        qk, pv = mmas.qk.get_slice(work.pair_idx), mmas.pv.get_slice(work.pair_idx)
        (m, n, d_qk), d_v = mmas.qk_tiler, mmas.pv_tiler[1]
        q, k = (cute.domain_offset((begin, 0, 0, 0), x) for begin, x in ((q_begin, maps.q), (k_begin, maps.k)))
        v = cute.domain_offset((0, k_begin, 0, 0), maps.v)
        return LoadPort(
            q=TmaTile(maps.q_atom, qk.partition_A(cute.flat_divide(q, (m, d_qk))), smem_q),
            k=TmaTile(maps.k_atom, qk.partition_B(cute.flat_divide(k, (n, d_qk))), smem_k),
            v=TmaTile(maps.v_atom, pv.partition_B(cute.flat_divide(v, (d_v, n))), smem_v),
            q_edge=cta.edges["q"],
            k_edge=cta.edges["k"],
            v_edge=cta.edges["v"],
            cut_v_edge=cta.edges.get("cut_v"),
            q_buffers_edge=cta.edges.get("q_buffers"),
            cut_tile=work.cut_tile(self.config, operands.num_k_rows),
            k_tile=partial(operands.sequences.k_tile, tiles_per_page=maps.k.shape[0] // n),
            end_tile=ceil_div(maps.k.shape[0], n),
        )

    def mma_port(self, cta: Cta) -> MmaPort:
        mmas, tmem, tmem_base = cta.mmas, self.config.tmem, cta.tmem_base
        smem_q, smem_k, smem_v = self.load_buffers(cta)
        s_layout = mmas.qk.make_fragment_C(mmas.qk.partition_shape_C(mmas.qk_tiler[:2])).layout
        o_layout = mmas.pv.make_fragment_C(mmas.pv.partition_shape_C(mmas.pv_tiler[:2])).layout
        p_first = mmas.pv.make_fragment_A(cute.make_tensor(tmem_base, mmas.p_layout.outer))[None, None, None, 0]

        def p_tensor(name: str) -> cute.Tensor:
            base = cute.recast_ptr(tmem_base + tmem.offset(name), dtype=self.elements.p)
            return cute.make_tensor(base, p_first.layout)

        return MmaPort(
            qk_mma=mmas.qk,
            pv_mma=mmas.pv,
            q=mmas.qk.make_fragment_A(smem_q),
            k=mmas.qk.make_fragment_B(smem_k),
            v=mmas.pv.make_fragment_B(smem_v),
            s=tuple(cute.make_tensor(tmem_base + tmem.offset(name), s_layout) for name in ("S0", "S1")),
            p=tuple(p_tensor(name) for name in ("P0", "P1")),
            o=tuple(cute.make_tensor(tmem_base + tmem.offset(name), o_layout) for name in ("O0", "O1")),
            q_edge=cta.edges["q"],
            k_edge=cta.edges["k"],
            v_edge=cta.edges["v"],
            scores_edge=cta.edges["scores"],
            p_tail_edge=cta.edges["p_tail"],
            o_edge=cta.edges["o"],
        )

    def store_port(self, cta: Cta, operands: Operands, work: Work) -> StorePort:
        maps = operands.maps
        o = cute.domain_offset((work.q_rows.begin, 0, 0, 0), maps.o)
        tiles = cute.flat_divide(o, o_tiler(self.config))
        return StorePort(
            maps.o_atom,
            tiles,
            self.o_buffer(cta),
            operands.outputs.o,
            out_edge=cta.edges["out"],
            q_buffers_edge=cta.edges.get("q_buffers"),
        )

    @cute.jit
    def run_softmax(self, cta: Cta, operands: Operands, work: Work, uses: LaneUses) -> LaneUses:
        config, group_threads = self.config, self.config.roles["softmax"].group_threads
        thread = cute.arch.thread_idx()[0]
        tile_idx, row = cute.arch.make_warp_uniform(thread // group_threads), thread % group_threads
        tmem = config.tmem
        tile_cols = tile_idx * config.tile_n
        port = SoftmaxPort(
            tile_idx=tile_idx,
            row=row,
            warp_row=cute.arch.make_warp_uniform(row),
            s=tmem_tensor(cta.tmem_base, tmem.offset("S0") + tile_cols, config.tile_n),
            p=tmem_tensor(cta.tmem_base, tmem.offset("P0") + tile_cols, tmem.aliases["P0"].cols),
            factors=self.row_values(cta.storage.factors)[None, tile_idx],
            row_sums=self.row_values(cta.storage.row_sums)[None, tile_idx],
            lse=operands.outputs.lse,
            scores_edge=cta.edges["scores"],
            p_tail_edge=cta.edges["p_tail"],
            factor_edge=cta.edges["factor"],
            row_sum_edge=cta.edges["row_sum"],
            tensor_rows=tuple(ScoreTensorRows(config, port, tile_idx, row) for port in cta.score_tensors),
        )
        role = SoftmaxRole(config, port, operands.fusion_of(work), self.elements.p)
        return role.run(work, operands.scales.of_scores(work), uses)

    @cute.jit
    def run_correction(self, cta: Cta, operands: Operands, work: Work, uses: Uses) -> Uses:
        config = self.config
        row = cute.arch.thread_idx()[0] % config.roles["correction"].num_threads
        port = CorrectionPort(
            row=row,
            warp_row=cute.arch.make_warp_uniform(row),
            o_base=cta.tmem_base + config.tmem.offset("O0"),
            factors=self.row_values(cta.storage.factors),
            row_sums=self.row_values(cta.storage.row_sums),
            o_smem=self.o_buffer(cta),
            factor_edge=cta.edges["factor"],
            row_sum_edge=cta.edges["row_sum"],
            o_edge=cta.edges["o"],
            out_edge=cta.edges["out"],
        )
        role = CorrectionRole(config, port, operands.fusion_of(work), self.elements.out)
        return role.run(work, operands.scales.of_output(work), uses)

    def row_values(self, buffer: Any) -> cute.Tensor:
        """(128, 2 tiles) f32: one a row of each query tile."""
        return buffer.get_tensor(cute.make_layout((self.config.tile_m, NUM_Q_TILES)))

    def load_buffers(self, cta: Cta) -> tuple[cute.Tensor, cute.Tensor, cute.Tensor]:
        """Shared memory of Q, and of the stages of K and V."""
        mmas, storage = cta.mmas, cta.storage
        return (
            storage.q_and_o.get_tensor(mmas.q_layout.outer, mmas.q_layout.inner, self.elements.qkv),
            storage.k.get_tensor(mmas.k_layout.outer, mmas.k_layout.inner, self.elements.qkv),
            storage.v.get_tensor(mmas.v_layout.outer, mmas.v_layout.inner, self.elements.qkv),
        )

    def o_buffer(self, cta: Cta) -> cute.Tensor:
        """O (128, Dv, stage). In the buffers of Q it waits for no one: no S is computed from Q any more."""
        layout = cta.mmas.o_layout
        first = cta.storage.q_and_o.data_ptr() + self.config.o_offset_bytes
        return cute.make_tensor(cute.recast_ptr(first, layout.inner, self.elements.out), layout.outer)
