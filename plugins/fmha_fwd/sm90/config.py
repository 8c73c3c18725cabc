# SPDX-License-Identifier: Apache-2.0
"""Tile sizes, stages and register budgets of the Hopper forward kernel, checked before anything is compiled.

Called by kernel.py; the numbers come from the variant rows. Limits of sm_90: 227 KiB of shared memory a CTA,
64 Ki registers a CTA (CUDA C Programming Guide, "Technical Specifications per Compute Capability"); setmaxnreg
takes multiples of 8 from 24 to 256 (PTX ISA, "setmaxnreg").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

WARP_THREADS = 32
WARPGROUP_THREADS = 128
WARPGROUP_WARPS = WARPGROUP_THREADS // WARP_THREADS
WGMMA_M = 64  # rows of D that one warpgroup computes (PTX ISA, "wgmma.mma_async": shape m64nNk16)

SMEM_LIMIT_BYTES = 227 * 1024
REGISTER_LIMIT = 64 * 1024
ELEM_BYTES = 2  # fp16, bf16
SMEM_ALIGN_BYTES = 1024  # one period of the 128-byte swizzle: 8 rows of 128 bytes


@dataclass(frozen=True)
class Config:
    """One CTA: a producer warpgroup of which one warp loads, and `tile_m / 64` consumer warpgroups.

    tile_m, tile_n: query rows and keys of one tile; kv_stages: tiles of K, and as many of V, held in shared memory;
    producer_regs, consumer_regs: registers a thread after setmaxnreg.
    """

    head_dim: int
    tile_m: int
    tile_n: int
    kv_stages: int
    producer_regs: int
    consumer_regs: int

    @staticmethod
    def from_mapping(config: Mapping[str, int | str], head_dim: int) -> Config:
        """Read a variant's config; raises ValueError naming the value that does not fit the architecture."""
        names = ("tile_m", "tile_n", "kv_stages", "producer_regs", "consumer_regs")
        missing = [name for name in names if name not in config]
        if missing:
            raise ValueError(f"sm90 fmha_fwd config: got {sorted(config)}, want also {missing}")
        result = Config(head_dim, **{name: int(config[name]) for name in names})
        result.check()
        return result

    @property
    def num_consumer_warpgroups(self) -> int:
        return self.tile_m // WGMMA_M

    @property
    def num_consumer_warps(self) -> int:
        return self.num_consumer_warpgroups * WARPGROUP_WARPS

    @property
    def num_threads(self) -> int:
        return (1 + self.num_consumer_warpgroups) * WARPGROUP_THREADS

    @property
    def q_tile_bytes(self) -> int:
        return self.tile_m * self.head_dim * ELEM_BYTES

    @property
    def kv_tile_bytes(self) -> int:
        return self.tile_n * self.head_dim * ELEM_BYTES

    @property
    def smem_bytes(self) -> int:
        """Upper bound: the tiles, and one swizzle period for the barriers in front of them."""
        return self.q_tile_bytes + 2 * self.kv_stages * self.kv_tile_bytes + SMEM_ALIGN_BYTES

    def check(self) -> None:
        """Raise ValueError with the value got and the one wanted."""
        if self.head_dim not in (64, 128):
            raise ValueError(f"head_dim: got {self.head_dim}, want 64 or 128")
        if self.tile_m <= 0 or self.tile_m % WGMMA_M != 0:
            raise ValueError(f"tile_m: got {self.tile_m}, want a positive multiple of {WGMMA_M}")
        if self.tile_n % 16 != 0 or not 16 <= self.tile_n <= 256:
            raise ValueError(f"tile_n: got {self.tile_n}, want a multiple of 16 from 16 to 256")
        if self.kv_stages < 1:
            raise ValueError(f"kv_stages: got {self.kv_stages}, want at least 1")
        for name, regs in (("producer_regs", self.producer_regs), ("consumer_regs", self.consumer_regs)):
            if regs % 8 != 0 or not 24 <= regs <= 256:
                raise ValueError(f"{name}: got {regs}, want a multiple of 8 from 24 to 256")
        regs = WARPGROUP_THREADS * (self.producer_regs + self.num_consumer_warpgroups * self.consumer_regs)
        if regs > REGISTER_LIMIT:
            raise ValueError(f"registers of the CTA: got {regs}, want at most {REGISTER_LIMIT}")
        if self.smem_bytes > SMEM_LIMIT_BYTES:
            raise ValueError(f"shared memory: got {self.smem_bytes} bytes, want at most {SMEM_LIMIT_BYTES}")
