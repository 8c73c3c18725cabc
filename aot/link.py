# SPDX-License-Identifier: Apache-2.0
"""link.py: objects + tables + shim -> NAME.opdeck.so.

Who calls it: builder.py. The result exports opdeck_pack_v1 alone and needs only libc. The same inputs give the same
bytes: the compiler runs in the folder of its inputs, so no path gets in, and there is no build id.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import opdeck.abi
from opdeck.aot import toolchain
from opdeck.core.errors import PackError

_VERSION_SCRIPT = "{ global: opdeck_pack_v1; local: *; };\n"
_FLAGS = (
    *("-std=gnu11", "-O2", "-Wall", "-Wextra", "-fPIC", "-fvisibility=hidden", "-shared", "-s", "-I."),
    *("-Wl,--no-undefined", "-Wl,--build-id=none", "-Wl,--version-script=exports.map", "-Wl,-z,relro,-z,now"),
)


def link_inputs() -> list[bytes]:
    """What a pack depends on besides its tables and objects: shim, flags, compiler."""
    command = [*toolchain.c_compiler(), "--version"]
    version = subprocess.run(command, capture_output=True, check=False).stdout
    return [version, " ".join(_FLAGS).encode(), *(Path(path).read_bytes() for path in opdeck.abi.shim_sources())]


def link_pack(source: str, object_names: Sequence[str], work_dir: Path) -> Path:
    """Links the pack of the objects named, which lie in work_dir with the PTX files that `source` includes.

    Raises: PackError with the compiler's words when it fails, or without a C compiler.
    """
    (work_dir / "pack.c").write_text(source)
    (work_dir / "exports.map").write_text(_VERSION_SCRIPT)
    shim_names = _copy_shim(work_dir)
    output = work_dir / "pack.so"
    command = [*toolchain.c_compiler(), *_FLAGS, "-o", output.name, "pack.c", *shim_names, *object_names]
    result = subprocess.run(command, cwd=work_dir, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise PackError(f"linking a pack failed ({' '.join(command)}):\n{result.stderr.strip()}")
    return output


def _copy_shim(work_dir: Path) -> list[str]:
    """Copies the shim and its headers beside the tables; names of the sources among them."""
    paths = [Path(path) for path in opdeck.abi.shim_sources()]
    for path in paths:
        shutil.copyfile(path, work_dir / path.name)
    return [path.name for path in paths if path.suffix == ".c"]
