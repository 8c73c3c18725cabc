# SPDX-License-Identifier: Apache-2.0
"""explore.py: one call under many schedules, until one is stopped, gives other results, or the time is up.

Who calls it: users, with an operator or through Attachment.explore; opdeck.core.cli (`opdeck run FAMILY --explore`).
The schedules are eager, lazy, random:1, random:2, ...; a schedule's name is all that it takes to run it again.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from opdeck.core.emulator.library import EmulatorLibrary
from opdeck.core.errors import ArgumentError, HazardError
from opdeck.core.transfer import to_numpy

Outputs = Sequence[Any]


@dataclass(frozen=True)
class Exploration:
    """What came out. schedules: those that ran, in order. num_orders: how many of them ordered the accesses of memory
    differently (happens-before fingerprints), 0 without hazard checks. failure: what the last one showed, "" when all
    gave the same bits and none was stopped.
    """

    schedules: tuple[str, ...]
    num_orders: int
    seconds: float
    failure: str

    def __str__(self) -> str:
        ran = f"{len(self.schedules)} schedules in {self.seconds:.1f} s, {self.num_orders} happens-before orders"
        last = self.schedules[-1]
        if self.failure:
            return f"{ran}: {last} fails: {self.failure}\nrun it again with --schedule={last}"
        return f"{ran}: the same bits under all, eager to {last}"


def explore(call: Callable[[str], Outputs], seconds: float) -> Exploration:
    """Calls call(schedule) for one schedule after another, two at least, until `seconds` have passed; a progress bar
    tells how far. Stops at the first that raises a HazardError, or whose outputs differ from the first in any bit.

    call: runs something on the emulator under the schedule it is given, from the same inputs each time, and returns
    the outputs: arrays of numpy or torch.
    Raises: ArgumentError when `seconds` is not positive; what call raises besides HazardError.
    """
    if not seconds > 0:
        raise ArgumentError("seconds", seconds, "a positive number")
    from opdeck.abi import emulator_path

    library = EmulatorLibrary(emulator_path())
    ran: list[str] = []
    orders: set[int] = set()
    expected: list[npt.NDArray[Any]] = []
    failure = ""
    begin = time.monotonic()
    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=seconds)
        for schedule in _schedules():
            bar.update(task, completed=time.monotonic() - begin, description=f"{schedule}, {len(orders)} orders so far")
            ran.append(schedule)
            try:
                outputs = [np.copy(to_numpy(output)) for output in call(schedule)]
            except HazardError as error:
                failure = str(error)
                break
            orders.add(int(library.last_report().hb_fingerprint))
            expected = expected or outputs
            failure = _difference(expected, outputs)
            if failure or (len(ran) > 1 and time.monotonic() - begin >= seconds):
                break
    return Exploration(tuple(ran), len(orders - {0}), time.monotonic() - begin, failure)


def _schedules() -> Iterator[str]:
    return itertools.chain(("eager", "lazy"), (f"random:{seed}" for seed in itertools.count(1)))


def _difference(expected: Sequence[npt.NDArray[Any]], outputs: Sequence[npt.NDArray[Any]]) -> str:
    """Where the bits of two runs differ first; "" when they do not."""
    for output_idx, (want, got) in enumerate(zip(expected, outputs, strict=True)):
        if want.shape != got.shape:
            return f"output {output_idx} has shape {got.shape}, under eager {want.shape}"
        bits = [np.ascontiguousarray(array).view(f"V{array.itemsize}").reshape(-1) for array in (want, got)]
        places = np.flatnonzero(bits[0] != bits[1])
        if places.size:
            index = tuple(int(i) for i in np.unravel_index(places[0], want.shape))
            values = f"{got[index]}, under eager {want[index]}"
            return f"{places.size} elements of output {output_idx} differ, first {index}: {values}"
    return ""
