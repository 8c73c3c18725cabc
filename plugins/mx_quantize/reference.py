# SPDX-License-Identifier: Apache-2.0
"""reference.py: the entry of mx_quantize on a CPU: opdeck.core.mx's own arithmetic.

Who calls it: the CPU device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from opdeck.core.fusion import Fusion
from opdeck.core.mx import mx_format, tile_scales
from opdeck.core.mx.quantize import encoded
from opdeck.core.variant import Variant


def make(variant: Variant) -> Callable[..., None]:
    """The factory of the reference rows: an entry that the CPU device calls with numpy views of the arguments."""
    row = mx_format(str(variant.config["format"]))

    def run(tensors: Mapping[str, npt.NDArray[Any]], scalars: Mapping[str, float], fusion: Fusion | None) -> None:
        """Writes tensors["d"] and tensors["d_block_scale"]."""
        elements, scales = encoded(tensors["x"].astype(np.float32), row, scalars["d_scale"])
        tensors["d"][...], tensors["d_block_scale"][...] = elements, tile_scales(scales)

    return run
