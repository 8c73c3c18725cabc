# SPDX-License-Identifier: Apache-2.0
"""toolchain.py: the tools that a build needs, where they are, and the options that it gives them.

Who calls it: compile.py, link.py, cache.py. Nothing here imports the DSL: its version comes from package metadata.
Limits: Linux on x86-64 and AArch64; the DSL's CUDA 13 flavour.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import shlex
import shutil
from pathlib import Path

from opdeck.core.errors import PackError

DSL_DISTRIBUTION = "nvidia-cutlass-dsl"
DSL_FLAVOUR = "cu13"

# Baseline processors, so that a pack does not depend on the machine that built it.
_HOST_TARGETS = {
    "x86_64": ("x86_64-unknown-linux-gnu", "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64"),
    "aarch64": ("aarch64-unknown-linux-gnu", "linux-aarch64"),
}


def dsl_version() -> str:
    """Version of the installed CuTe DSL. Raises: PackError when there is none."""
    try:
        return importlib.metadata.version(DSL_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise PackError(
            f"compiling a kernel needs {DSL_DISTRIBUTION}, which is not installed: pip install 'opdeck[jit]'"
        ) from None


def host_triple() -> str:
    """Triple of the host code in a pack, as the manifest and libopdeck spell it."""
    return _host_target()[0]


def _host_target() -> tuple[str, str]:
    machine = platform.machine()
    if machine not in _HOST_TARGETS:
        raise PackError(f"host processor: got {machine}, want {' or '.join(_HOST_TARGETS)}")
    return _HOST_TARGETS[machine]


def compile_options(arch: str, dump_dir: str) -> str:
    """Options of cute.compile. Without the three dump options the DSL drops cubin and PTX.

    No line information: it would write paths of this machine into cubin and PTX.
    """
    host = _host_target()[1]
    return f"--gpu-arch={arch} --keep-cubin --keep-ptx --dump-dir={shlex.quote(dump_dir)} --host-target '{host}'"


@functools.cache
def is_complete() -> bool:
    """Whether kernels can be compiled and linked here."""
    try:
        return bool(dsl_version() and c_compiler())
    except PackError:
        return False


def load_dsl() -> None:
    """Imports the DSL so that it can export for any arch on any machine; call it before the first compile of a process.

    Without the runtime's symbols in the global namespace an export for an arch other than the machine's own fails
    ("Failed to dump object file with PIC relocation"). The DSL picks its CUDA flavour by the machine's driver: packs
    are built with one flavour only, so that they do not depend on it.
    """
    dsl_version()
    runtime = dsl_runtime_path()
    ctypes.CDLL(str(runtime), mode=ctypes.RTLD_GLOBAL)
    compiler = Path(importlib.import_module("cutlass._mlir._mlir_libs._cutlass_ir").__file__ or "")
    if f".{DSL_FLAVOUR}." not in compiler.name:
        raise PackError(
            f"flavour of {DSL_DISTRIBUTION}: got {compiler.name}, want {DSL_FLAVOUR} (CUDA driver 580 or none)"
        )


def dsl_runtime_path() -> Path:
    """libcute_dsl_runtime.so of the flavour that is used here. Raises: PackError when it is not installed."""
    spec = importlib.util.find_spec("nvidia_cutlass_dsl")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(folder) / DSL_FLAVOUR / "lib" / "libcute_dsl_runtime.so"
        if path.exists():
            return path
    raise PackError(f"{DSL_DISTRIBUTION} has no {DSL_FLAVOUR} flavour installed: pip install 'opdeck[jit]'")


def c_compiler() -> list[str]:
    """Command of the C compiler that links packs: OPDECK_CC, CC, cc, gcc, clang. Raises: PackError without one."""
    for variable in ("OPDECK_CC", "CC"):
        text = os.environ.get(variable, "")
        try:
            command = shlex.split(text)
        except ValueError as error:
            raise PackError(f"{variable}: got {text!r}, want the command of a C compiler ({error})") from None
        if command:
            if shutil.which(command[0]) is None:
                raise PackError(f"{variable}: got {command[0]!r}, want the command of a C compiler")
            return command
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name) is not None:
            return [name]
    raise PackError("linking a pack needs a C compiler: found no cc, gcc or clang; set OPDECK_CC to one")
