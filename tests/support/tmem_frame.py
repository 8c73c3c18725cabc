# SPDX-License-Identifier: Apache-2.0
"""PTX around a body that uses tensor memory: warp 0 allocates columns and gives them back.

Who calls it: tests/emulator.

The body finds the first column's address in %r100, and in %r102 that of its warp's lanes. It needs a shared `.b32
slot`, and leaves %q30 alone.
"""

from __future__ import annotations

ALLOC = """
  setp.lt.u32 %q30, %tid, 32;
  @%q30 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], {columns};
  bar.sync 0;
  ld.shared.b32 %r100, [slot];
  shr.u32 %r101, %tid, 5;
  shl.b32 %r101, %r101, 21;
  add.u32 %r102, %r100, %r101;
"""
FREE = """
  bar.sync 0;
  @%q30 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r100, {columns};
"""


def framed(body: str, columns: int = 64, num_ctas: int = 1) -> str:
    """num_ctas: the cta_group of the body's instructions."""
    alloc, free = (
        part.format(columns=columns).replace("cta_group::1", f"cta_group::{num_ctas}") for part in (ALLOC, FREE)
    )
    return alloc + body + free
