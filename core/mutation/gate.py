# SPDX-License-Identifier: Apache-2.0
"""gate.py: do the emulator's checks notice when a kernel lacks one of its synchronisations?

Who calls it: tests/mutation; authors of kernels, to test their own.
Hazards are checked at the strict level, that of the PTX ISA's letter.
A mutant is caught by an error of the emulator (a hazard, a deadlock, ...), by a wrong result, or by a result that
depends on the schedule. It is vacuous, and only then may it stay uncaught, when the instruction is never executed on
any problem, or when without it the results and the happens-before order of all accesses (hb_fingerprint) stay as they
were on every problem. Any other mutant that is not caught has survived: a hole in the checks.
"""

from __future__ import annotations

import contextlib
import enum
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from opdeck.abi import emulator_path
from opdeck.aot import ensure
from opdeck.core.devices import Device, open_device
from opdeck.core.devices.native import NativeDevice
from opdeck.core.emulator.library import EmulatorLibrary
from opdeck.core.errors import HazardError, OpdeckError
from opdeck.core.mutation.mutants import Mutant, mutants
from opdeck.core.variant import Variant

SCHEDULES = ("eager", "lazy", "random:1", "random:2")
WATCHDOG_FACTOR = 20


@dataclass(frozen=True)
class Result:
    """What a kernel wrote. failure: why that is wrong, "" when it is right."""

    bits: bytes
    failure: str


@dataclass(frozen=True)
class Problem:
    """One call of the operator. run: launches it on a device into poisoned outputs, and compares with the oracle."""

    name: str
    run: Callable[[Device], Result]


class Fate(enum.Enum):
    """What became of a mutant."""

    CAUGHT = "caught"
    VACUOUS = "vacuous"
    SURVIVED = "SURVIVED"


@dataclass(frozen=True)
class Verdict:
    """reason: by what it was caught, or why it is vacuous, or what is known of a survivor. where: problem, schedule."""

    mutant: Mutant
    fate: Fate
    reason: str
    where: str = ""


@dataclass(frozen=True)
class _Run:
    """One launch. error: of the emulator, "" when it ran to its end."""

    error: str
    result: Result
    hb_fingerprint: int | None
    warp_instructions: int


class MutationGate:
    """A kernel with its problems, run intact first: it must be right, with the same bits under every schedule.

    The PTX that the emulator runs for the kernel is changed while a mutant is judged, and restored after.
    Raises: OpdeckError when the intact kernel fails a problem.
    """

    def __init__(self, variant: Variant, problems: Sequence[Problem]) -> None:
        self.variant = variant
        self.problems = tuple(problems)
        self._devices = {schedule: _device(variant, schedule) for schedule in SCHEDULES}
        self.ptx = _ptx_path(variant).read_text()
        self.mutants = tuple(mutants(self.ptx))
        self._emulator = EmulatorLibrary(emulator_path())  # the one that libopdeck has open
        self._intact = {problem.name: self._run_intact(problem) for problem in self.problems}
        self._cubin_sha256 = self._emulator.text(self._emulator.last_report().cubin_sha256)
        self._watchdog = WATCHDOG_FACTOR * max(run.warp_instructions for run in self._intact.values())

    def judge(self, mutant: Mutant) -> Verdict:
        """Runs the mutant until something catches it, else on every problem under every schedule."""
        changes: list[str] = []
        with self._running(mutant.edit(self.ptx)):
            for problem in self.problems:
                runs: list[_Run] = []
                for schedule in SCHEDULES:
                    runs.append(self._run(problem, self._devices[schedule]))
                    caught_by = _caught_by(runs)
                    if caught_by:
                        return Verdict(mutant, Fate.CAUGHT, caught_by, f"{problem.name}, {schedule}")
                changes += _changes(self._intact[problem.name], runs[0])
        if not self._is_executed(mutant):
            return Verdict(mutant, Fate.VACUOUS, "never executed")
        if changes:
            return Verdict(mutant, Fate.SURVIVED, changes[0])
        return Verdict(mutant, Fate.VACUOUS, "same results, same happens-before order")

    @contextlib.contextmanager
    def _running(self, ptx: str) -> Iterator[None]:
        """Launches run this text within the block, and not much longer than the intact kernel."""
        self._emulator.replace_ptx(self._cubin_sha256, ptx)
        self._emulator.set_defaults(max_warp_instructions=self._watchdog)
        try:
            yield
        finally:
            self._emulator.set_defaults()
            self._emulator.replace_ptx(self._cubin_sha256, self.ptx)

    def _is_executed(self, mutant: Mutant) -> bool:
        with self._running(mutant.probe(self.ptx)):
            return any("`trap`" in self._run(problem, self._devices["eager"]).error for problem in self.problems)

    def _run_intact(self, problem: Problem) -> _Run:
        runs = []
        for schedule in SCHEDULES:
            runs.append(self._run(problem, self._devices[schedule]))
            caught_by = _caught_by(runs)
            if caught_by:
                where = f"{self.variant.id}, problem {problem.name}, {schedule}"
                raise OpdeckError(f"{where}: the intact kernel fails: {caught_by}: {runs[-1].error}")
        return runs[0]

    def _run(self, problem: Problem, device: Device) -> _Run:
        try:
            result, error = problem.run(device), ""
        except HazardError as raised:
            result, error = Result(b"", ""), str(raised)
        report = self._emulator.last_report()
        return _Run(error, result, report.hb_fingerprint or None, report.warp_instructions)


def _caught_by(runs: Sequence[_Run]) -> str:
    """What is wrong with the last run, given those of the same problem before it; "" when nothing is."""
    last = runs[-1]
    if last.error:
        return error_kind(last.error)
    if last.result.failure:
        return f"wrong result: {last.result.failure}"
    return "" if last.result.bits == runs[0].result.bits else "result depends on the schedule"


def _changes(intact: _Run, mutated: _Run) -> list[str]:
    """What the lack of the instruction has changed in an eager run that nothing caught."""
    changes = []
    if mutated.result.bits != intact.result.bits:
        changes.append("other bits, within the tolerance")
    if mutated.hb_fingerprint is None:
        changes.append("the emulator gives no happens-before fingerprint")
    elif mutated.hb_fingerprint != intact.hb_fingerprint:
        changes.append("another happens-before order")
    return changes


def error_kind(text: str) -> str:
    """The kind of an emulator's error: "KERNEL: [place: ]KIND[: details]", numbers as N."""
    message = text.splitlines()[0].partition(": ")[2]
    message = message.rpartition("`: ")[2]  # behind the place, which ends in the instruction
    return re.sub(r"\b(?:0x[0-9a-f]+|\d+)\b", "N", message.partition(":")[0])


def _device(variant: Variant, schedule: str) -> NativeDevice:
    device = open_device(f"emulator:{variant.arch}", schedule=schedule, hazards="strict")
    assert isinstance(device, NativeDevice)
    device.load_pack(ensure(variant))
    return device


def _ptx_path(variant: Variant) -> Path:
    return ensure(variant).parent / f"{variant.id}.kernels" / f"{variant.id}.ptx"
