# SPDX-License-Identifier: Apache-2.0
"""attach.py: the emulator under CuTe DSL's JIT, so that an unmodified kernel runs on a machine without a GPU.

Who calls it: users, before they import cutlass; __main__.py; tests.
How: libopdeck_emu.so stands before the DSL's runtime in CUTE_DSL_LIBS, so host code that the DSL compiles finds its
launch functions there; PTX is kept, and handed over by the cubin's SHA-256 before the cubin is loaded; each call of a
compiled function is a session of the emulator with the memory of its arguments. Tensors are CPU arrays through
cute.runtime.from_dlpack; torch tensors go as they are.
Limits: CuTe DSL 4.8; one architecture a process. Extents behind a raw pointer are known for torch tensors and for
runtime tensors that are alive; Attachment.expose tells others.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import importlib.util
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from opdeck.core.arch import GPU_ARCHS
from opdeck.core.devices.base import LaunchReport
from opdeck.core.emulator import tvm_ffi_calls
from opdeck.core.emulator.arguments import ArgumentMemory, tensor_memory
from opdeck.core.emulator.explore import Exploration, Outputs, explore
from opdeck.core.emulator.library import (
    L2_CACHE_BYTES,
    MULTIPROCESSOR_COUNT,
    EmulatorLibrary,
    HostTensor,
    Schedule,
)
from opdeck.core.errors import ArgumentError, DriverError, HazardError
from opdeck.core.profile import Profile

HAZARDS = {"off": 0, "on": 1, "strict": 2}


@dataclass(frozen=True)
class CallReport(LaunchReport):
    """What the emulator counted in one call of a compiled function, summed over its launches.

    kernel_name, cubin_sha256: of the last launch. hazard: what stopped the call, "" when nothing did. seconds: of this
    machine, for the call. profile: its counters by warp role, where Attachment.counting asked for them.
    """

    kernel_name: str
    num_launches: int
    hazard: str
    seconds: float
    profile: Profile | None = None

    def __str__(self) -> str:
        counts = f"{self.num_ctas} CTAs, {self.warp_instructions} warp-instructions, {self.mma_macs} MACs"
        return f"{self.kernel_name}: {counts}, {self.seconds:.3f} s, {self.hazard or 'no hazard'}"


class Attachment:
    """The emulator under the DSL of this process.

    schedule: "eager", "lazy" or "random[:SEED]", hazards: "on", "off" or "strict", of the calls to come. reports: one a
    call that launched, oldest first. on_report: called with each.
    counting: whether the calls to come keep counters.
    """

    def __init__(self, arch: str, library: EmulatorLibrary) -> None:
        self.arch = arch
        self.library = library
        self.reports: list[CallReport] = []
        self.on_report: Callable[[CallReport], object] = lambda report: None
        self.schedule = "eager"
        self.hazards = "on"
        self.counting = False
        self.arguments = ArgumentMemory()
        self._exposed: list[tuple[HostTensor, Any]] = []

    @property
    def schedule(self) -> str:
        return self._schedule_text

    @schedule.setter
    def schedule(self, text: str) -> None:
        self._schedule = Schedule.parse(text)
        self._schedule_text = text

    @property
    def hazards(self) -> str:
        return self._hazards

    @hazards.setter
    def hazards(self, text: str) -> None:
        if text not in HAZARDS:
            raise ArgumentError("hazards", repr(text), "|".join(HAZARDS))
        self._hazards = text

    @property
    def last_report(self) -> CallReport:
        """Raises: DriverError when nothing was launched yet."""
        if not self.reports:
            raise DriverError("last_report: no kernel was launched yet")
        return self.reports[-1]

    @property
    def profile(self) -> Profile:
        """Counters of the last call.

        Raises: DriverError when there was none, or it kept none.
        """
        profile = self.last_report.profile
        if profile is None:
            raise DriverError("profile: the last call kept no counters; set Attachment.counting before it")
        return profile

    def expose(self, array: Any, name: str) -> None:
        """Lets all later calls touch an array that they know only by address. It is kept alive from here on."""
        tensor = importlib.import_module("cutlass.cute.runtime").from_dlpack(array)
        self._exposed.append((tensor_memory(tensor, name), tensor))

    def explore(self, call: Callable[[], Outputs], seconds: float) -> Exploration:
        """opdeck.core.emulator.explore, with this schedule set before each call, and as it was at the end."""

        def call_under(schedule: str) -> Outputs:
            self.schedule = schedule
            return call()

        schedule_before = self.schedule
        try:
            return explore(call_under, seconds)
        finally:
            self.schedule = schedule_before

    def install(self) -> None:
        """Puts the emulator under the DSL, which this imports."""
        executor = importlib.import_module("cutlass.base_dsl.jit_executor")
        compiled_type = importlib.import_module("cutlass.cutlass_dsl.cuda_jit_executor").CudaDialectJitCompiledFunction
        runtime = importlib.import_module("cutlass.cute.runtime")
        self.arguments.install(runtime._Tensor, (runtime._Pointer, executor._RuntimePointerArg))
        compiled_type._load_cuda_library = self._loading(compiled_type._load_cuda_library)
        executor.JitExecutor.run_compiled_program = self._running(executor.JitExecutor.run_compiled_program)
        self._replace_queries()
        if importlib.util.find_spec("tvm_ffi") is not None:
            tvm_ffi_calls.install(self)

    def register(self, compiled: Any) -> None:
        """Tells the emulator the PTX of a compiled function, before that loads its cubin."""
        if compiled.__cubin__ is None or compiled.__ptx__ is None:
            raise DriverError(f"{compiled.function_name}: the DSL kept no PTX (CUTE_DSL_KEEP)")
        self.library.register_ptx(compiled.__cubin__, compiled.__ptx__)

    def _loading(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def load(compiled: Any) -> Any:
            self.register(compiled)
            try:
                return original(compiled)
            except Exception as error:
                raise self._named(error, ()) from error

        return load

    def _running(self, original: Callable[[Any, Sequence[Any]], Any]) -> Callable[[Any, Sequence[Any]], Any]:
        @functools.wraps(original)
        def run(executor: Any, descriptors: Sequence[Any]) -> Any:
            names = executor.jit_module.execution_args.signature.parameters
            memory, unknown = self.arguments.of_call(descriptors, tuple(names))
            with self.session(memory, unknown):
                return original(executor, descriptors)

        return run

    @contextlib.contextmanager
    def session(self, memory: Sequence[HostTensor], unknown: Sequence[int] = ()) -> Iterator[None]:
        """One call of a compiled function that may touch this memory. unknown: its pointers to other memory.

        Raises: HazardError, in place of the DSL's own, for what the emulator stopped.
        """
        exposed = [tensor for tensor, _ in self._exposed]
        self.library.begin([*memory, *exposed], self._schedule, HAZARDS[self._hazards], int(self.counting))
        start = time.perf_counter()
        failure = ""
        try:
            yield
        except Exception as error:
            named = self._named(error, unknown)
            failure = str(named)
            raise named from error.__cause__ if named is error else error
        finally:
            self._report(failure, time.perf_counter() - start)

    def _report(self, hazard: str, seconds: float) -> None:
        counted = self.library.end()
        if counted.num_launches == 0 and not hazard:
            return  # host code alone
        report = CallReport(
            cubin_sha256=self.library.text(counted.cubin_sha256),
            num_ctas=counted.num_ctas,
            warp_instructions=counted.warp_instructions,
            mma_macs=counted.mma_macs,
            tma_load_bytes=counted.tma_load_bytes,
            tma_store_bytes=counted.tma_store_bytes,
            kernel_name=self.library.text(counted.kernel_name),
            num_launches=counted.num_launches,
            hazard=hazard,
            seconds=seconds,
            profile=self.library.last_profile(self.arch) if self.counting else None,
        )
        self.reports.append(report)
        self.on_report(report)

    def _named(self, error: Exception, unknown: Sequence[int]) -> Exception:
        """The emulator's own words, where it has any: the DSL only knows a number. unknown: pointers of the call."""
        text = self.library.last_error()
        if not text:
            return error
        if unknown and "inside no registered tensor" in text:
            addresses = ", ".join(map(hex, unknown))
            text += f"; nothing is known of what {addresses} points to: Attachment.expose(array, name) tells"
        return HazardError(text)

    def _replace_queries(self) -> None:
        """Questions about the GPU that the DSL asks CUDA itself, which is not here."""
        cuda_runtime: Any = importlib.import_module("cuda.bindings.runtime")
        success = cuda_runtime.cudaError_t.cudaSuccess
        cuda_runtime.cudaGetDeviceCount = lambda: (success, 1)
        cuda_runtime.cudaLibraryUnload = lambda library: self.library.unload(int(library))
        num_sms = self.library.device_attribute(MULTIPROCESSOR_COUNT, self.arch)
        l2_bytes = self.library.device_attribute(L2_CACHE_BYTES, self.arch)
        hardware = importlib.import_module("cutlass.utils.hardware_info").HardwareInfo
        hardware.__init__ = lambda info, device_id=0: None
        hardware.get_max_active_clusters = lambda info, cluster_size, stream=None: num_sms // cluster_size
        hardware.get_l2_cache_size_in_bytes = lambda info: l2_bytes
        hardware.get_device_multiprocessor_count = lambda info: num_sms


_attachment: Attachment | None = None


def attached() -> Attachment | None:
    """What attach() returned in this process, if it was called."""
    return _attachment


def attach(arch: str = "sm_100a", *, schedule: str | None = None, hazards: str | None = None) -> Attachment:
    """Puts the emulator under CuTe DSL, for the rest of the process. Call it before `import cutlass`.

    arch: "sm_90a", "sm_100a" or "sm_103a"; kernels are compiled for it and run on that emulated GPU.
    schedule: "eager", "lazy" or "random[:SEED]"; None takes OPDECK_SCHEDULE, else eager.
    hazards: "on", "off" or "strict"; None takes OPDECK_HAZARDS, else on.
    Raises: ArgumentError naming the argument; DriverError when cutlass was imported or attach called before, or when
    there is no libopdeck_emu.so.
    """
    global _attachment
    known = [row.name for row in GPU_ARCHS]
    if arch not in known:
        raise ArgumentError("arch", repr(arch), "|".join(known))
    if _attachment is not None:
        raise DriverError("attach: the emulator is attached already; a process has one")
    if "cutlass" in sys.modules:
        raise DriverError("attach: cutlass was imported before; it finds its launch functions when it is imported")
    from opdeck.abi import emulator_path

    attachment = Attachment(arch, EmulatorLibrary(emulator_path()))
    attachment.schedule = schedule or os.environ.get("OPDECK_SCHEDULE") or "eager"
    attachment.hazards = hazards or os.environ.get("OPDECK_HAZARDS") or "on"
    _set_environment(attachment)
    warnings.filterwarnings("ignore", "Cache is disabled", UserWarning)  # of the DSL, where PTX is kept
    attachment.install()
    _attachment = attachment
    return attachment


def _set_environment(attachment: Attachment) -> None:
    """What the DSL reads when it is imported."""
    from opdeck.aot.toolchain import dsl_runtime_path

    os.environ["CUTE_DSL_ARCH"] = attachment.arch
    os.environ.setdefault("CUTE_DSL_LINEINFO", "1")  # reports name lines of the kernel's source
    os.environ["CUTE_DSL_LIBS"] = os.pathsep.join((str(attachment.library.path), str(dsl_runtime_path())))
    kept = filter(None, os.environ.get("CUTE_DSL_KEEP", "").split(","))
    os.environ["CUTE_DSL_KEEP"] = ",".join(sorted({*kept, "ptx", "cubin"}))
    if "CUTE_DSL_DUMP_DIR" not in os.environ:
        folder = tempfile.mkdtemp(prefix="opdeck-emulator-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ["CUTE_DSL_DUMP_DIR"] = folder
