# SPDX-License-Identifier: Apache-2.0
"""Runs NVIDIA's CuTe DSL examples, unchanged, on the emulator and writes what came out as a table.

Usage: python benchmarks/emulator_examples.py CUTLASS [--only PATTERN] [--write FILE]
CUTLASS is a checkout of https://github.com/NVIDIA/cutlass, whose examples fit the installed DSL. Needs torch.

These kernels are known to be right on GPUs: where one fails here, the emulator is wrong until proven otherwise. A case
is a process of its own, which runs the example's own main with its own inputs and its own check. The errors are those
of the tensors that the example gives to torch.testing.assert_close; its reference computes products and softmaxes
in float64 and rounds them to its own type. Each call is made again under other schedules, from the same memory, and the
memory that it leaves is compared.
Limits: an example that checks otherwise, or uses CUDA events, cannot be listed here.
"""

from __future__ import annotations

import argparse
import ctypes
import fnmatch
import json
import os
import re
import runpy
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from emulator_example_cases import CASES, EXAMPLES, Case

SCHEDULES = ("lazy", "random:1", "random:2")  # besides eager


@dataclass
class Outcome:
    """What a case's process says. relative_error: largest ||x - ref|| / ||ref||. The counts are of the main kernel.

    seconds: of its emulation. schedules: how many bytes differed from those of eager, most of all calls. hazard: what
    the detector stopped an earlier run for; this one is without it then. stopped: what stopped other schedules.
    """

    status: str = "did not run"
    relative_error: float = -1.0
    max_abs_error: float = -1.0
    num_checks: int = 0
    kernel_name: str = ""
    num_ctas: int = 0
    warp_instructions: int = 0
    mma_macs: int = 0
    seconds: float = 0.0
    wall_seconds: float = 0.0
    schedules: dict[str, int] = field(default_factory=dict)
    stopped: dict[str, str] = field(default_factory=dict)
    hazard: str = ""

    def note_errors(self, got: Any, want: Any) -> None:
        """Of tensors in float64."""
        both = got.isfinite() & want.isfinite()  # the LSE of an empty row is -inf in both
        difference, wanted = (got - want)[both], want[both]
        relative = float(difference.norm() / wanted.norm()) if wanted.norm() else float(difference.norm())
        self.relative_error = max(self.relative_error, relative)
        self.max_abs_error = max(self.max_abs_error, float(difference.abs().max()))


def run_case(case: Case, cutlass: Path) -> Outcome:
    """Runs a case in this process, which it leaves unfit for another."""
    from opdeck.core.emulator import attach
    from opdeck.core.emulator.cuda_on_cpu import redirect_cuda

    attachment = attach(case.arch, schedule="eager")
    outcome = Outcome()
    _watch_checks(outcome)
    _repeat_calls(attachment, outcome)
    redirect_cuda(attachment)
    script = cutlass / EXAMPLES / case.script
    sys.argv = [str(script), *case.arguments.split()]
    sys.path[0] = str(script.parent)
    _watch_variables(case, script, outcome)
    start = time.perf_counter()
    try:
        with _float64_references():
            runpy.run_path(str(script), run_name="__main__")
        outcome.status = "right" if outcome.num_checks else "not checked"
    except AssertionError as error:
        outcome.status = f"wrong: {_first_line(error)}"
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        hazards = [report.hazard for report in attachment.reports if report.hazard]
        outcome.status = f"stopped: {hazards[-1] if hazards else f'{type(error).__name__}: {_first_line(error)}'}"
    outcome.wall_seconds = time.perf_counter() - start
    if attachment.reports:
        main_kernel = max(attachment.reports, key=lambda report: (report.mma_macs, report.warp_instructions))
        for name in ("kernel_name", "num_ctas", "warp_instructions", "mma_macs", "seconds"):
            setattr(outcome, name, getattr(main_kernel, name))
    return outcome


class _Memory:
    """The bytes of the memory of the session that begins next, and then after each of its repetitions."""

    def __init__(self, library: Any) -> None:
        self._begin = library.begin
        self._extents: list[tuple[int, int]] = []
        self.before: list[bytes] = []
        library.begin = self._noting

    def _noting(self, tensors: Any, *options: Any) -> None:
        self._extents = []
        for tensor in tensors:
            reach = [stride * (extent - 1) for extent, stride in zip(tensor.shape, tensor.strides, strict=True)]
            low = sum(min(elems, 0) for elems in reach) * tensor.elem_bits // 8
            high = -(-(sum(max(elems, 0) for elems in reach) + 1) * tensor.elem_bits // 8)
            if 0 not in tensor.shape:
                self._extents.append((tensor.data + low, high - low))
        self.before = self.now()
        self._begin(tensors, *options)

    def now(self) -> list[bytes]:
        return [ctypes.string_at(address, num_bytes) for address, num_bytes in self._extents]

    def restore(self, contents: list[bytes]) -> None:
        for (address, num_bytes), content in zip(self._extents, contents, strict=True):
            ctypes.memmove(address, content, num_bytes)


def _repeat_calls(attachment: Any, outcome: Outcome) -> None:
    """Repeats each call under SCHEDULES and notes what differs. What an example sees is the result under eager."""
    import numpy as np
    from cutlass.base_dsl.jit_executor import JitExecutor

    from opdeck.core.errors import OpdeckError

    memory = _Memory(attachment.library)
    original = JitExecutor.run_compiled_program

    def run(executor: Any, descriptors: Any) -> Any:
        result = original(executor, descriptors)
        start, eager = memory.before, memory.now()
        for schedule in SCHEDULES:
            memory.restore(start)
            attachment.schedule = schedule
            try:
                original(executor, descriptors)
            except OpdeckError as error:
                outcome.stopped[schedule] = str(error)
                continue
            pairs = zip(memory.now(), eager, strict=True)
            differing = sum(int((np.frombuffer(x, np.uint8) != np.frombuffer(y, np.uint8)).sum()) for x, y in pairs)
            outcome.schedules[schedule] = max(outcome.schedules.get(schedule, 0), differing)
        memory.restore(eager)
        attachment.schedule = "eager"
        return result

    JitExecutor.run_compiled_program = run


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:400]


def _watch_checks(outcome: Outcome) -> None:
    import torch

    original = torch.testing.assert_close

    def assert_close(actual: Any, expected: Any, **tolerances: Any) -> None:
        outcome.num_checks += 1
        if not isinstance(actual, torch.Tensor):
            return original(actual, expected, **tolerances)
        outcome.note_errors(actual.detach().double(), expected.detach().double())
        return original(actual, expected, **tolerances)

    torch.testing.assert_close = assert_close


def _watch_variables(case: Case, script: Path, outcome: Outcome) -> None:
    def look(frame: Any, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event != "return" or code.co_name != "run" or code.co_filename != str(script):
            return
        variables = frame.f_locals
        for name in case.compared:
            if f"{name}_ref" in variables:
                outcome.num_checks += 1
                outcome.note_errors(variables[name].double(), variables[f"{name}_ref"].double())

    if case.compared:
        sys.setprofile(look)


def _flat(args: Any) -> list[Any]:
    """Operands, some of which are in a list (torch.einsum)."""
    return [value for arg in args for value in (arg if isinstance(arg, list) else [arg])]


def _float64_references() -> Any:
    """A torch mode in which products and softmaxes are computed in float64 and rounded to the type of the arguments."""
    import torch

    functional = torch.nn.functional
    in_float64 = {torch.einsum, torch.matmul, torch.bmm, torch.mm, torch.softmax, functional.softmax, torch.logsumexp,
                  functional.scaled_dot_product_attention, torch.Tensor.matmul, torch.Tensor.softmax}  # fmt: skip
    narrow = (torch.float32, torch.float16, torch.bfloat16)

    def widened(argument: Any) -> Any:
        is_narrow = isinstance(argument, torch.Tensor) and argument.dtype in narrow
        return argument.double() if is_narrow else argument

    class Float64(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if function is torch._scaled_mm:
                return _block_scaled_product(*args, kwargs["out_dtype"])
            if function not in in_float64 or kwargs.get("dtype") is not None:
                return function(*args, **kwargs)
            result = function(*map(widened, _flat(args)), **{name: widened(value) for name, value in kwargs.items()})
            own_type = next(value.dtype for value in _flat(args) if isinstance(value, torch.Tensor))
            return result if own_type == torch.float64 else result.to(own_type)

    return Float64()


def _block_scaled_product(a: Any, b: Any, scale_a: Any, scale_b: Any, out_type: Any) -> Any:
    """torch._scaled_mm with block scales, which torch has on GPUs only. a: (M, K), b: (K, N), K contiguous in both."""
    wide = [_scaled_rows(rows, scales) for rows, scales in ((a, scale_a), (b.transpose(0, 1), scale_b))]
    return (wide[0] @ wide[1].transpose(0, 1)).to(out_type)


def _scaled_rows(rows: Any, scales: Any) -> Any:
    """(rows, K) in float64. Scales stand in blocks of 128 rows x 4 columns, stored as 32 x (4 x 4)."""
    import torch

    if rows.dtype == torch.float4_e2m1fn_x2:
        magnitudes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
        packed = rows.view(torch.uint8).long()
        codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
        values = magnitudes[codes & 7] * (1 - 2 * (codes >> 3))
    else:
        values = rows.float().double()
    num_rows, k = values.shape
    block_elems = 16 if scales.dtype == torch.float8_e4m3fn else 32
    num_row_blocks, num_col_blocks = -(-num_rows // 128), -(-k // block_elems // 4)
    blocks = scales.float().double().view(num_row_blocks, num_col_blocks, 32, 4, 4)
    table = blocks.permute(0, 3, 2, 1, 4).reshape(num_row_blocks * 128, num_col_blocks * 4)
    return values * table[:num_rows].repeat_interleave(block_elems, dim=1)[:, :k]


def result_file(case: Case, logs: Path) -> Path:
    """Where a case's outcome is kept, beside the log of its process."""
    return logs / ("".join(c if c.isalnum() else "_" for c in case.name) + ".json")


def run_in_process(case: Case, options: argparse.Namespace, hazards: str) -> Outcome:
    """A case in a process of its own; what that prints goes to a log."""
    result = result_file(case, options.logs)
    log = result.with_suffix(".log")
    command = [sys.executable, __file__, str(options.cutlass), "--only", case.name, "--result", str(result)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "OPDECK_HAZARDS": hazards}
    died = Outcome(f"stopped: the process died, see {log.name}")
    result.write_text(json.dumps(asdict(died)))
    with log.open("w") as output:
        try:
            subprocess.run(command, stdout=output, stderr=output, env=environment, timeout=options.timeout, check=False)
        except subprocess.TimeoutExpired:
            result.write_text(json.dumps(asdict(Outcome(f"stopped: no end within {options.timeout} s"))))
    return Outcome(**json.loads(result.read_text()))


def run_with_hazards(case: Case, options: argparse.Namespace) -> Outcome:
    """A case with the hazard detector; when that stops it, once more without, for what comes out."""
    outcome = run_in_process(case, options, "on")
    found = re.search(r"hazard \[.*", " ".join((outcome.status, *outcome.stopped.values())))
    if found is None:
        return outcome
    outcome = run_in_process(case, options, "off")
    outcome.hazard = found[0]
    result_file(case, options.logs).write_text(json.dumps(asdict(outcome)))
    return outcome


def table(logs: Path) -> str:
    """Rows of Markdown, of all the cases that have an outcome."""
    columns = ("example", "arch", "arguments", "result", "relative error", "largest error", "other schedules",
               "hazards", "CTAs", "warp-instructions", "MACs", "seconds")  # fmt: skip
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for case in CASES:
        if not result_file(case, logs).exists():
            continue
        outcome = Outcome(**json.loads(result_file(case, logs).read_text()))
        differing = max(outcome.schedules.values(), default=-1)
        schedules = {-1: "", 0: "same bits"}.get(differing, f"{differing} bytes differ")
        schedules = "; ".join((schedules, *(f"{name}: {why}" for name, why in outcome.stopped.items())))
        errors = (f"{error:.1e}" if error >= 0 else "" for error in (outcome.relative_error, outcome.max_abs_error))
        counts = map(str, (outcome.num_ctas, outcome.warp_instructions, outcome.mma_macs))
        cells = (case.name, case.arch, f"`{case.arguments.strip()}`", outcome.status, *errors, schedules,
                 outcome.hazard or "none", *counts, f"{outcome.seconds:.2f}")  # fmt: skip
        lines.append(
            "| " + " | ".join(re.sub(r"kernel kernel_\S+ ", "", cell).replace("|", "/") for cell in cells) + " |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Runs the cases that --only matches, one after another."""
    parser = argparse.ArgumentParser(description="Runs NVIDIA's CuTe DSL examples on the emulator.")
    parser.add_argument("cutlass", type=Path, help="a checkout of NVIDIA/cutlass")
    parser.add_argument("--only", default="*", help="names of cases, as a shell pattern")
    parser.add_argument("--timeout", type=float, default=900, help="seconds a case")
    parser.add_argument("--logs", type=Path, default=Path("build/emulator-examples"), help="outcomes are kept here")
    parser.add_argument("--write", type=Path, help="page whose table is replaced by that of all outcomes kept")
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = [case for case in CASES if fnmatch.fnmatchcase(case.name, options.only)]
    if options.result is not None:
        options.result.write_text(json.dumps(asdict(run_case(cases[0], options.cutlass.resolve()))))
        return
    options.logs.mkdir(parents=True, exist_ok=True)
    # Before the long run, which would be lost without it.
    page = options.write.read_text() if options.write is not None else ""
    for case in cases:
        outcome = run_with_hazards(case, options)
        print(f"{case.name}: {outcome.status}; relative error {outcome.relative_error:.1e}; {outcome.schedules}; "
              f"{outcome.seconds:.2f} s of {outcome.wall_seconds:.0f} s", flush=True)  # fmt: skip
    if options.write is not None:
        before, _, behind = page.partition("| example |")
        _, gap, behind = behind.partition("\n\n")
        options.write.write_text(before + table(options.logs).rstrip("\n") + (gap + behind or "\n"))


if __name__ == "__main__":
    main()
