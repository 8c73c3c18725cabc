# SPDX-License-Identifier: Apache-2.0
"""Warp roles, pipeline edges and shared-memory budgets of a kernel, as data that a CPU can check.

Called by: each kernel.py, which declares its roles and edges here and hands them to pipelines.py; unit tests.
Source: PTX ISA 9.x, "mbarrier" (arrival counts), "setmaxnreg" (register budgets, granularity 8, 24..256).
Limits: roles are those of one CTA, the same in every CTA of a cluster; imports no CuTe DSL.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

WARP_THREADS = 32
WARPGROUP_WARPS = 4
REGISTERS_PER_SM = 64 * 1024
MAX_REGISTERS_PER_THREAD = 255
MAX_MBARRIER_ARRIVALS = (1 << 20) - 1
MBARRIER_BYTES = 8
MAX_CLUSTER_CTAS = 8
"""The largest cluster of any kernel; 16 need an opt-in of the launch."""


class TopologyError(ValueError):
    """A declared role, edge or budget that no hardware could run."""


@dataclass(frozen=True)
class Role:
    """`num_warps` consecutive warps from `first_warp`, each thread holding at most `num_regs` registers.

    With `num_groups` > 1 the warps are so many equal teams, and team g only ever uses its own, equal share of the
    stages of the role's edges: of one with num_groups stages, stage g.
    """

    name: str
    first_warp: int
    num_warps: int
    num_regs: int
    num_groups: int = 1

    @property
    def num_threads(self) -> int:
        return self.num_warps * WARP_THREADS

    @property
    def group_threads(self) -> int:
        return self.num_threads // self.num_groups

    @property
    def end_warp(self) -> int:
        return self.first_warp + self.num_warps


@dataclass(frozen=True)
class RoleTable:
    """The roles of a CTA, in warp order."""

    roles: tuple[Role, ...]

    def __getitem__(self, name: str) -> Role:
        for role in self.roles:
            if role.name == name:
                return role
        raise TopologyError(f"role {name!r}: unknown, want one of {[role.name for role in self.roles]}")

    @property
    def num_warps(self) -> int:
        return self.roles[-1].end_warp

    @property
    def num_threads(self) -> int:
        return self.num_warps * WARP_THREADS

    @property
    def launch_regs(self) -> int:
        """Registers a thread is launched with, before any setmaxnreg: an even share, rounded down to 8."""
        return min(REGISTERS_PER_SM // self.num_threads // 8 * 8, MAX_REGISTERS_PER_THREAD)

    def check(self) -> None:
        """Raises TopologyError unless the roles tile whole warpgroups and their registers fit an SM."""
        next_warp = 0
        for role in self.roles:
            if role.first_warp != next_warp or role.num_warps < 1:
                raise TopologyError(f"role {role.name!r}: starts at warp {role.first_warp}, want {next_warp}")
            next_warp = role.end_warp
            if role.num_regs % 8 or not 24 <= role.num_regs <= 256:
                raise TopologyError(f"role {role.name!r}: num_regs {role.num_regs}, want a multiple of 8 in 24..256")
            if role.num_warps % role.num_groups:
                raise TopologyError(f"role {role.name!r}: {role.num_warps} warps, want {role.num_groups} equal groups")
        if next_warp % WARPGROUP_WARPS:
            raise TopologyError(f"roles: {next_warp} warps, want whole warpgroups of {WARPGROUP_WARPS}")
        total_regs = 0
        for first in range(0, next_warp, WARPGROUP_WARPS):
            group = [r for r in self.roles if r.first_warp < first + WARPGROUP_WARPS and r.end_warp > first]
            if len({r.num_regs for r in group}) != 1:
                # setmaxnreg acts on a whole warpgroup, so its four warps must ask for the same count.
                raise TopologyError(f"roles {[r.name for r in group]}: one warpgroup, but different num_regs")
            total_regs += group[0].num_regs * WARPGROUP_WARPS * WARP_THREADS
        if total_regs > REGISTERS_PER_SM:
            raise TopologyError(f"roles: {total_regs} registers in all, want at most {REGISTERS_PER_SM}")


class EdgeKind(enum.Enum):
    """Who fills a stage and who frees it; decides the arrival counts of the two mbarriers of a stage."""

    TMA_UMMA = "TMA fills (one arrival and the bytes), a tcgen05.commit frees"
    TMA_ASYNC = "TMA fills (one arrival and the bytes), one thread of each consumer warp frees"
    UMMA_ASYNC = "a tcgen05.commit fills, every consumer thread frees"
    ASYNC = "every producer thread fills, every consumer thread frees"
    ASYNC_UMMA = "every producer thread fills, a tcgen05.commit frees"


@dataclass(frozen=True)
class Edge:
    """A pipeline: `producer` fills stages that `consumer` reads and frees. Named by what it carries."""

    name: str
    producer: str
    consumer: str
    kind: EdgeKind
    num_stages: int
    stage_bytes: int = 0
    """Bytes that TMA writes a stage (TMA edges only)."""

    @property
    def num_barriers(self) -> int:
        return 2 * self.num_stages


@dataclass(frozen=True)
class ClusterShape:
    """CTAs of a cluster along M and N. `num_pair_ctas` neighbours along M, 1 or 2, share each tcgen05.mma."""

    num_m: int = 1
    num_n: int = 1
    num_pair_ctas: int = 1

    @property
    def num_ctas(self) -> int:
        return self.num_m * self.num_n

    @property
    def num_mmas_of_operands(self) -> int:
        """MMAs that read what one CTA's TMA loads, when A goes to all CTAs along N and B to all along M."""
        return self.num_n + self.num_m // self.num_pair_ctas - 1

    def check(self) -> None:
        """Raises TopologyError unless pairs tile the cluster and the cluster is one that every GPU can launch."""
        if self.num_pair_ctas not in (1, 2) or self.num_m % self.num_pair_ctas:
            raise TopologyError(f"cluster {self}: want num_pair_ctas 1|2, and num_m a multiple of it")
        if not 1 <= self.num_ctas <= MAX_CLUSTER_CTAS:
            raise TopologyError(f"cluster {self}: {self.num_ctas} CTAs, want 1..{MAX_CLUSTER_CTAS}")


@dataclass(frozen=True)
class Topology:
    """The pipeline graph of one CTA. Two mbarriers a stage, laid out edge after edge."""

    roles: RoleTable
    edges: tuple[Edge, ...]
    cluster: ClusterShape = ClusterShape()

    def __getitem__(self, name: str) -> Edge:
        for edge in self.edges:
            if edge.name == name:
                return edge
        raise TopologyError(f"edge {name!r}: unknown, want one of {[edge.name for edge in self.edges]}")

    @property
    def num_barriers(self) -> int:
        return sum(edge.num_barriers for edge in self.edges)

    def first_barrier(self, name: str) -> int:
        """Index of the edge's first mbarrier in the barrier array."""
        index = 0
        for edge in self.edges:
            if edge.name == name:
                return index
            index += edge.num_barriers
        raise TopologyError(f"edge {name!r}: unknown, want one of {[edge.name for edge in self.edges]}")

    def arrivals(self, name: str) -> tuple[int, int]:
        """Arrivals that complete a phase of the (full, empty) mbarrier of a stage of the edge."""
        edge = self[name]
        producer_threads = self.roles[edge.producer].group_threads
        consumer_threads = self.roles[edge.consumer].group_threads
        return {
            EdgeKind.TMA_UMMA: (1, self.cluster.num_mmas_of_operands),
            EdgeKind.TMA_ASYNC: (1, consumer_threads // WARP_THREADS),
            EdgeKind.UMMA_ASYNC: (1, consumer_threads * self.cluster.num_pair_ctas),
            EdgeKind.ASYNC: (producer_threads, consumer_threads),
            EdgeKind.ASYNC_UMMA: (producer_threads * self.cluster.num_pair_ctas, 1),
        }[edge.kind]

    def check(self) -> None:
        """Raises TopologyError unless each edge joins two known roles that its kind can serve."""
        self.roles.check()
        self.cluster.check()
        names = [edge.name for edge in self.edges]
        if len(set(names)) != len(names):
            raise TopologyError(f"edges {names}: a name occurs twice")
        for edge in self.edges:
            self._check_edge(edge)

    def _check_edge(self, edge: Edge) -> None:
        if edge.producer == edge.consumer:
            raise TopologyError(f"edge {edge.name!r}: {edge.producer!r} would wait for itself")
        if edge.num_stages < 1:
            raise TopologyError(f"edge {edge.name!r}: num_stages {edge.num_stages}, want at least 1")
        for role in (self.roles[edge.producer], self.roles[edge.consumer]):
            if edge.num_stages % role.num_groups:
                want = f"want a multiple of {role.num_groups}, so many a {role.name!r} group"
                raise TopologyError(f"edge {edge.name!r}: num_stages {edge.num_stages}, {want}")
        is_tma = edge.kind in (EdgeKind.TMA_UMMA, EdgeKind.TMA_ASYNC)
        if is_tma != (edge.stage_bytes > 0):
            raise TopologyError(f"edge {edge.name!r}: stage_bytes {edge.stage_bytes}, want > 0 for TMA edges only")
        for role_name, issues_umma in (
            (edge.producer, edge.kind is EdgeKind.UMMA_ASYNC),
            (edge.consumer, edge.kind in (EdgeKind.TMA_UMMA, EdgeKind.ASYNC_UMMA)),
        ):
            if issues_umma and self.roles[role_name].num_warps != 1:
                raise TopologyError(f"edge {edge.name!r}: {role_name!r} issues tcgen05.mma, want a role of one warp")
        if max(self.arrivals(edge.name)) > MAX_MBARRIER_ARRIVALS:
            raise TopologyError(f"edge {edge.name!r}: {self.arrivals(edge.name)} arrivals, over the mbarrier's limit")


def check_smem(buffers_bytes: Mapping[str, int], limit_bytes: int) -> int:
    """Total of the named shared-memory buffers; raises TopologyError when it passes `limit_bytes`."""
    total_bytes = sum(buffers_bytes.values())
    if total_bytes > limit_bytes:
        raise TopologyError(f"shared memory: {total_bytes} bytes {dict(buffers_bytes)}, want at most {limit_bytes}")
    return total_bytes
