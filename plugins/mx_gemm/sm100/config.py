# SPDX-License-Identifier: Apache-2.0
"""What one compiled mx_gemm kernel is made of, on the host: tiles, roles, pipeline edges, memory maps.

Called by: kernel.py (device code reads it at trace time); unit tests on a CPU (no CuTe DSL here).
Source: PTX ISA 9.x, "tcgen05.mma" kinds mxf8f6f4 (K = 32), mxf4 and mxf4nvf4 (K = 64); scale factors in tensor memory
take one 32-bit word a row and four blocks of K, in 32 lanes, repeated for the four warps.
Limits: a CTA's tile has 128 rows; A and B are K-major, or of elements of 8 bits.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from opdeck.core.dtypes import dtype
from opdeck.core.kernels.tmem import TMEM_COLS, TmemMap
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
from opdeck.core.mx.formats import FORMATS, mx_format
from opdeck.core.variant import Variant

CTA_M = 128
NUM_ACCUMULATORS = 2
NUM_EPILOGUE_WARPS = 4
STORE_ROW_BYTES = 128
"""Bytes of a row of D that a warp stages and stores at once: the width of the shared-memory swizzle."""
MAX_STORE_COLS = 128
WARP_ROWS = 32
CHUNK_COLS = 32
"""Columns of a row that a thread of the epilogue has in registers at once."""
NUM_TAIL_BARRIERS = 2
"""Between the two CTAs of a pair, at the end of K: k_tail.py."""
SCALE_ROWS = 128
SCALE_WORD_BLOCKS = 4
MMAS_PER_K_TILE = 4
WIDE_K = 96
"""K of the widest MMAs, of packed 4-bit elements, on sm_103a."""
STAGES_PER_GROUP = 3
"""K tiles that such MMAs divide evenly."""
SMEM_LIMIT_BYTES = 227 * 1024
# Room to move each buffer to its alignment.
SMEM_ALIGN_BYTES = 1024


@dataclass(frozen=True)
class Config:
    """Host data of a variant. a, b, c, d, scale: canonical names of the element types; `_stages` count buffers."""

    a: str
    b: str
    c: str
    d: str
    scale: str
    block_elems: int
    mma_m: int
    """Rows of an MMA: 128 for one CTA, 256 for a pair."""
    mma_n: int
    cluster_m: int
    cluster_n: int
    d_stages: int
    band_tiles: int
    """Cluster tiles along M that run together for each N: they share B while it is in the L2 cache."""
    ab_stages: int = 1
    wide_k: int = 0
    """1: three tiles of K at a time by MMAs of WIDE_K."""
    num_columns: int = 1
    """Columns of A B^T that the activation makes one of D of."""
    transposed: tuple[str, ...] = ()
    """Those of "a" and "b" that are MN-major."""
    d_format: str = ""
    """The block-scaled format of D; "" where D is of plain numbers."""

    @classmethod
    def of(cls, variant: Variant) -> Config:
        """The configuration of a row."""
        return cls.from_mappings(variant.symbol_dtypes, {**variant.config, "transposed": variant.transposed})

    @classmethod
    def from_mappings(cls, dtypes: Mapping[str, str], rest: Mapping[str, Any]) -> Config:
        """dtypes: element types by symbols of the schema. rest: the other fields by name."""
        block = next(row.block for row in FORMATS if row.scale_name == dtypes["S"])
        a, b, c, d = (dtypes[symbol] for symbol in "ABCD")
        return cls(a=a, b=b, c=c, d=d, scale=dtypes["S"], block_elems=block, **rest)

    @property
    def is_4bit(self) -> bool:
        """Both operands are packed 4-bit elements, which have MMA kinds of their own."""
        return self.a == self.b == "fp4_e2m1"

    @property
    def inst_k(self) -> int:
        return 64 if self.is_4bit else 32

    @property
    def mma_blocks(self) -> int:
        """Scales of a row that one MMA takes."""
        return self.inst_k // self.block_elems

    @property
    def tile_k(self) -> int:
        return MMAS_PER_K_TILE * self.inst_k

    @property
    def group_k(self) -> int:
        """K of the tiles that MMAs of WIDE_K take together."""
        return STAGES_PER_GROUP * self.tile_k

    @property
    def words_per_load(self) -> int:
        """Words of scales of a row that go to tensor memory at once for MMAs of WIDE_K: as few as whole MMAs take."""
        return STAGES_PER_GROUP

    @property
    def num_pair_ctas(self) -> int:
        """CTAs that share an MMA."""
        return self.mma_m // CTA_M

    @property
    def cluster(self) -> ClusterShape:
        return ClusterShape(self.cluster_m, self.cluster_n, self.num_pair_ctas)

    @property
    def cta_n(self) -> int:
        """Columns of B that a CTA loads for its MMA."""
        return self.mma_n // self.num_pair_ctas

    @property
    def scale_n(self) -> int:
        """Columns of B whose scales each CTA loads: all of the MMA's, in whole tiles of scales."""
        return max(self.mma_n, SCALE_ROWS)

    @property
    def store_cols(self) -> int:
        """Columns of D in a box, which a warp stages and stores at once."""
        return min(STORE_ROW_BYTES * 8 // dtype(self.d).bits, MAX_STORE_COLS, self.mma_n // self.num_columns)

    @property
    def store_bytes(self) -> int:
        """Bytes of a row of such a box."""
        return self.store_cols * dtype(self.d).bits // 8

    @property
    def box_acc_cols(self) -> int:
        """Columns of the accumulator that a box of D is made of."""
        return self.store_cols * self.num_columns

    @property
    def store_blocks(self) -> int:
        """Scales of such a row, where D is block-scaled."""
        return self.store_cols // mx_format(self.d_format).block

    @property
    def c_cols(self) -> int:
        """Columns of a box of C."""
        return STORE_ROW_BYTES * 8 // dtype(self.c).bits

    @property
    def has_c_buffer(self) -> bool:
        """Whether boxes of C have a buffer a warp of their own: they are not those of D."""
        return self.num_columns > 1 or self.d_format != ""

    @property
    def roles(self) -> RoleTable:
        return RoleTable(
            (
                Role("epilogue", 0, NUM_EPILOGUE_WARPS, 128),
                Role("mma", 4, 1, 128),
                Role("load", 5, 1, 128),
                Role("idle", 6, 2, 128),
            )
        )

    @property
    def topology(self) -> Topology:
        return Topology(
            self.roles,
            (
                Edge("ab", "load", "mma", EdgeKind.TMA_UMMA, self.ab_stages, stage_bytes=self.mma_stage_bytes),
                Edge("acc", "mma", "epilogue", EdgeKind.UMMA_ASYNC, self.acc_stages),
            ),
            self.cluster,
        )

    @property
    def scale_words(self) -> int:
        """Words of four scales of a row in a tile of K."""
        return self.tile_k // self.block_elems // SCALE_WORD_BLOCKS

    @property
    def tmem_scale_words(self) -> int:
        """Words of four scales of a row in tensor memory."""
        return max(self.scale_words, self.words_per_load) if self.wide_k else self.scale_words

    @property
    def scale_cols(self) -> dict[str, int]:
        """Columns of tensor memory for the scales of each operand."""
        return {
            "a_scale": CTA_M // WARP_ROWS * self.tmem_scale_words,
            "b_scale": self.scale_n // WARP_ROWS * self.tmem_scale_words,
        }

    @property
    def acc_shared_cols(self) -> int:
        """Columns that both accumulators use, where two whole ones leave no room for the scales."""
        return max(0, NUM_ACCUMULATORS * self.mma_n + sum(self.scale_cols.values()) - TMEM_COLS)

    @property
    def acc_stride_cols(self) -> int:
        return self.mma_n - self.acc_shared_cols

    @property
    def acc_stages(self) -> int:
        """Accumulators in flight between mma and epilogue. Where they share columns the epilogue empties those first,
        and lets the next product begin then."""
        return NUM_ACCUMULATORS if self.acc_shared_cols == 0 else 1

    @property
    def boxes_per_tile(self) -> int:
        return self.mma_n // self.box_acc_cols

    @property
    def boxes_until_release(self) -> int:
        """Boxes that the epilogue takes from an accumulator before the mma warp may go on to the next."""
        return self.boxes_per_tile if self.acc_shared_cols == 0 else -(-self.acc_shared_cols // self.box_acc_cols)

    @property
    def tmem(self) -> TmemMap:
        return TmemMap(regions={"acc": self.acc_stride_cols + self.mma_n, **self.scale_cols})

    @property
    def smem_elem_bits(self) -> int:
        """Bits of an element of A or B in shared memory: narrow ones fill a byte each, unless both are 4-bit."""
        return 4 if self.is_4bit else 8

    @property
    def stage_bytes(self) -> dict[str, int]:
        """Bytes of one stage of each operand in a CTA."""
        blocks = self.scale_words * SCALE_WORD_BLOCKS
        return {
            "a": CTA_M * self.tile_k * self.smem_elem_bits // 8,
            "b": self.cta_n * self.tile_k * self.smem_elem_bits // 8,
            "a_scale": CTA_M * blocks,
            "b_scale": self.scale_n * blocks,
        }

    @property
    def mma_stage_bytes(self) -> int:
        """Bytes that TMA counts for a stage of all CTAs of an MMA, on its leader's barrier: padding does not count."""
        sizes = self.stage_bytes
        a = sizes["a"] * dtype(self.a).bits // self.smem_elem_bits
        b = sizes["b"] * dtype(self.b).bits // self.smem_elem_bits
        return self.num_pair_ctas * (a + b + sizes["a_scale"] + sizes["b_scale"])

    @property
    def smem_bytes(self) -> dict[str, int]:
        """Bytes of each shared-memory buffer."""
        operands = {name: self.ab_stages * size for name, size in self.stage_bytes.items()}
        return {
            "d": NUM_EPILOGUE_WARPS * self.d_stages * WARP_ROWS * self.store_bytes,
            "c": NUM_EPILOGUE_WARPS * WARP_ROWS * STORE_ROW_BYTES if self.has_c_buffer else 0,
            **operands,
            "barriers": self.topology.num_barriers * MBARRIER_BYTES,
            "c_barriers": NUM_EPILOGUE_WARPS * MBARRIER_BYTES,
            "tail_barriers": NUM_TAIL_BARRIERS * MBARRIER_BYTES,
            "tmem_base": 16,
            "alignment": SMEM_ALIGN_BYTES,
        }

    def check(self) -> None:
        """Raises ValueError (TopologyError, TmemError) when the configuration could not run."""
        if self.mma_m not in (128, 256) or self.mma_n not in (64, 128, 256):
            raise ValueError(f"MMA: ({self.mma_m}, {self.mma_n}), want 128|256 rows and 64|128|256 columns")
        if self.wide_k and (not self.is_4bit or self.mma_n < SCALE_ROWS or self.ab_stages < STAGES_PER_GROUP):
            raise ValueError(f"wide_k: {self}, want packed 4-bit elements, 128|256 columns and 3 stages")
        for name in self.transposed:
            if dtype(getattr(self, name)).bits != 8:
                raise ValueError(f"transposed {name}: {getattr(self, name)}, want elements of 8 bits")
        if self.mma_n % self.box_acc_cols or CHUNK_COLS % self.num_columns or self.store_cols % CHUNK_COLS:
            want = f"{CHUNK_COLS} columns of D or a multiple of the {self.num_columns} columns that make one"
            raise ValueError(f"mma_n: {self.mma_n}, want {want}")
        self.topology.check()
        self.tmem.check()
        check_smem(self.smem_bytes, SMEM_LIMIT_BYTES)


@functools.cache
def most_ab_stages(config: Config) -> int:
    """Stages of A and B for which a CTA has room in shared memory."""
    one, two = (sum(replace(config, ab_stages=num).smem_bytes.values()) for num in (1, 2))
    return 1 + (SMEM_LIMIT_BYTES - one) // (two - one)
