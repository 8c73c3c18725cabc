# SPDX-License-Identifier: Apache-2.0
"""Load role of the Hopper forward kernel: one warp brings Q once, then K and V tile by tile, by TMA.

Called by kernel.py in warp 0 of the producer warpgroup. The order K, V, K, V is the order in which the consumers
wait, so a stage is never held back by one that is needed later. Source: PTX ISA, "cp.async.bulk.tensor", "mbarrier".
Limits: rows beyond the sequence arrive as zeros, by the bounds of the tensor maps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from opdeck.plugins.fmha_fwd.sm90.operands import TmaTile
from opdeck.plugins.fmha_fwd.sm90.work import Work


@dataclass(frozen=True)
class LoadPort:
    """All that the load warp may touch: three TMA tiles and the producer ends of their pipelines."""

    q: TmaTile
    k: TmaTile
    v: TmaTile
    q_free: Any
    k_free: Any
    v_free: Any


class LoadRole:
    @cute.jit
    def run(self, port: LoadPort, work: Work) -> None:
        """Load the CTA's query tile, and each K and V tile that it visits."""
        q_free, k_free, v_free = port.q_free, port.k_free, port.v_free
        port.q.load(work.q_block, q_free.acquire_and_advance())
        for k_tile in cutlass.range(work.ranges.begin, work.ranges.end, unroll=1):
            port.k.load(k_tile, k_free.acquire_and_advance())
            port.v.load(k_tile, v_free.acquire_and_advance())
