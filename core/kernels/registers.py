# SPDX-License-Identifier: Apache-2.0
"""Where a kernel computes what it has in registers.

Called by: roles that wait on barriers in the middle of arithmetic.
Why: LLVM moves arithmetic down to where its result is used, past waits and releases. What was loaded between two waits
then stays in registers until after the last of them: 128 scores and 128 elements of a bias, say, and the kernel spills.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32


@cute.jit
def compute_here(registers: cute.Tensor) -> None:
    """Has fp32 registers computed before what comes next in the program. By moves in PTX, which ptxas drops."""
    for idx in cutlass.range_constexpr(cute.size(registers)):
        registers[idx] = cute.arch.inline_ptx(
            "mov.b32 {$w0}, {$r0};", write_only_types=[Float32], read_only_args=[registers[idx]]
        )
