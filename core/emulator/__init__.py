# SPDX-License-Identifier: Apache-2.0
"""opdeck.core.emulator: attach(), an emulated GPU for kernels that CuTe DSL compiles here. Imports no DSL."""

from opdeck.core.emulator.attach import Attachment, CallReport, attach, attached

__all__ = ["Attachment", "CallReport", "attach", "attached"]
