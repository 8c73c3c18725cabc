# SPDX-License-Identifier: Apache-2.0
"""report.py: a profile as tables of text: instructions, bytes and waits by role, and the bounds of one tile.

Who calls it: commands of families (`opdeck run FAMILY --profile`), benchmarks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from opdeck.core.profile.bounds import Bound, bounds
from opdeck.core.profile.counts import SKIPPED, Profile

BAR_CHARS = 40
MODEL = (
    "A model, not a time: PTX instructions stand for SASS ones, moves left out, each unit alone and always busy.\n"
    "What MMAs read and write in tensor memory is not in it. Rates whose source is an assumption are guesses."
)


@dataclass(frozen=True)
class Work:
    """What a launch did, in a family's words: num_units pieces of `unit`, as 144 of "tile of 128 x 128 scores"."""

    unit: str
    num_units: int


Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


def instruction_table(roles: Mapping[str, Profile]) -> Table:
    """Warp instructions by role and pipe, over all CTAs."""
    by_role = {name: role.by_pipe() for name, role in roles.items()}
    pipes = sorted({pipe for counts in by_role.values() for pipe in counts}, key=lambda pipe: (pipe == SKIPPED, pipe))
    pipes = [pipe for pipe in pipes if any(counts.get(pipe) for counts in by_role.values())]
    rows = [
        (name, str(sum(counts.values())), *(_number(counts.get(pipe, 0)) for pipe in pipes))
        for name, counts in by_role.items()
    ]
    return ("role", "all", *pipes), rows


_PATHS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("global in by TMA", "global_read_bytes", ("tma",)),
    ("global in by threads", "global_read_bytes", ()),
    ("global out by TMA", "global_write_bytes", ("tma",)),
    ("global out by threads", "global_write_bytes", ()),
    ("shared in by TMA", "shared_write_bytes", ("tma",)),
    ("shared out by TMA", "shared_read_bytes", ("tma",)),
    ("shared read by MMAs", "shared_read_bytes", ("mma",)),
    ("shared written by threads", "shared_write_bytes", ()),
    ("shared read by threads", "shared_read_bytes", ()),
    ("other CTAs' shared", "remote_shared_bytes", ("tma", "shared_memory", "global_memory", "atomic")),
    ("tensor memory read", "tmem_read_bytes", ("tmem",)),
    ("tensor memory written", "tmem_write_bytes", ("tmem", "mma")),
)
_ASYNCHRONOUS = ("tma", "mma")
_MBARRIER_WAIT = re.compile(r"mbarrier\.(try|test)_wait\b")
_BARRIER_WAIT = re.compile(r"bar(rier)?\..*(sync|wait)\b")


def byte_table(roles: Mapping[str, Profile]) -> Table:
    """Bytes by path and role; paths without any are left out. No pipes in a row: those of threads."""
    rows = []
    for path, count, pipes in _PATHS:
        sums = []
        for role in roles.values():
            by_pipe = role.by_pipe(count)
            wanted = pipes or tuple(pipe for pipe in by_pipe if pipe not in _ASYNCHRONOUS)
            sums.append(sum(by_pipe.get(pipe, 0) for pipe in wanted))
        if any(sums):
            rows.append((path, *map(_number, sums)))
    return ("bytes", *roles), rows


def event_table(roles: Mapping[str, Profile]) -> Table:
    """Multiply-accumulates by kind, bank conflicts and waits, by role."""
    kinds = sorted({opcode for role in roles.values() for opcode in role.by_opcode("macs")})
    rows = [(f"MACs of {kind}", [role.by_opcode("macs").get(kind, 0) for role in roles.values()]) for kind in kinds]
    rows += [
        ("shared wavefronts", [role.sum("shared_wavefronts") for role in roles.values()]),
        ("of these, bank conflicts", [role.sum("extra_wavefronts") for role in roles.values()]),
        ("mbarrier waits", [_completed(role, _MBARRIER_WAIT) for role in roles.values()]),
        ("of these, said no", [role.sum("false_polls") for role in roles.values()]),
        ("barrier waits", [_completed(role, _BARRIER_WAIT) for role in roles.values()]),
    ]
    return ("", *roles), [(name, *map(_number, values)) for name, values in rows if any(values)]


def bound_lines(found: Sequence[Bound], work: Work) -> Iterator[str]:
    """The clocks that one piece of the work takes on each unit, as bars."""
    yield f"clocks of one SM for a {work.unit} ({work.num_units} of them)"
    width = max(len(bound.unit) for bound in found)
    for bound in found:
        bar = "#" * max(1, round(BAR_CHARS * bound.clocks / found[0].clocks))
        yield f"{bound.unit:<{width}}  {bound.clocks / work.num_units:8.1f}  {bar:<{BAR_CHARS}}  {bound.source}"


def report(profile: Profile, roles: Mapping[str, Profile], work: Work) -> Iterator[Table | str]:
    """Tables and lines, in order."""
    for table in (instruction_table(roles), byte_table(roles), event_table(roles)):
        yield ""
        yield table
    yield ""
    yield from bound_lines(bounds(profile), work)
    yield MODEL


def _completed(role: Profile, opcode: re.Pattern[str]) -> int:
    return role.sum("completed", lambda row: opcode.match(row.opcode) is not None)


def _number(value: int) -> str:
    return str(value) if value else "."
