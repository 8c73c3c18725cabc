# SPDX-License-Identifier: Apache-2.0
"""workspaces.py: the device memory that launches need besides their tensors, kept from one launch to the next.

Who calls it: native.py. A launch may be of several kernels, which hand results on in its workspace: so that of another
thread on the same stream, whose kernels may come between, has a workspace of its own.
Limits: a graph keeps the address; it must not be replayed while its thread launches on the stream that was captured.
"""

from __future__ import annotations

import threading

from opdeck.core import arrays
from opdeck.core.arrays import TensorView

ALIGN_BYTES = 256


class Workspaces:
    """The workspaces of a device, one for each thread and stream. Used from any thread."""

    def __init__(self) -> None:
        self._newest: dict[tuple[int, int], TensorView] = {}
        self._all: list[TensorView] = []  # a launch under way may still use one that was too small for the next

    def address(self, num_bytes: int, stream: int, like: TensorView) -> int:
        """Of num_bytes for a launch of this thread on a stream; allocated by the library of `like` where there are not
        as many yet."""
        key = (threading.get_ident(), stream)
        workspace = self._newest.get(key)
        if workspace is None or workspace.shape[0] < num_bytes + ALIGN_BYTES:
            capacity_bytes = max(num_bytes, 0 if workspace is None else 2 * workspace.shape[0])
            owner = like.owner[0] if isinstance(like.owner, tuple) else like.owner
            workspace = arrays.view(arrays.allocate(owner, (capacity_bytes + ALIGN_BYTES,), "uint8"), "workspace")
            self._newest[key] = workspace
            self._all.append(workspace)
        return workspace.data + -workspace.data % ALIGN_BYTES
