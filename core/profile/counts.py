# SPDX-License-Identifier: Apache-2.0
"""counts.py: the emulator's counters of a launch, and their sums over warps, pipes and opcodes.

Who calls it: opdeck.core.emulator, which makes a Profile; report.py, bounds.py; users, through Attachment.profile.
Limits: instructions are PTX's, not SASS's. What an MMA reads and writes in tensor memory is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from opdeck.core.kernels.topology import RoleTable

SKIPPED = "skipped"  # the pipe of instructions whose guard was false in all lanes


class OpCounts(NamedTuple):
    """One instruction's executions by one warp of each CTA, over all CTAs: opdeck_emu_profile_row, its field names.

    completed: warp instructions. blocked: tries that had to wait, which are no instructions and depend on the schedule.
    false_polls: of those completed, mbarrier waits that said no. remote_shared_bytes: those of another CTA among
    the shared bytes. extra_wavefronts: bank conflicts, of the wavefronts of threads' accesses to shared memory.
    """

    kernel: str
    opcode: str
    pipe: str
    launch_idx: int
    warp_idx: int
    op_idx: int
    ptx_line: int
    completed: int
    blocked: int
    false_polls: int
    macs: int
    global_read_bytes: int
    global_write_bytes: int
    shared_read_bytes: int
    shared_write_bytes: int
    remote_shared_bytes: int
    shared_wavefronts: int
    extra_wavefronts: int
    tmem_read_bytes: int
    tmem_write_bytes: int


@dataclass(frozen=True)
class Profile:
    """Counters of the launches of a session, all of `arch`."""

    arch: str
    num_ctas: int
    rows: Sequence[OpCounts]

    def sum(self, count: str, where: Callable[[OpCounts], bool] = lambda row: True) -> int:
        """Of one field over the rows for which `where` holds."""
        return sum(getattr(row, count) for row in self.rows if where(row))

    def by_pipe(self, count: str = "completed") -> dict[str, int]:
        """One field's sum for each pipe that has one."""
        return self._by(lambda row: row.pipe, count)

    def by_opcode(self, count: str = "completed") -> dict[str, int]:
        return self._by(lambda row: row.opcode, count)

    def select(self, where: Callable[[OpCounts], bool]) -> Profile:
        """The rows for which `where` holds."""
        return Profile(self.arch, self.num_ctas, [row for row in self.rows if where(row)])

    def roles(self, table: RoleTable | None = None) -> dict[str, Profile]:
        """A profile for each role of the table, of the last launch alone, since a table is one kernel's; without a
        table, for each range of warps that run the same code.

        Warps run the same when the instructions that they execute at least half as often as their most frequent one
        are the same: one that also runs the prologue does not differ from the others.
        """
        ranges = (
            [(role.name, range(role.first_warp, role.end_warp)) for role in table.roles] if table else self._teams()
        )
        launch_idxs = {row.launch_idx for row in self.rows}
        counted = {max(launch_idxs)} if table and launch_idxs else launch_idxs
        of_launches = self.select(lambda row: row.launch_idx in counted)
        return {name: of_launches.select(lambda row, warps=warps: row.warp_idx in warps) for name, warps in ranges}  # type: ignore[misc]

    def _teams(self) -> list[tuple[str, range]]:
        ops_by_warp: dict[int, dict[tuple[int, int], int]] = {}
        for row in self.rows:
            if row.pipe != SKIPPED:
                ops_by_warp.setdefault(row.warp_idx, {})[row.launch_idx, row.op_idx] = row.completed
        hot = {warp: frozenset(_hot_ops(ops)) for warp, ops in sorted(ops_by_warp.items())}
        teams = []
        for _, members in groupby(hot, key=hot.__getitem__):
            warps = list(members)
            name = f"warp {warps[0]}" if len(warps) == 1 else f"warps {warps[0]}-{warps[-1]}"
            teams.append((name, range(warps[0], warps[-1] + 1)))
        return teams

    def _by(self, key: Callable[[OpCounts], str], count: str) -> dict[str, int]:
        sums: dict[str, int] = {}
        for row in self.rows:
            value = getattr(row, count)
            if value:
                sums[key(row)] = sums.get(key(row), 0) + value
        return sums


def _hot_ops(completed_by_op: dict[tuple[int, int], int]) -> Iterable[tuple[int, int]]:
    most = max(completed_by_op.values())
    return (op for op, completed in completed_by_op.items() if 2 * completed >= most)
