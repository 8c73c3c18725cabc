# SPDX-License-Identifier: Apache-2.0
"""opdeck.aot: compiles variants ahead of time into packs that libopdeck loads.

plan (which variants) -> compile (one object each, in worker processes) -> link (one shared object) -> manifest.
Importing this imports no DSL; only the workers that compile do.
"""

from opdeck.aot.builder import build, ensure, known_spill, without_spills
from opdeck.aot.plan import plan

__all__ = ["build", "ensure", "known_spill", "plan", "without_spills"]
