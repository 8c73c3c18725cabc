# SPDX-License-Identifier: Apache-2.0
"""The C library of opdeck: its location, its headers, and its functions through cffi."""

from opdeck.abi._loader import (
    NativeLibraryMissing,
    emulator_path,
    include_dir,
    lib,
    library_path,
    shim_sources,
)

__all__ = ["NativeLibraryMissing", "emulator_path", "include_dir", "lib", "library_path", "shim_sources"]
