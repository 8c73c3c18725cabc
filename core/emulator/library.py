# SPDX-License-Identifier: Apache-2.0
"""library.py: libopdeck_emu.so, through cffi and its own header.

Who calls it: attach.py; opdeck.core.mutation. Sessions are those of opdeck_emu.h: one a call of a compiled function, on
the calling thread.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from opdeck.core.errors import ArgumentError, DriverError
from opdeck.core.profile import OpCounts, Profile

HEADER = Path(__file__).parent / "include" / "opdeck_emu.h"
# Of the driver's functions only what attach.py asks for.
DRIVER_FUNCTIONS = "int cuDeviceGetAttribute(int *value, int attr, int device); int cuLibraryUnload(void *library);"
DEVICES = {"sm_90a": 0, "sm_100a": 1, "sm_103a": 2}  # as opdeck_emu.h promises
# CUdevice_attribute.
MULTIPROCESSOR_COUNT, L2_CACHE_BYTES, COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR = 16, 38, 75, 76
READ_WRITE = 3


class HostTensor(NamedTuple):
    """Host memory that a launch may touch, element by element. strides: in elements."""

    name: str
    data: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    elem_bits: int


class Probe(NamedTuple):
    """What the emulator says to an opcode: see opdeck_emu_probe.

    offered: (index, modifier) that were looked for; wanted: those of which one must be there.
    """

    accepted: bool
    refusal: str
    offered: tuple[tuple[int, str], ...]
    wanted: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Schedule:
    """When asynchronous work completes: eager, lazy, or at random moments by a seed."""

    name: str
    seed: int = 0

    NAMES = ("eager", "lazy", "random")  # by number, as in opdeck_emu.h

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Raises: ArgumentError unless the text is eager, lazy or random[:SEED]."""
        name, colon, seed = text.partition(":")
        if name not in cls.NAMES or (colon and (name != "random" or not re.fullmatch(r"\d{1,19}", seed))):
            raise ArgumentError("schedule", repr(text), "eager|lazy|random[:SEED]")
        return cls(name, int(seed or 0))


class EmulatorLibrary:
    """One loaded libopdeck_emu.so. Used from any thread; begin and end pair up on one thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ffi = _ffi()
        try:
            # Global: some libraries load the DSL's runtime that way, whose functions would go before the emulator's.
            self._lib = self._ffi.dlopen(str(path), self._ffi.RTLD_NOW | self._ffi.RTLD_GLOBAL)
        except OSError as error:
            raise DriverError(f"the emulator does not load: {error}") from error
        got, want = self._lib.opdeck_emu_version(), self._lib.OPDECK_EMU_VERSION
        if got != want:
            raise DriverError(f"{path}: got an emulator of interface version {got}, want {want}")

    def register_ptx(self, cubin: bytes, ptx: str) -> None:
        """Tells which PTX a cubin was assembled from."""
        text = ptx.encode()
        self._check(self._lib.opdeck_emu_register_ptx(hashlib.sha256(cubin).hexdigest().encode(), text, len(text)))

    def replace_ptx(self, cubin_sha256: str, ptx: str) -> None:
        """Launches of the cubin's kernels run this text from now on, those of loaded packs too."""
        text = ptx.encode()
        self._check(self._lib.opdeck_emu_replace_ptx(cubin_sha256.encode(), text, len(text)))

    def set_defaults(self, *, max_warp_instructions: int = 0, profile: int = 0) -> None:
        """For sessions that leave these open, as libopdeck's do. max_warp_instructions: the most that a launch may run,
        0 for the usual limit. profile: 1 to keep counters.
        """
        options = self._ffi.new("opdeck_emu_options *")
        options.struct_size = self._ffi.sizeof("opdeck_emu_options")
        options.hazards, options.max_warp_instructions, options.profile = 1, max_warp_instructions, profile
        self._check(self._lib.opdeck_emu_set_default_options(options))

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Sessions that begin meanwhile keep counters."""
        self.set_defaults(profile=1)
        try:
            yield
        finally:
            self.set_defaults()

    def last_profile(self, arch: str) -> Profile:
        """Counters of the last session that ended in this process, whose launches were of this arch."""
        rows, num_rows = self._ffi.new("const opdeck_emu_profile_row **"), self._ffi.new("uint64_t *")
        self._check(self._lib.opdeck_emu_last_profile(rows, num_rows))
        texts = len(("kernel", "opcode", "pipe"))  # OpCounts begins with these
        counts = [
            OpCounts._make(
                self.text(getattr(row, name)) if i < texts else int(getattr(row, name))
                for i, name in enumerate(OpCounts._fields)
            )
            for row in self._ffi.unpack(rows[0], num_rows[0])
        ]
        return Profile(arch, int(self.last_report().num_ctas), counts)

    def begin(self, tensors: Sequence[HostTensor], schedule: Schedule, hazards: int, profile: int = 0) -> None:
        """Begins a session: its launches may touch these tensors. hazards: an opdeck_emu_hazards; profile: 1 to
        keep counters, 0 as the defaults say.
        """
        ffi = self._ffi
        table = ffi.new("opdeck_emu_tensor[]", max(len(tensors), 1))
        kept = []  # what the table points to
        for row, tensor in zip(table, tensors, strict=False):
            name, shape, strides = ffi.new("char[]", tensor.name.encode()), *map(self._int64s, tensor[2:4])
            kept.append((name, shape, strides))
            row.name, row.shape, row.strides = name, shape, strides
            row.data = ffi.cast("void *", tensor.data)
            row.num_dims, row.elem_bits, row.access = len(tensor.shape), tensor.elem_bits, READ_WRITE
        options = ffi.new("opdeck_emu_options *")
        options.struct_size = ffi.sizeof("opdeck_emu_options")
        options.schedule, options.seed = Schedule.NAMES.index(schedule.name), schedule.seed
        options.hazards, options.profile = hazards, profile
        self._check(self._lib.opdeck_emu_begin(table, len(tensors), options))

    def end(self) -> Any:
        """Ends the session. Returns its opdeck_emu_report."""
        report = self._ffi.new("opdeck_emu_report *")
        report.struct_size = self._ffi.sizeof("opdeck_emu_report")
        self._check(self._lib.opdeck_emu_end(report))
        return report

    def last_report(self) -> Any:
        """The opdeck_emu_report of the last session that ended in this process, libopdeck's too."""
        report = self._ffi.new("opdeck_emu_report *")
        report.struct_size = self._ffi.sizeof("opdeck_emu_report")
        self._check(self._lib.opdeck_emu_last_report(report))
        return report

    def text(self, chars: Any) -> str:
        """A C string."""
        return str(self._ffi.string(chars).decode(errors="replace"))

    def last_error(self) -> str:
        """Text of this thread's last failure, "" when its last call did not fail."""
        return self.text(self._lib.opdeck_emu_last_error())

    def device_attribute(self, attribute: int, arch: str) -> int:
        """A CUdevice_attribute of an emulated GPU."""
        value = self._ffi.new("int *")
        self._check(self._lib.cuDeviceGetAttribute(value, attribute, DEVICES[arch]))
        return int(value[0])

    def instructions(self) -> str:
        """A line an instruction: its name and its section of the manual, a tab between."""
        return self._answer(self._lib.opdeck_emu_instructions)

    def probe(self, arch: str, opcode: str) -> Probe:
        """Decodes one opcode with operands that fit everywhere."""
        verdict, *lines = self._answer(self._lib.opdeck_emu_probe, arch.encode(), opcode.encode()).splitlines()
        words = [line.split("\t") for line in lines]
        offered, wanted = (
            tuple(dict.fromkeys((int(w[0]), w[1]) for w in words if len(w) >= length)) for length in (2, 3)
        )
        return Probe(verdict == "accepted", verdict.partition("\t")[2], offered, wanted)

    def _answer(self, function: Any, *arguments: bytes) -> str:
        size = 1 << 14
        while True:
            buffer = self._ffi.new("char[]", size)
            needed = function(*arguments, buffer, size)
            if needed <= size:
                return self.text(buffer)
            size = needed

    def unload(self, library: int) -> None:
        """Frees what a compiled function loaded."""
        self._check(self._lib.cuLibraryUnload(self._ffi.cast("void *", library)))

    def _int64s(self, values: tuple[int, ...]) -> Any:
        return self._ffi.new("int64_t[]", list(values) or 1)

    def _check(self, result: int) -> None:
        if result != 0:
            raise DriverError(f"the emulator: {self.last_error() or f'error {result}'}")


@functools.cache
def _ffi() -> Any:
    import cffi

    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", HEADER.read_text(), flags=re.DOTALL)
    lines = [line for line in text.splitlines() if not line.startswith("#") or re.match(r"#define \w+ \d+$", line)]
    ffi = cffi.FFI()
    ffi.cdef("\n".join(lines) + DRIVER_FUNCTIONS)
    return ffi
