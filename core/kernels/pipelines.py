# SPDX-License-Identifier: Apache-2.0
"""Turns the declared edges of topology.py into mbarrier pipelines of CuTe DSL, inside a kernel.

Called by: each kernel.py (once, before the CTA-wide barrier); roles use the pipelines through their ports.
Source: PTX ISA 9.x, "mbarrier" (a wait names the parity of the phase that it waits for), "tcgen05.fence" (mbarriers
alone do not order tensor-memory work between threads).
Of the CTAs that share an MMA, the first has the barriers that its mma warp waits for: all threads and loads of both
signal those. What that warp commits arrives in both. ASYNC edges stay inside a CTA.
Limits: no TMA_ASYNC edges in clusters; barriers are initialised by warp 0, so the caller must fence and synchronise the
cluster after.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute
from cutlass import Int32, pipeline
from cutlass.experimental.primitives.nvvm_wrapper import Tcgen05Fence, tcgen05_fence

from opdeck.core.kernels.topology import ClusterShape, Edge, EdgeKind, Topology


@dataclass(frozen=True)
class Slot:
    """One use of a stage: what a pipeline call needs to know (`index` of the stage, `phase` parity to wait for)."""

    index: Any
    phase: Any

    @property
    def producer(self) -> Slot:
        """The same use seen by the producer, which waits for the stage to be free (parity 1 passes at first)."""
        return Slot(self.index, self.phase ^ 1)


def lane_slot(stage_idx: Any, use_idx: Any) -> Slot:
    """The `use_idx`-th use of the fixed stage `stage_idx` (edges with one stage a query tile)."""
    return Slot(stage_idx, Int32(use_idx) & 1)


def ring_slot(num_stages: int, use_idx: Any) -> Slot:
    """The `use_idx`-th use of a ring of `num_stages` stages, taken in turn."""
    use_idx = Int32(use_idx)
    return Slot(use_idx % num_stages, (use_idx // num_stages) & 1)


def tmem_before_signal() -> None:
    """Orders this thread's tensor-memory work before the arrival or barrier that follows; first wait for the work."""
    tcgen05_fence(Tcgen05Fence.BEFORE_THREAD_SYNC)


def tmem_after_wait() -> None:
    """Orders the tensor-memory work that follows after the mbarrier wait or barrier just passed."""
    tcgen05_fence(Tcgen05Fence.AFTER_THREAD_SYNC)


def cluster_layout(cluster: ClusterShape) -> cute.Layout:
    """CTA rank of (CTA of an MMA, MMA along M, MMA along N, 0): what CuTe calls VMNK."""
    return cute.make_layout((cluster.num_pair_ctas, cluster.num_m // cluster.num_pair_ctas, cluster.num_n, 1))


def cluster_barrier(cluster: ClusterShape) -> None:
    """Joins all threads of the cluster; of the CTA where that is all of it."""
    if cluster.num_ctas == 1:
        cute.arch.sync_threads()
    else:
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()


def make_pipelines(topology: Topology, barriers: cute.Pointer) -> dict[str, pipeline.PipelineAsync]:
    """One initialised pipeline an edge, by name. `barriers`: smem, topology.num_barriers x 8 bytes."""
    return {
        edge.name: _make_pipeline(topology, edge, barriers + topology.first_barrier(edge.name))
        for edge in topology.edges
    }


def _make_pipeline(topology: Topology, edge: Edge, barriers: cute.Pointer) -> pipeline.PipelineAsync:
    full_arrivals, empty_arrivals = topology.arrivals(edge.name)
    common = {
        "num_stages": edge.num_stages,
        "producer_group": pipeline.CooperativeGroup(pipeline.Agent.Thread, full_arrivals),
        "consumer_group": pipeline.CooperativeGroup(pipeline.Agent.Thread, empty_arrivals),
        "barrier_storage": barriers,
        "defer_sync": True,
    }
    if edge.kind is EdgeKind.TMA_UMMA:
        return pipeline.PipelineTmaUmma.create(
            tx_count=edge.stage_bytes, cta_layout_vmnk=cluster_layout(topology.cluster), **common
        )
    if edge.kind is EdgeKind.TMA_ASYNC:
        return pipeline.PipelineTmaAsync.create(
            tx_count=edge.stage_bytes, cta_layout_vmnk=cluster_layout(topology.cluster), **common
        )
    if edge.kind is EdgeKind.UMMA_ASYNC:
        return pipeline.PipelineUmmaAsync.create(cta_layout_vmnk=cluster_layout(topology.cluster), **common)
    if edge.kind is EdgeKind.ASYNC_UMMA:
        return pipeline.PipelineAsyncUmma.create(cta_layout_vmnk=cluster_layout(topology.cluster), **common)
    return pipeline.PipelineAsync.create(**common)
