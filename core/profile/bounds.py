# SPDX-License-Identifier: Apache-2.0
"""bounds.py: the clocks that each unit of an SM needs for the work of a profile, each unit alone and always busy.

Who calls it: report.py. A model: it takes PTX instructions for SASS ones (but for moves, most of which vanish), and
knows no latency, no overlap and no cache. What it says is a lower bound for a unit, not a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from opdeck.core.profile.counts import SKIPPED, Profile
from opdeck.core.profile.rates import MMA_MACS, RATES

WARP_LANES = 32
WAVEFRONT_BYTES = 128


@dataclass(frozen=True)
class Bound:
    """Clocks of one SM that did all of the profile's work; source: of the rate."""

    unit: str
    clocks: float
    source: str


def _lanes(*weights: tuple[str, int]) -> Callable[[Profile], float]:
    """Work of instructions: 32 lanes each, times the weight of their pipe."""

    def work(profile: Profile) -> float:
        by_pipe = profile.by_pipe()
        return WARP_LANES * sum(by_pipe.get(pipe, 0) * weight for pipe, weight in weights)

    return work


def _issued(profile: Profile) -> float:
    return profile.sum("completed", lambda row: row.pipe not in ("move", SKIPPED))


def _shared_bytes(profile: Profile) -> float:
    """Threads by wavefront, copies and MMAs by byte."""
    by_wavefront = profile.sum("shared_wavefronts") * WAVEFRONT_BYTES
    asynchronous = profile.select(lambda row: row.pipe in ("tma", "mma"))
    return by_wavefront + asynchronous.sum("shared_read_bytes") + asynchronous.sum("shared_write_bytes")


def _global_bytes(profile: Profile) -> float:
    return profile.sum("global_read_bytes") + profile.sum("global_write_bytes")


# What each unit of rates.py has to do.
_WORK: dict[str, Callable[[Profile], float]] = {
    "issue (warp instructions)": _issued,
    "mufu": _lanes(("mufu", 1)),
    "fma": _lanes(("fp32", 1), ("f32x2", 2)),
    "alu": _lanes(("integer", 1), ("compare", 1)),
    "shuffle": _lanes(("shuffle", 1)),
    "shared memory (bytes)": _shared_bytes,
    "tensor memory (bytes)": lambda profile: profile.sum("tmem_read_bytes") + profile.sum("tmem_write_bytes"),
    "global memory, no L2 (bytes)": _global_bytes,
}


def bounds(profile: Profile) -> list[Bound]:
    """For each unit with work, the longest first."""
    found = [
        Bound(unit, _WORK[unit](profile) / rate.per_clk, rate.source) for unit, rate in RATES[profile.arch].items()
    ]
    clocks, source = 0.0, ""
    for opcode, macs in profile.by_opcode("macs").items():
        rate = next(rate for part, rate in MMA_MACS[profile.arch] if part in opcode)
        clocks, source = clocks + macs / rate.per_clk, rate.source
    found.append(Bound("mma", clocks, source))
    return sorted((bound for bound in found if bound.clocks > 0), key=lambda bound: -bound.clocks)
