# SPDX-License-Identifier: Apache-2.0
"""mx.py: `opdeck mx report`: what the block-scaled formats cost and save in one product.

Who calls it: opdeck.core.cli mounts `app`.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer

from opdeck.core.cli.text import print_table
from opdeck.core.errors import ArgumentError
from opdeck.core.mx import FORMATS, MxFormat, quantize
from opdeck.core.mx.report import accuracy
from opdeck.core.mx.tensor import K_MULTIPLE

app = typer.Typer(help="Block-scaled formats: MXFP8, MXFP6, MXFP4, NVFP4.", no_args_is_help=True)

MAX_SAMPLE_ELEMS = 1 << 20
_FP16_BYTES = 2
_HEADER = ("format", "A", "B", "scales", "fp16 / all", "max error", "/ max |x|", "SNR", "worst block")

Rows = Annotated[int, typer.Argument(min=1, help="Rows of A.")]
Columns = Annotated[int, typer.Argument(min=1, help="Rows of B, the weight.")]
Depth = Annotated[int, typer.Argument(min=K_MULTIPLE, help="K, a multiple of 32.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Of the sample.")]
RoundingOption = Annotated[str, typer.Option("--rounding", help="Of block scales: floor or ceil.")]


@app.command("report")
def report_command(m: Rows, n: Columns, k: Depth, seed: SeedOption = 0, rounding: RoundingOption = "floor") -> None:
    """Memory of A (M, K) and B (N, K) in each format, and the accuracy of N(0, 1) numbers in rows of K."""
    if k % K_MULTIPLE:
        raise ArgumentError("K", k, f"a multiple of {K_MULTIPLE}")
    print(f"A ({m}, {k}) and B ({n}, {k}); in fp16 {_mib(m * k * _FP16_BYTES)} and {_mib(n * k * _FP16_BYTES)}")
    num_rows = max(1, min(n, MAX_SAMPLE_ELEMS // k))
    sample = np.random.default_rng(seed).standard_normal((num_rows, k), np.float32)
    print_table(_HEADER, [_line(row, (m, n, k), sample, rounding) for row in FORMATS])


def _line(row: MxFormat, extents: tuple[int, int, int], sample: np.ndarray, rounding: str) -> tuple[str, ...]:
    m, n, k = extents
    (a, a_scales), (b, b_scales) = row.memory_bytes(m, k), row.memory_bytes(n, k)
    found = accuracy(quantize(sample, row, rounding), sample)
    ratio = (m + n) * k * _FP16_BYTES / (a + a_scales + b + b_scales)
    return (
        row.name,
        _mib(a),
        _mib(b),
        _mib(a_scales + b_scales),
        f"{ratio:.2f}",
        f"{found.max_abs:.3g}",
        f"{found.relative:.3g}",
        f"{found.snr_db:.1f} dB",
        f"{found.worst_block_snr_db:.1f} dB",
    )


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):.3g} MiB"
