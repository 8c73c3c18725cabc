# SPDX-License-Identifier: Apache-2.0
"""profile.py: what a launch of mx_gemm did, in steps of K.

Who calls it: commands.py (`opdeck run mx_gemm --profile`).
"""

from __future__ import annotations

from opdeck.core.profile import Profile
from opdeck.core.profile.report import Work
from opdeck.core.variant import Variant
from opdeck.plugins.mx_gemm.sm100.config import CTA_M, Config


def work(variant: Variant, profile: Profile) -> Work:
    """The steps of K that a launch made, of one CTA's tile each."""
    config = Config.of(variant)
    step_macs = CTA_M * config.mma_n * config.inst_k
    unit = f"step of K {config.inst_k} of a tile of {CTA_M} x {config.mma_n}"
    return Work(unit, profile.sum("macs") // step_macs)
