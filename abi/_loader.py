# SPDX-License-Identifier: Apache-2.0
"""Where the native parts of opdeck are installed, and the C library through cffi.

Called by opdeck.core (launches, the emulator's path) and opdeck.aot (what packs are linked from). Nothing is opened at
import. In an editable install the libraries lie in site-packages and the sources in the checkout, so files are looked
for in every folder of this package's path.
"""

from __future__ import annotations

import functools
import importlib
import os
from pathlib import Path
from typing import Any

SHIM_FILES = ("src/shim.c", "src/pack.h", "src/driver_api.h", "include/opdeck_rules.h")


class NativeLibraryMissing(RuntimeError):
    """A native file of opdeck is not where the installation should have put it."""


def _find(relative: str) -> Path:
    package = importlib.import_module(__package__)
    folders = [Path(folder) for folder in package.__path__]
    for folder in folders:
        if (folder / relative).is_file():
            return (folder / relative).resolve()
    looked_in = ", ".join(str(folder) for folder in folders)
    raise NativeLibraryMissing(
        f"opdeck/abi/{relative} is missing (looked in {looked_in}); `pip install .` in the sources builds it"
    )


def library_path() -> Path:
    """libopdeck.so."""
    return _find("lib/libopdeck.so")


def emulator_path() -> Path:
    """libopdeck_emu.so: the one that OPDECK_EMULATOR_LIB names, else the installed one."""
    named = os.environ.get("OPDECK_EMULATOR_LIB")
    return Path(named) if named else _find("lib/libopdeck_emu.so")


def include_dir() -> Path:
    """Folder of opdeck.h."""
    return _find("include/opdeck.h").parent


def shim_sources() -> tuple[Path, ...]:
    """What a pack is linked from besides its tables and kernels: shim.c, and the headers that those include."""
    return tuple(_find(relative) for relative in SHIM_FILES)


@functools.cache
def lib() -> tuple[Any, Any]:
    """(ffi, lib): cffi's types of opdeck.h and opdeck_rules.h, and libopdeck.so opened with them."""
    ffi = importlib.import_module("opdeck.abi._opdeck_cffi").ffi
    return ffi, ffi.dlopen(str(library_path()))
