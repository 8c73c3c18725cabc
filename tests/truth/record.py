# SPDX-License-Identifier: Apache-2.0
"""Records what a real sm_90a GPU answers to every unit kernel: `python record.py OUT_DIR` on a machine with one.

For each unit the SHA-256 of its whole output is kept and the first words of it (all of them where only a bound can be
asked for), so that a difference can be read and not only be seen.
"""

from __future__ import annotations

import hashlib
import pathlib
import sys
from collections.abc import Iterator
from multiprocessing import TimeoutError, get_context

import elementwise
import memory_units
import numpy as np
from driver import Driver, DriverFault
from elementwise import Unit
from runner import encode_map, run_tma, run_unit, run_wgmma
from tensor_units import TMA_UNITS, WGMMA_UNITS, TmaUnit, WgmmaUnit

NUM_SAMPLE_WORDS = 256
NUM_APPROX_WORDS = 8192
NUM_PROCESSES = 8
TIMEOUT_SECONDS = 30
ILLEGAL_INSTRUCTION = 715  # CUDA_ERROR_ILLEGAL_INSTRUCTION


def _digest(raw: np.ndarray) -> np.ndarray:
    return np.frombuffer(hashlib.sha256(raw.tobytes()).digest(), np.uint8)


def _record(rows: dict[str, np.ndarray], name: str, raw: np.ndarray, num_words: int) -> None:
    rows[f"{name}/sha256"] = _digest(raw)
    rows[f"{name}/words"] = np.ascontiguousarray(raw).reshape(-1).view(np.uint32)[:num_words].copy()


Job = tuple[str, int]  # group, index in it


def _units(group: str) -> tuple[Unit | TmaUnit | WgmmaUnit, ...]:
    return {"units": (*elementwise.UNITS, *memory_units.UNITS), "tma": TMA_UNITS, "wgmma": WGMMA_UNITS}[group]


def record_one(job: Job) -> tuple[Job, dict[str, np.ndarray], str]:
    """Rows of one unit, or the text of its failure. A fault leaves the process's context unusable."""
    unit = _units(job[0])[job[1]]
    rows: dict[str, np.ndarray] = {}
    try:
        driver = Driver("libcuda.so.1")
        if isinstance(unit, TmaUnit):
            tensor_map = encode_map(driver, unit)
            rows[f"{unit.name}/map"] = np.frombuffer(tensor_map, np.uint8)
            _record(rows, unit.name, run_tma(driver, unit, tensor_map), NUM_SAMPLE_WORDS)
        elif isinstance(unit, WgmmaUnit):
            _record(rows, unit.name, run_wgmma(driver, unit), NUM_SAMPLE_WORDS if unit.values == "whole" else 1 << 20)
        else:
            _record(rows, unit.name, run_unit(driver, unit), NUM_APPROX_WORDS if unit.ulp_bound else unit.num_words)
    except DriverFault as fault:
        if fault.status == ILLEGAL_INSTRUCTION:
            rows[f"{unit.name}/trap"] = np.array(fault.status)
        return job, rows, str(fault)
    return job, rows, ""


def _run_all(jobs: list[Job], tasks_per_process: int) -> Iterator[tuple[Job, dict[str, np.ndarray], str]]:
    """The results of the jobs, each in a worker process; a job that hangs is reported as failed."""
    waiting = set(jobs)
    with get_context("spawn").Pool(NUM_PROCESSES, maxtasksperchild=tasks_per_process) as pool:
        answers = pool.imap_unordered(record_one, jobs)
        try:
            for _ in range(len(jobs)):
                answer = answers.next(timeout=TIMEOUT_SECONDS)
                waiting.discard(answer[0])
                yield answer
        except TimeoutError:
            for job in waiting:
                yield job, {}, f"no answer within {TIMEOUT_SECONDS} s"
        pool.terminate()


def record(out_dir: pathlib.Path) -> int:
    jobs: list[Job] = [(group, idx) for group in ("units", "tma", "wgmma") for idx in range(len(_units(group)))]
    groups: dict[str, dict[str, np.ndarray]] = {"units": {}, "tma": {}, "wgmma": {}}
    failures: list[tuple[Job, str]] = []
    # What fails beside another unit's fault is tried again in a process of its own.
    for tasks_per_process in (20, 1):
        failures = []
        for job, rows, error in _run_all(jobs, tasks_per_process):
            if not error or tasks_per_process == 1:
                groups[job[0]].update(rows)
            if error:
                failures.append((job, error))
        jobs = [job for job, _ in failures]
    for (group, idx), error in failures:
        print(f"{_units(group)[idx].name}: {error}")
    out_dir.mkdir(parents=True, exist_ok=True)
    for name, rows in groups.items():
        np.savez_compressed(out_dir / f"{name}.npz", **rows)
        print(f"{name}: {len(rows)} rows")
    print(f"{len(failures)} units failed")
    return len(failures)


if __name__ == "__main__":
    sys.exit(min(record(pathlib.Path(sys.argv[1])), 1))
