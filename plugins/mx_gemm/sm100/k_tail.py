# SPDX-License-Identifier: Apache-2.0
"""The end of K inside an MMA of packed elements: scales past it are cleared in shared memory before any MMA reads them.

Called by: mma.py in the CTA that leads an MMA, kernel.py for the warp of the other CTA of a pair, which clears its own
copies when the leader asks, and says when it has. Elements past K arrive as zeros, but its scales are whatever stands
in the buffer, NaN perhaps.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Uint32
from cutlass._mlir.dialects.nvvm import MemScopeKind

from opdeck.plugins.mx_gemm.sm100.config import SCALE_WORD_BLOCKS, Config
from opdeck.plugins.mx_gemm.sm100.work import Work


@dataclass(frozen=True)
class TailPort:
    """a_scale, b_scale: shared memory by words of four scales of a row (row in chunk, word along K, chunk of 128 rows,
    stage). asked, done: mbarriers of one arrival a tile, in the other CTA of a pair and in its leader; peer_rank: of
    the other one of the two in the cluster."""

    a_scale: cute.Tensor
    b_scale: cute.Tensor
    asked: cute.Pointer
    done: cute.Pointer
    peer_rank: Int32


class TailScales:
    """Runs in one warp."""

    def __init__(self, config: Config, port: TailPort) -> None:
        self.config = config
        self.port = port

    @cute.jit
    def clear_as_leader(self, stage_idx: Int32, num_blocks: Int32, tile_count: Int32) -> None:
        """Clears what lies past num_blocks of the stage in all CTAs of the MMA."""
        is_pair = self.config.num_pair_ctas == 2
        if num_blocks % self.config.mma_blocks != 0:
            if cutlass.const_expr(is_pair):
                self.signal_peer(self.port.asked)
            self.clear(stage_idx, num_blocks)
            if cutlass.const_expr(is_pair):
                cute.arch.mbarrier_wait(self.port.done, tile_count & 1)

    @cute.jit
    def follow(self, work: Work) -> None:
        """The other CTA's part, for all its tiles."""
        k_tiles = work.k_tiles
        if k_tiles.tail_blocks % self.config.mma_blocks != 0:
            tile_count = Int32(0)
            for _ in cutlass.range(work.cluster_idx, work.grid.count, work.num_clusters, unroll=1):
                cute.arch.mbarrier_wait(self.port.asked, tile_count & 1)
                tile_count += 1
                num_stages = tile_count * (k_tiles.num_whole + 1)
                self.clear((num_stages - 1) % self.config.ab_stages, k_tiles.tail_blocks)
                self.signal_peer(self.port.done)

    @cute.jit
    def clear(self, stage_idx: Int32, num_blocks: Int32) -> None:
        """Zero bytes are finite scales of either type."""
        kept_bits = (Uint32(1) << Uint32(8 * (num_blocks % SCALE_WORD_BLOCKS))) - Uint32(1)
        for scale in (self.port.a_scale, self.port.b_scale):
            words = scale[None, num_blocks // SCALE_WORD_BLOCKS, None, stage_idx]
            for i in cutlass.range_constexpr(cute.size(words) // cute.arch.WARP_SIZE):
                word = i * cute.arch.WARP_SIZE + cute.arch.lane_idx()
                words[word] = words[word] & kept_bits
        cute.arch.fence_view_async_shared()
        cute.arch.sync_warp()

    @cute.jit
    def signal_peer(self, barrier: cute.Pointer) -> None:
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(barrier, self.port.peer_rank, scope=MemScopeKind.CLUSTER)
