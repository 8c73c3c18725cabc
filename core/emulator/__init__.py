# SPDX-License-Identifier: Apache-2.0
"""opdeck.core.emulator: the emulated GPU for kernels that CuTe DSL compiles in this process: attach(). Imports no DSL."""

from opdeck.core.emulator.attach import Attachment, CallReport, attach, attached

__all__ = ["Attachment", "CallReport", "attach", "attached"]
