# SPDX-License-Identifier: Apache-2.0
"""check.py: whether a kernel with an activation agrees with the float64 oracle, for `opdeck check-plugin`.

Who calls it: opdeck.core.plugin_check, through the family's row in plugin.py.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from opdeck.core import mx, registry
from opdeck.core.devices import open_device
from opdeck.core.errors import OpdeckError
from opdeck.core.fusion import Activation
from opdeck.plugins.mx_gemm import reference

# Ragged, of two tiles each way.
NUM_ROWS, NUM_COLS, DEPTH = 135, 264, 160
SCHEDULES = ("eager", "random:1")


class WrongResultError(OpdeckError):
    """A kernel and the oracle disagree."""


def check_fusion(activation: Activation, device_name: str) -> None:
    """Runs the kernel of the activation on sums of either sign, on an emulator under two schedules, hazards strict.

    Raises: WrongResultError, or what the call raises.
    """
    rng, operator = np.random.default_rng(0), registry.get("mx_gemm")
    sampled = activation.sample(rng)
    a, b = (
        mx.quantize(rng.standard_normal((rows, DEPTH)).astype(np.float32), "mxfp8_e4m3")
        for rows in (NUM_ROWS, NUM_COLS)
    )
    bias = rng.standard_normal(NUM_COLS).astype(ml_dtypes.bfloat16)
    epilogue = reference.Epilogue(alpha=0.25, bias=bias, activation=sampled)
    exact_a, exact_b = mx.exact_values(a), mx.exact_values(b)
    want = reference.gemm(exact_a, exact_b, epilogue)
    on_emulator = device_name.startswith("emulator:")
    for schedule in SCHEDULES if on_emulator else (None,):
        device = open_device(device_name, schedule, "strict" if on_emulator else None)
        d = operator(a, b, bias=bias, alpha=0.25, activation=sampled, device=device)
        errors = np.abs(d.astype(np.float64) - want) / reference.error_bounds(exact_a, exact_b, epilogue, d)
        if not errors.max() <= 1.0:  # NaN too
            where = tuple(int(idx) for idx in np.unravel_index(errors.argmax(), errors.shape))
            raise WrongResultError(
                f"D of the kernel is not that of `reference`: {errors.max():.3g} times its bound at {where}, "
                f"got {float(d[where]):.6g}, want {want[where]:.6g}"
            )
