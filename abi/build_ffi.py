# SPDX-License-Identifier: Apache-2.0
"""Writes the cffi module (out-of-line, ABI mode) of the public headers; CMake runs it when pip builds.

python build_ffi.py OUTPUT.py HEADER...
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import cffi

# cffi takes declarations and plain `#define NAME NUMBER`, no other directive and no linkage specification.
_CPLUSPLUS = re.compile(r"^#ifdef __cplusplus$.*?^#endif$", re.MULTILINE | re.DOTALL)
_CONSTANT = re.compile(r"#define \w+ \d+\s*$")


def declarations(header: str) -> str:
    """The text of a C header in the form that cffi parses."""
    lines = _CPLUSPLUS.sub("", header).splitlines()
    return "\n".join(line for line in lines if not line.startswith("#") or _CONSTANT.match(line))


def main() -> None:
    output, *headers = (Path(arg) for arg in sys.argv[1:])
    ffi = cffi.FFI()
    for header in headers:
        ffi.cdef(declarations(header.read_text(encoding="utf-8")))
    ffi.set_source(output.stem, None)
    ffi.emit_python_code(str(output))


if __name__ == "__main__":
    main()
