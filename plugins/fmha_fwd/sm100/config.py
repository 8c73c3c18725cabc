# SPDX-License-Identifier: Apache-2.0
"""What one compiled fmha_fwd kernel is made of, on the host: tile sizes, roles, pipeline edges, memory maps.

Called by: kernel.py (device code reads it at trace time); unit tests on a CPU (no CuTe DSL here).
Limits: D and Dv multiples of 32 up to what shared and tensor memory hold; two query tiles of 128 rows a CTA.
Of two CTAs that share MMAs each has half of an MMA's rows, half of the keys of each K tile and half of the columns of
each V tile.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opdeck.core import dtypes
from opdeck.core.kernels.tmem import Alias, TmemMap
from opdeck.core.kernels.topology import (
    MBARRIER_BYTES,
    ClusterShape,
    Edge,
    EdgeKind,
    Role,
    RoleTable,
    Topology,
    check_smem,
)

if TYPE_CHECKING:
    from opdeck.core.variant import Variant

NUM_Q_TILES = 2
QUEUE_STAGE_BYTES = 16 + 2 * MBARRIER_BYTES  # the response of cluster launch control, and its two barriers
# What P may grow to by the bits of its type: fp16 and e4m3 end at 65504 and 448.
P_LIMIT_LOG2 = {16: 15, 8: 8}
SCORE_TENSOR_COLS = 32
"""Keys whose elements of a score function's tensor come at once. More of them take registers that the softmax lacks."""
SMEM_LIMIT_BYTES = 227 * 1024


class Schedule(enum.Enum):
    """Which blocks of query rows a CTA takes."""

    INDIVIDUAL = "individual"  # one, and as many CTAs as blocks
    PERSISTENT = "persistent"  # as many CTAs as SMs; each takes every n-th block, the longest first
    DYNAMIC = "dynamic"  # as many CTAs as blocks; each that runs takes blocks of those that have not begun
    PAIR = "pair"  # as PERSISTENT, but two CTAs that share each MMA take a block of twice the rows


@dataclass(frozen=True)
class Config:
    """Host data of a variant. Register counts are a thread's; `_elems` counts are a row of one tile."""

    d_qk: int
    d_v: int
    """Head dims of the tiles; those of tensors may be smaller, and are filled up with zeros."""
    v_blocks: int
    """Blocks of d_v columns of V and O, each of which is a CTA's, that computes the same P as the others."""
    elem_bits: int
    """Of an element of Q, K, V and P."""
    out_bits: int
    """Of an element of O."""
    tile_m: int
    tile_n: int
    k_stages: int
    v_stages: int
    softmax_regs: int
    correction_regs: int
    other_regs: int
    p_head_elems: int
    """Columns of P whose P V starts while the softmax works on the others."""
    rescale_threshold_log2: int
    """Growth of a row's maximum, in log2, from which O is rescaled; 0: at every growth."""
    p_scale_log2: int
    """log2 of what P and the row sum are multiplied by, to use the range of P's type; O / row sum does not see it."""
    exp2_poly_elems: int
    """Scores of each 128 that take exp2 by polynomial instead of MUFU; even."""
    row_max_by_load: int
    """1: tcgen05.ld.red delivers the row maximum of unmasked tiles (sm_103a); 0: computed from registers."""
    schedule: Schedule
    o_buffers: int
    """In which the O of both query tiles is staged in turn; 0: in the buffers of Q, which is dead by then."""
    score_tensor_bytes: int = 0
    """Size of an element of the score function's tensor; 0: there is none."""
    score_tensor_ring_bytes: int = 0
    """Of shared memory, for the stages of that tensor."""

    @classmethod
    def of(cls, variant: Variant) -> Config:
        elem_bits = dtypes.dtype(variant.dtype).bits
        out_bits = dtypes.dtype(variant.symbol_dtypes["O"]).bits
        tuning: dict[str, Any] = {**variant.config, "schedule": Schedule(variant.config["schedule"])}
        return cls(elem_bits=elem_bits, out_bits=out_bits, **tuning)

    @property
    def is_persistent(self) -> bool:
        """Whether CTAs, no more than SMs, take every n-th block."""
        return self.schedule in (Schedule.PERSISTENT, Schedule.PAIR)

    @property
    def num_pair_ctas(self) -> int:
        """CTAs that share each MMA."""
        return 2 if self.schedule is Schedule.PAIR else 1

    @property
    def cluster(self) -> ClusterShape:
        return ClusterShape(self.num_pair_ctas, 1, self.num_pair_ctas)

    @property
    def mma_m(self) -> int:
        """Query rows of an MMA: a tile of each CTA that shares it."""
        return self.num_pair_ctas * self.tile_m

    @property
    def block_m(self) -> int:
        """Query rows of the CTAs that share MMAs."""
        return NUM_Q_TILES * self.mma_m

    @property
    def may_cut_v(self) -> bool:
        """Whether V tiles may end beyond a sequence. Of such a tile each CTA of a pair would have to clear its half."""
        return self.num_pair_ctas == 1

    @property
    def keeps_factors_in_step(self) -> bool:
        """Whether a query tile that a block lacks takes "factor" once where the other takes it an odd number of times,
        so that one parity is that of both. Pairs do: without masks, the query tiles that a block has take it equally
        often."""
        return self.num_pair_ctas > 1

    @property
    def score_tensor_parts(self) -> int:
        """Stages' loads a K tile."""
        return self.tile_n // SCORE_TENSOR_COLS

    @property
    def score_tensor_stage_bytes(self) -> int:
        return self.tile_m * SCORE_TENSOR_COLS * self.score_tensor_bytes

    @property
    def score_tensor_stages(self) -> int:
        """Of both query tiles."""
        return self.score_tensor_ring_bytes // self.score_tensor_stage_bytes if self.score_tensor_bytes else 0

    @property
    def roles(self) -> RoleTable:
        return RoleTable(
            (
                Role("softmax", 0, 8, self.softmax_regs, num_groups=NUM_Q_TILES),
                Role("correction", 8, 4, self.correction_regs),
                Role("mma", 12, 1, self.other_regs),
                Role("load", 13, 1, self.other_regs),
                Role("store", 14, 1, self.other_regs),
                Role("tail", 15, 1, self.other_regs),
            )
        )

    @property
    def topology(self) -> Topology:
        """Edges with NUM_Q_TILES stages use stage t for query tile t; "k", "v" and "out" are rings. Bytes of "q", "k"
        and "v" are those of all CTAs that share MMAs."""
        q_bytes = self.num_pair_ctas * self.q_tile_bytes
        score_tensor_edges = (
            # By the store warp, which has nothing to do until O is there.
            Edge(
                "score_tensor",
                "store",
                "softmax",
                EdgeKind.TMA_ASYNC,
                self.score_tensor_stages,
                stage_bytes=self.score_tensor_stage_bytes,
            ),
        )
        q_buffers_edges = (
            # Taken for each block before Q of it comes; freed once its O is stored from there.
            Edge("q_buffers", "load", "store", EdgeKind.ASYNC, 1),
        )
        cut_v_edges = (
            # The V tile that the end of a sequence cuts, on its way to its stage of "v": the tail role fills that.
            Edge("cut_v", "load", "tail", EdgeKind.TMA_ASYNC, 1, stage_bytes=self.v_tile_bytes),
        )
        return Topology(
            self.roles,
            (
                Edge("q", "load", "mma", EdgeKind.TMA_UMMA, NUM_Q_TILES, stage_bytes=q_bytes),
                Edge("k", "load", "mma", EdgeKind.TMA_UMMA, self.k_stages, stage_bytes=self.k_tile_bytes),
                Edge("v", "load", "mma", EdgeKind.TMA_UMMA, self.v_stages, stage_bytes=self.v_tile_bytes),
                # Filled with S; freed by leaving the first p_head_elems columns of P in its place.
                Edge("scores", "mma", "softmax", EdgeKind.UMMA_ASYNC, NUM_Q_TILES),
                # The other columns of P. Its turns are those of "scores", so nobody waits for it to be free.
                Edge("p_tail", "softmax", "mma", EdgeKind.ASYNC_UMMA, NUM_Q_TILES),
                # How O is rescaled before the P V of a K tile. Its turns are those of "scores" too: S of the next tile
                # comes after that P V, which waits for "o" to be freed.
                Edge("factor", "softmax", "correction", EdgeKind.ASYNC, NUM_Q_TILES),
                Edge("row_sum", "softmax", "correction", EdgeKind.ASYNC, NUM_Q_TILES),
                # Filled with O after each P V; freed before each, once O is on the scale of its P.
                Edge("o", "mma", "correction", EdgeKind.UMMA_ASYNC, NUM_Q_TILES),
                Edge("out", "correction", "store", EdgeKind.ASYNC, self.o_stages),
                *(cut_v_edges if self.may_cut_v else ()),
                *(score_tensor_edges if self.score_tensor_bytes else ()),
                *(q_buffers_edges if self.reloads_over_o else ()),
            ),
            self.cluster,
        )

    @property
    def tmem(self) -> TmemMap:
        p_cols = self.tile_n * self.elem_bits // 32
        return TmemMap(
            regions={"S0": self.tile_n, "S1": self.tile_n, "O0": self.d_v, "O1": self.d_v},
            aliases={"P0": Alias("S0", 0, p_cols), "P1": Alias("S1", 0, p_cols)},
        )

    @property
    def q_tile_bytes(self) -> int:
        return self.tile_m * self.d_qk * self.elem_bits // 8

    @property
    def k_tile_bytes(self) -> int:
        return self.tile_n * self.d_qk * self.elem_bits // 8

    @property
    def v_tile_bytes(self) -> int:
        return self.tile_n * self.d_v * self.elem_bits // 8

    @property
    def o_tile_bytes(self) -> int:
        return self.tile_m * self.d_v * self.out_bits // 8

    @property
    def shares_q(self) -> bool:
        """Whether O is staged in the buffers of Q."""
        return self.o_buffers == 0

    @property
    def reloads_over_o(self) -> bool:
        """Whether Q of a CTA's next block comes to where O of the last one is stored from."""
        return self.shares_q and self.schedule is not Schedule.INDIVIDUAL

    @property
    def q_slot_bytes(self) -> int:
        """Of a query tile's buffer."""
        return max(self.q_tile_bytes, self.o_tile_bytes) if self.shares_q else self.q_tile_bytes

    @property
    def o_stages(self) -> int:
        """Buffers of O: those of Q, or its own."""
        return NUM_Q_TILES if self.shares_q else self.o_buffers

    @property
    def o_slot_bytes(self) -> int:
        return self.q_slot_bytes if self.shares_q else self.o_tile_bytes

    @property
    def o_offset_bytes(self) -> int:
        """Of O behind the beginning of Q."""
        return 0 if self.shares_q else NUM_Q_TILES * self.q_slot_bytes

    @property
    def queue_stages(self) -> int:
        """Blocks that a CTA may have asked for ahead of its slowest warp."""
        return 2 if self.schedule is Schedule.DYNAMIC else 0

    @property
    def smem_bytes(self) -> dict[str, int]:
        """Bytes of each shared-memory buffer."""
        return {
            "q_and_o": max(NUM_Q_TILES * self.q_slot_bytes, self.o_offset_bytes + self.o_stages * self.o_slot_bytes),
            "k": self.k_stages * self.k_tile_bytes // self.num_pair_ctas,
            "v": self.v_stages * self.v_tile_bytes // self.num_pair_ctas,
            "score_tensor": self.score_tensor_stages * self.score_tensor_stage_bytes,
            "factors": NUM_Q_TILES * self.tile_m * 4,
            "row_sums": NUM_Q_TILES * self.tile_m * 4,
            "barriers": self.topology.num_barriers * MBARRIER_BYTES,
            "block_queue": self.queue_stages * QUEUE_STAGE_BYTES,
            "tmem_base": 16,
        }

    def check(self) -> None:
        """Raises ValueError (TopologyError, TmemError) when the configuration could not run."""
        if self.tile_m != 128 or self.tile_n % 32:
            raise ValueError(f"tile: ({self.tile_m}, {self.tile_n}), want 128 rows and a multiple of 32 keys")
        if self.p_head_elems % 32 or not 0 < self.p_head_elems < self.tile_n:
            raise ValueError(f"p_head_elems: {self.p_head_elems}, want a multiple of 32 inside (0, {self.tile_n})")
        if self.score_tensor_bytes:
            self.check_score_tensor()
        limit_log2 = P_LIMIT_LOG2[self.elem_bits] - self.p_scale_log2
        if not 0 <= self.rescale_threshold_log2 <= limit_log2:
            # P grows to 2 to the power of the sum.
            raise ValueError(f"rescale_threshold_log2: {self.rescale_threshold_log2}, want 0..{limit_log2}")
        if self.exp2_poly_elems % 2 or not 0 <= self.exp2_poly_elems <= 128:
            raise ValueError(f"exp2_poly_elems: {self.exp2_poly_elems}, want an even count in 0..128")
        self.topology.check()
        self.tmem.check()
        check_smem(self.smem_bytes, SMEM_LIMIT_BYTES)

    def check_score_tensor(self) -> None:
        """Raises ValueError unless a K tile's parts take each stage of a query tile's ring equally often."""
        stages = self.score_tensor_stages // NUM_Q_TILES
        if stages == 0 or self.score_tensor_parts % stages:
            want = (
                f"stages of {self.score_tensor_stage_bytes} bytes, {self.score_tensor_parts} a query tile or a divisor"
            )
            raise ValueError(f"score_tensor_ring_bytes: {self.score_tensor_ring_bytes}, want {want}")
