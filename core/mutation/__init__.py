# SPDX-License-Identifier: Apache-2.0
"""opdeck.core.mutation: do the checks of a kernel notice when one of its waits, arrives, commits or fences is missing?

mutants.py edits the kernel's PTX, gate.py runs each mutant on the emulator and judges it.
"""
