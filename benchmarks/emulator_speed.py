# SPDX-License-Identifier: Apache-2.0
"""How fast the emulator runs: warp-instructions a second, with and without hazard checks, on one core and on all.

Usage: python benchmarks/emulator_speed.py [--repeats N] [--write FILE]

Loops of PTX, and the attention kernels of this project with their tensor-core work. One core is measured in processor
time, so a busy machine does not count; all cores by the clock, only where nothing else runs. The best of the repeats
counts.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import emulator_driver as driver

from opdeck.core import registry
from opdeck.core.devices.find import open_device

Run = Callable[[str], int]  # hazards "on" or "off" -> the launch's warp-instructions

THREADS_VARIABLE = "OPDECK_EMULATOR_THREADS"
INTEGER = "add.u32 %r0, %r0, %tid; mad.lo.u32 %r1, %r0, %r2, %r1; xor.b32 %r2, %r1, %r0; shl.b32 %r3, %r2, 3;"
FLOAT = "fma.rn.f32 %r0, %r1, %r2, %r0; add.rn.f32 %r1, %r0, %r2; mul.rn.f32 %r3, %r1, %r0; max.f32 %r2, %r3, %r1;"
SHARED = "st.shared.u32 [%r20], %r0; bar.sync 0; ld.shared.u32 %r0, [%r20]; add.u32 %r0, %r0, 1;"


@dataclass(frozen=True)
class Row:
    name: str
    warp_instructions: int
    plain_s: float  # processor time, one thread
    hazards_s: float
    all_cores_s: float | None  # by the clock; None on a busy machine

    def text(self) -> str:
        plain, hazards = (self.warp_instructions / s / 1e6 for s in (self.plain_s, self.hazards_s))
        all_cores = "-" if self.all_cores_s is None else f"{self.warp_instructions / self.all_cores_s / 1e6:.1f}"
        return (
            f"| {self.name} | {self.warp_instructions} | {plain:.1f} | {hazards:.1f} |"
            f" {self.hazards_s / self.plain_s:.1f} | {all_cores} | {self.plain_s * 1e3:.0f} ms |"
        )


def loop(instructions: str) -> Run:
    """A PTX loop of 64 instructions, 200 times, by 8 CTAs of 4 warps."""
    emulator = driver.Emulator()
    set_up = "mov.u32 %r10, 0; mov.u32 %r0, 1; mov.u32 %r1, 2; mov.u32 %r2, 3; shl.b32 %r11, %tid, 2;"
    set_up += "mov.u32 %r20, tile; add.u32 %r20, %r20, %r11;"
    again = "add.u32 %r10, %r10, 1; setp.lt.u32 %q0, %r10, 200; @%q0 bra AGAIN;"
    body = f"{set_up} AGAIN: {instructions * 16} {again}"

    def run(hazards: str) -> int:
        schedule = driver.Schedule(hazards=int(hazards == "on"))
        report = driver.run_body(
            emulator,
            body,
            [],
            driver.Launch(grid=(8, 1, 1), block=(128, 1, 1)),
            schedule,
            declarations=".shared .align 16 .b8 tile[512];",
        )
        return int(report.warp_instructions)

    return run


def attention(arch: str) -> Run:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1024, 4, 128)).astype(ml_dtypes.bfloat16) for _ in range(3))
    fmha = registry.get("fmha_fwd")

    def run(hazards: str) -> int:
        device = open_device(f"emulator:{arch}", hazards=hazards)
        fmha(q, k, v, device=device)
        report = device.last_report()
        assert report is not None
        return report.warp_instructions

    return run


CASES: dict[str, Callable[[], Run]] = {
    "integer loop": lambda: loop(INTEGER),
    "float loop": lambda: loop(FLOAT),
    "shared memory and barriers": lambda: loop(SHARED),
    "fmha_fwd sm_100a bf16 h4 1024 x 1024 d128": lambda: attention("sm_100a"),
    "fmha_fwd sm_90a bf16 h4 1024 x 1024 d128": lambda: attention("sm_90a"),
}


def best_time(run: Run, hazards: str, clock: Callable[[], float], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = clock()
        run(hazards)
        times.append(clock() - start)
    return min(times)


def machine_is_idle() -> bool:
    return os.getloadavg()[0] < 0.5


def measure(name: str, repeats: int, clock: Callable[[], float] | None) -> Row:
    """clock: of the run on all cores; None leaves that out."""
    run = CASES[name]()
    num_instructions = run("off")  # compiles and loads
    run("on")
    os.environ[THREADS_VARIABLE] = "1"
    plain = best_time(run, "off", time.process_time, repeats)
    hazards = best_time(run, "on", time.process_time, repeats)
    del os.environ[THREADS_VARIABLE]
    all_cores = None if clock is None else best_time(run, "off", clock, repeats)
    return Row(name, num_instructions, plain, hazards, all_cores)


def processor_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def table(rows: list[Row]) -> str:
    num_cores = len(os.sched_getaffinity(0))
    return "\n".join(
        [
            "# The emulator's speed",
            "",
            f"{processor_name()}, {num_cores} cores, {datetime.date.today()}, by `benchmarks/emulator_speed.py`.",
            "Millions of warp-instructions a second; on one core by processor time, on all by the clock",
            "(-: the machine was busy). A launch is on one core without hazard checks, matrix products included.",
            "",
            "| kernel | warp-instructions | one core | with hazards | slower by | all cores | a launch |",
            "|---|---|---|---|---|---|---|",
            *(row.text() for row in rows),
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, metavar="N")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the table there too")
    arguments = parser.parse_args()
    clock = time.perf_counter if machine_is_idle() else None
    text = table([measure(name, arguments.repeats, clock) for name in CASES])
    print(text)
    if arguments.write is not None:
        arguments.write.write_text(text)


if __name__ == "__main__":
    main()
