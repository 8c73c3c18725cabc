# SPDX-License-Identifier: Apache-2.0
"""opdeck.core.emulator: attach(), an emulated GPU for kernels that CuTe DSL compiles here; explore(). Needs no DSL."""

from opdeck.core.emulator.attach import Attachment, CallReport, attach, attached
from opdeck.core.emulator.explore import Exploration, explore

__all__ = ["Attachment", "CallReport", "Exploration", "attach", "attached", "explore"]
