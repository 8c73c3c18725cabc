# SPDX-License-Identifier: Apache-2.0
"""Host data of the Hopper forward kernel: tiles, warp roles, pipeline edges and shared memory, checked on the CPU.

Called by kernel.py (which wires what is declared here) and by its roles; the numbers come from the variant rows.
Source: PTX ISA, "wgmma.mma_async"; CUDA C++ Programming Guide, technical specifications of compute capability 9.0.
Limits: head dim 64 or 128; one CTA of one query tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opdeck.core.kernels.topology import (
    MBARRIER_BYTES,
    WARP_THREADS,
    WARPGROUP_WARPS,
    Edge,
    EdgeKind,
    Role,
    RoleTable,
    Topology,
    check_smem,
)

if TYPE_CHECKING:
    from opdeck.core.variant import Variant

WARPGROUP_THREADS = WARPGROUP_WARPS * WARP_THREADS
WGMMA_M = 64  # rows of D that one warpgroup computes: the shapes are m64nNk16
SMEM_LIMIT_BYTES = 227 * 1024
SMEM_ALIGN_BYTES = 1024  # a period of the 128-byte swizzle: 8 rows of 128 bytes
ELEM_BYTES = 2  # fp16, bf16


@dataclass(frozen=True)
class Config:
    """tile_m, tile_n: query rows and keys of a tile; kv_stages: tiles of K, and as many of V, in shared memory;
    producer_regs, consumer_regs: registers a thread after setmaxnreg."""

    head_dim: int
    tile_m: int
    tile_n: int
    kv_stages: int
    producer_regs: int
    consumer_regs: int

    @classmethod
    def of(cls, variant: Variant) -> Config:
        config: dict[str, Any] = dict(variant.config)
        head_dim, _ = config.pop("d_qk"), config.pop("d_v")
        return cls(head_dim, **config)

    @property
    def num_consumer_warpgroups(self) -> int:
        return self.tile_m // WGMMA_M

    @property
    def roles(self) -> RoleTable:
        num_consumer_warps = self.num_consumer_warpgroups * WARPGROUP_WARPS
        return RoleTable(
            (
                Role("load", 0, 1, self.producer_regs),
                Role("idle", 1, WARPGROUP_WARPS - 1, self.producer_regs),
                Role("consumer", WARPGROUP_WARPS, num_consumer_warps, self.consumer_regs),
            )
        )

    @property
    def topology(self) -> Topology:
        kv_bytes = self.tile_n * self.head_dim * ELEM_BYTES
        return Topology(
            self.roles,
            (
                Edge("q", "load", "consumer", EdgeKind.TMA_ASYNC, 1, self.tile_m * self.head_dim * ELEM_BYTES),
                Edge("k", "load", "consumer", EdgeKind.TMA_ASYNC, self.kv_stages, kv_bytes),
                Edge("v", "load", "consumer", EdgeKind.TMA_ASYNC, self.kv_stages, kv_bytes),
            ),
        )

    @property
    def smem_bytes(self) -> dict[str, int]:
        """Bytes of each shared-memory buffer. O is staged in Q's, which is dead by then."""
        buffers = {edge.name: edge.num_stages * edge.stage_bytes for edge in self.topology.edges}
        return {**buffers, "barriers": self.topology.num_barriers * MBARRIER_BYTES}

    def check(self) -> None:
        """Raises ValueError (TopologyError) when the configuration could not run."""
        if self.head_dim not in (64, 128):
            raise ValueError(f"head_dim: got {self.head_dim}, want 64 or 128")
        if self.tile_m < WGMMA_M or self.tile_m % WGMMA_M:
            raise ValueError(f"tile_m: got {self.tile_m}, want a multiple of {WGMMA_M}")
        if self.tile_n % 16 or not 16 <= self.tile_n <= 256:
            raise ValueError(f"tile_n: got {self.tile_n}, want a multiple of 16 from 16 to 256")
        self.topology.check()
        check_smem(self.smem_bytes, SMEM_LIMIT_BYTES)
