# SPDX-License-Identifier: Apache-2.0
"""profile.py: what a launch of fmha_fwd did, in tiles.

Who calls it: commands.py (`opdeck run fmha_fwd --profile`), benchmarks/fmha_slots.py.
"""

from __future__ import annotations

from opdeck.core.profile import Profile
from opdeck.core.profile.report import Work
from opdeck.core.variant import Variant


def work(variant: Variant, profile: Profile) -> Work:
    """The tiles of scores that a launch visited: S = Q K^T and O = P V of each."""
    tile_m, tile_n = int(variant.config["tile_m"]), int(variant.config["tile_n"])
    d_qk, d_v = int(variant.config["d_qk"]), int(variant.config["d_v"])
    tile_macs = tile_m * tile_n * (d_qk + d_v)
    unit = f"tile of {tile_m} x {tile_n} scores, d {d_qk}" + (f" and {d_v}" if d_v != d_qk else "")
    return Work(unit, profile.sum("macs") // tile_macs)
