# SPDX-License-Identifier: Apache-2.0
"""commands.py: `opdeck run mx_quantize` and `opdeck explain mx_quantize`.

Who calls it: opdeck.core.cli, through the family's row in the plugin.py of mx_gemm.
"""

from __future__ import annotations

import time
from math import prod
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from opdeck.core import dtypes, mx, registry
from opdeck.core.cli.devices import DeviceOption, HazardsOption, ScheduleOption, command_device
from opdeck.core.cli.explain import print_verdicts
from opdeck.core.errors import ArgumentError
from opdeck.core.mx.quantize import SOURCE_DTYPES
from opdeck.core.mx.report import accuracy
from opdeck.core.mx.tensor import K_MULTIPLE
from opdeck.core.transfer import to_memory, to_numpy, wait_for

MAX_ELEMS = 1 << 33  # what does not fit in memory is a wrong command line, not a wrong result

RowsOption = Annotated[int, typer.Option("--m", min=1, help="Rows.")]
ColumnsOption = Annotated[int, typer.Option("--k", min=K_MULTIPLE, help="Numbers of a row, a multiple of 32.")]
BatchOption = Annotated[int, typer.Option("--l", min=1, help="Matrices.")]
FormatOption = Annotated[str, typer.Option("--format", help=f"Of {', '.join(row.name for row in mx.FORMATS)}.")]
DtypeOption = Annotated[str, typer.Option("--dtype", help=f"Of {', '.join(SOURCE_DTYPES)}.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Of the random numbers, N(0, 1).")]
VerifyOption = Annotated[
    bool, typer.Option("--verify/--no-verify", help="Compare with the host's quantiser, bit by bit.")
]


def run(
    m: RowsOption = 512,
    k: ColumnsOption = 512,
    l: BatchOption = 1,  # noqa: E741
    format: FormatOption = "mxfp8_e4m3",
    dtype: DtypeOption = "bf16",
    seed: SeedOption = 0,
    device: DeviceOption = None,
    schedule: ScheduleOption = None,
    hazards: HazardsOption = None,
    verify: VerifyOption = True,
) -> None:
    """Quantises random numbers; verified against the host's quantiser, bit by bit. Exit status 1 when it is wrong."""
    numbers = _numbers((l, m, k), dtype, seed)
    where, operator = command_device(device, schedule, hazards), registry.get("mx_quantize")
    arguments = {"x": to_memory(numbers, where.memory), "format": format, "device": where}
    arguments["out"] = operator(**arguments)  # so that neither compiling nor a global scale is timed
    wait_for(where.memory)
    begin = time.perf_counter()
    got = operator(**arguments)
    wait_for(where.memory)
    seconds = time.perf_counter() - begin
    launch, found = operator.last_launch, accuracy(got, numbers)
    assert launch is not None
    lines = {
        "variant": launch.variant.id,
        "device": where.name,
        "cubin SHA-256": where.cubin_sha256(launch.variant) or "-",
        "error": f"max {found.max_abs:.3e}  / max {found.relative:.3e}  SNR {found.snr_db:.1f} dB",
        "time a launch": f"{seconds * 1e3:.3f} ms of the host's clock",
    }
    for name, text in lines.items():
        print(f"{name:<18}{text}")
    if verify:
        is_right = _is_same(got, mx.quantize(numbers, format))
        print("PASS" if is_right else "FAIL")
        if not is_right:
            raise typer.Exit(1)


def explain(
    m: RowsOption = 512,
    k: ColumnsOption = 512,
    l: BatchOption = 1,  # noqa: E741
    format: FormatOption = "mxfp8_e4m3",
    dtype: DtypeOption = "bf16",
    device: DeviceOption = None,
) -> None:
    """The variants of the quantiser that accept the problem, with their configs, and why the others do not."""
    where, operator = command_device(device, None, None), registry.get("mx_quantize")
    numbers = to_memory(_numbers((l, m, k), dtype, seed=0), where.memory)
    print_verdicts(operator, operator.problem(numbers, format, device=where))


def _numbers(shape: tuple[int, int, int], dtype: str, seed: int) -> npt.NDArray[Any]:
    """N(0, 1), (L, M, K)."""
    if dtype not in SOURCE_DTYPES:
        raise ArgumentError("--dtype", repr(dtype), "|".join(SOURCE_DTYPES))
    if prod(shape) >= MAX_ELEMS:
        raise ArgumentError("--l, --m, --k", f"a tensor {shape}", "one of less than 2^33 elements")
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtypes.dtype(dtype).numpy)


def _is_same(got: mx.MxTensor, want: mx.MxTensor) -> bool:
    parts = ((got.elements(), want.elements()), (to_numpy(got.scales), to_numpy(want.scales)))
    return all(np.array_equal(a.view(np.uint8), b.view(np.uint8)) for a, b in parts)
