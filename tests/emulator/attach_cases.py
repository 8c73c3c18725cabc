# SPDX-License-Identifier: Apache-2.0
"""What test_attach.py runs in a process of its own: small CuTe DSL kernels on numpy arrays, the emulator attached.

Prints one JSON object, a value a case.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from opdeck.core.emulator import Attachment, attach
from opdeck.core.errors import OpdeckError

ATTACHMENT = attach(sys.argv[1])

import cutlass  # noqa: E402  (attach comes first)
import cutlass.memory  # noqa: E402
from cutlass import cute  # noqa: E402
from cutlass.cute.nvgpu import cpasync  # noqa: E402
from cutlass.cute.runtime import from_dlpack, make_ptr  # noqa: E402

THREADS = 128
ROWS, COLS, PITCH = 4, 128, 160


@cute.kernel
def double_kernel(x: cute.Tensor, y: cute.Tensor, num_rows: cutlass.Int32):
    thread_idx, _, _ = cute.arch.thread_idx()
    row_idx, _, _ = cute.arch.block_idx()
    if row_idx < num_rows:
        y[row_idx, thread_idx] = x[row_idx, thread_idx] * 2.0


@cute.jit
def double(x: cute.Tensor, y: cute.Tensor, num_rows: cutlass.Int32):
    double_kernel(x, y, num_rows).launch(grid=[num_rows, 1, 1], block=[THREADS, 1, 1])


@cute.jit
def double_through_pointers(x: cute.Pointer, y: cute.Pointer, num_rows: cutlass.Int32):
    layout = cute.make_layout((ROWS, COLS), stride=(COLS, 1))
    double_kernel(cute.make_tensor(x, layout), cute.make_tensor(y, layout), num_rows).launch(
        grid=[num_rows, 1, 1], block=[THREADS, 1, 1]
    )


@cute.kernel
def staged_kernel(x: cute.Tensor, y: cute.Tensor, waits: cutlass.Constexpr):
    thread_idx, _, _ = cute.arch.thread_idx()
    smem = cutlass.memory.SmemAllocator()
    staged = smem.allocate_tensor(cutlass.Float32, cute.make_layout(COLS), byte_alignment=16)
    staged[thread_idx] = cutlass.Float32(-1.0)
    cute.arch.sync_threads()
    atom = cute.make_copy_atom(cpasync.CopyG2SOp(), cutlass.Float32, num_bits_per_copy=32)
    tile = cute.make_layout(1)
    source = cute.make_tensor(x.iterator + thread_idx, tile)
    target = cute.make_tensor(staged.iterator + thread_idx, tile)
    cute.copy(atom, source, target)
    cute.arch.cp_async_commit_group()
    if cutlass.const_expr(waits):
        cute.arch.cp_async_wait_group(0)
    cute.arch.sync_threads()
    y[thread_idx] = staged[COLS - 1 - thread_idx]


@cute.jit
def reverse(x: cute.Tensor, y: cute.Tensor, waits: cutlass.Constexpr):
    staged_kernel(x, y, waits).launch(grid=[1, 1, 1], block=[COLS, 1, 1])


def arrays(*shape: int) -> tuple[Any, Any]:
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return x, np.full_like(x, -7)


def error_of(call: Callable[[], object]) -> list[str]:
    """[type, text] of what a call raises."""
    try:
        call()
    except OpdeckError as error:
        return [type(error).__name__, str(error)]
    return ["", ""]


def tensors(attachment: Attachment) -> dict[str, Any]:
    x, y = arrays(ROWS, COLS)
    x_cute, y_cute = from_dlpack(x), from_dlpack(y)
    compiled = cute.compile(double, x_cute, y_cute, ROWS)
    compiled(x_cute, y_cute, ROWS)
    result: dict[str, Any] = {"is_right": bool((y == 2 * x).all()), "report": asdict(attachment.last_report)}
    double(x_cute, y_cute, ROWS)  # compiled and run in one go
    result["num_reports"] = len(attachment.reports)
    result["beyond"] = error_of(lambda: compiled(x_cute, y_cute, ROWS + 1))
    result["report_of_stopped"] = asdict(attachment.last_report)
    return result


def rows_with_gaps(attachment: Attachment) -> dict[str, Any]:
    """y has gaps between its rows: a kernel that knows leaves them alone, one that does not stops."""
    x, _ = arrays(ROWS, COLS)
    buffer = np.full((ROWS, PITCH), -7, np.float32)
    x_cute, y_cute = from_dlpack(x), from_dlpack(buffer[:, :COLS])
    cute.compile(double, x_cute, y_cute, ROWS)(x_cute, y_cute, ROWS)
    unaware = cute.compile(double_through_pointers, x_cute.iterator, y_cute.iterator, ROWS)
    return {
        "is_right": bool((buffer[:, :COLS] == 2 * x).all() and (buffer[:, COLS:] == -7).all()),
        "unaware": error_of(lambda: unaware(x_cute.iterator, y_cute.iterator, ROWS)),
    }


def pointers(attachment: Attachment) -> dict[str, Any]:
    x, y = arrays(ROWS, COLS)
    x_cute = from_dlpack(x)
    y_pointer = make_ptr(cutlass.Float32, y.ctypes.data, assumed_align=16)
    compiled = cute.compile(double_through_pointers, x_cute.iterator, y_pointer, ROWS)
    result: dict[str, Any] = {"unknown": error_of(lambda: compiled(x_cute.iterator, y_pointer, ROWS))}
    attachment.expose(y, "y of the test")
    compiled(x_cute.iterator, y_pointer, ROWS)
    result["is_right"] = bool((y == 2 * x).all())
    return result


def missing_wait(attachment: Attachment) -> dict[str, Any]:
    """A cp.async without its wait: right when copies complete at once, wrong when they are late."""
    result: dict[str, Any] = {}
    for waits in (True, False):
        x, y = arrays(COLS)
        x_cute, y_cute = from_dlpack(x), from_dlpack(y)
        compiled = cute.compile(reverse, x_cute, y_cute, waits)
        for schedule in ("eager", "lazy", "random:3"):
            attachment.schedule, attachment.hazards = schedule, "on" if waits else "off"
            y[:] = -7
            compiled(x_cute, y_cute)
            result[f"{schedule} {'with' if waits else 'without'} wait"] = bool((y == x[::-1]).all())
    attachment.schedule, attachment.hazards = "eager", "on"
    return result


def exploring(attachment: Attachment) -> dict[str, Any]:
    """The same kernel under schedules until one shows what is wrong."""
    result: dict[str, Any] = {}
    for waits in (True, False):
        x, y = arrays(COLS)
        x_cute, y_cute = from_dlpack(x), from_dlpack(y)
        compiled = cute.compile(reverse, x_cute, y_cute, waits)

        def call(compiled: Any = compiled, x: Any = x_cute, y_cute: Any = y_cute, y: Any = y) -> list[Any]:
            y[:] = -7
            compiled(x, y_cute)
            return [y]

        attachment.hazards = "on" if waits else "off"
        found = attachment.explore(call, 0.2)
        result[f"{'with' if waits else 'without'} wait"] = asdict(found)
        result["schedule after"] = attachment.schedule
    attachment.hazards = "on"
    return result


def options(attachment: Attachment) -> dict[str, Any]:
    return {
        "again": error_of(lambda: attach("sm_100a")),
        "schedule": error_of(lambda: setattr(attachment, "schedule", "sometimes")),
        "seed": error_of(lambda: setattr(attachment, "schedule", "lazy:3")),
        "hazards": error_of(lambda: setattr(attachment, "hazards", "maybe")),
    }


def counters(attachment: Attachment) -> dict[str, Any]:
    x, y = arrays(ROWS, COLS)
    attachment.counting = True
    double(from_dlpack(x), from_dlpack(y), ROWS)
    profile = attachment.profile
    attachment.counting = False
    double(from_dlpack(x), from_dlpack(y), ROWS)
    return {
        "fp32": profile.by_pipe()["fp32"],
        "bytes": [profile.sum("global_read_bytes"), profile.sum("global_write_bytes")],
        "roles": list(profile.roles()),
        "num_ctas": profile.num_ctas,
        "uncounted": error_of(lambda: attachment.profile),
    }


def tvm_ffi(attachment: Attachment) -> dict[str, Any]:
    """A function that tvm_ffi calls, on arrays as they are and on runtime tensors."""
    x, y = arrays(ROWS, COLS)
    tensors_of_ffi = [from_dlpack(array, enable_tvm_ffi=True) for array in (x, y)]
    compiled = cute.compile(double, *tensors_of_ffi, ROWS, options="--enable-tvm-ffi")
    compiled(x, y, ROWS)
    result: dict[str, Any] = {"is_right": bool((y == 2 * x).all()), "report": asdict(attachment.last_report)}
    y[:] = -7
    compiled(*tensors_of_ffi, ROWS)
    result["is_right_on_runtime_tensors"] = bool((y == 2 * x).all())
    result["beyond"] = error_of(lambda: compiled(x, y, ROWS + 1))
    return result


if __name__ == "__main__":
    CASES = [tensors, rows_with_gaps, pointers, missing_wait, exploring, options, counters]
    if importlib.util.find_spec("tvm_ffi") is not None:
        CASES.append(tvm_ffi)
    print(json.dumps({case.__name__: case(ATTACHMENT) for case in CASES}))
