# SPDX-License-Identifier: Apache-2.0
"""cubin.py: reads what ptxas says of its kernels out of a cubin: registers, threads, stack frame.

Who calls it: compile.py, which keeps no kernel that spills.
Source: a cubin is ELF64 (System V ABI, little endian). Section .nv.info has records (format u8, attribute u8, then by
format a u16 value or a u16 size and that many bytes), as `cuobjdump -elf` prints them: EIATTR_REGCOUNT and
EIATTR_FRAME_SIZE as pairs (symbol index, value); .nv.info.KERNEL has EIATTR_REQNTID or _MAX_THREADS as three extents.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from opdeck.core.errors import PackError

_EIATTR_MAX_THREADS = 0x05
_EIATTR_REQNTID = 0x10
_EIATTR_FRAME_SIZE = 0x11
_EIATTR_REGCOUNT = 0x2F
_FORMAT_SIZED_BYTES = 0x04

_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SHT_SYMTAB = 2


@dataclass(frozen=True)
class KernelResources:
    """What one kernel of a cubin needs. num_registers is a thread's at launch, before any setmaxnreg."""

    name: str
    num_registers: int
    num_threads: int
    frame_bytes: int


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    content: bytes


def kernel_resources(cubin: bytes) -> tuple[KernelResources, ...]:
    """The kernels of a cubin, by name. Raises: PackError when it is not a cubin or has none."""
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise PackError(f"cubin: got {cubin[:6]!r} at its beginning, want a little-endian ELF64 file")
    try:
        sections = {section.name: section for section in _sections(cubin)}
        symbols = _symbol_names(sections)
        registers = _values_by_symbol(sections[".nv.info"].content, _EIATTR_REGCOUNT)
        frames = _values_by_symbol(sections[".nv.info"].content, _EIATTR_FRAME_SIZE)
        names = {idx: symbols[idx] for idx in registers}
        kernels = [
            KernelResources(name, registers[idx], _num_threads(sections[f".nv.info.{name}"].content), frames[idx])
            for idx, name in names.items()
            if f".nv.info.{name}" in sections
        ]
    except (KeyError, IndexError, struct.error) as error:
        raise PackError(f"cubin: cannot read its .nv.info ({error!r})") from error
    if not kernels:
        raise PackError("cubin: got no kernel, want one or more")
    return tuple(sorted(kernels, key=lambda kernel: kernel.name))


def _sections(elf: bytes) -> Iterator[_Section]:
    (table_offset,) = struct.unpack_from("<Q", elf, 0x28)
    num_sections, names_idx = struct.unpack_from("<HH", elf, 0x3C)
    headers = [_SECTION_HEADER.unpack_from(elf, table_offset + _SECTION_HEADER.size * i) for i in range(num_sections)]
    names = elf[headers[names_idx][4] :]
    for name_offset, kind, _, _, offset, size, *_ in headers:
        yield _Section(_c_string(names, name_offset), kind, elf[offset : offset + size])


def _c_string(text: bytes, offset: int) -> str:
    return text[offset : text.index(b"\0", offset)].decode()


def _symbol_names(sections: dict[str, _Section]) -> list[str]:
    strings = sections[".strtab"].content
    table = next(section.content for section in sections.values() if section.kind == _SHT_SYMTAB)
    return [_c_string(strings, name_offset) for name_offset, *_ in _SYMBOL.iter_unpack(table)]


def _records(info: bytes) -> Iterator[tuple[int, bytes]]:
    """(attribute, bytes) of each record."""
    offset = 0
    while offset < len(info):
        form, attribute, value = struct.unpack_from("<BBH", info, offset)
        offset += 4
        if form == _FORMAT_SIZED_BYTES:
            yield attribute, info[offset : offset + value]
            offset += value
        else:
            yield attribute, info[offset - 2 : offset]


def _values_by_symbol(info: bytes, wanted: int) -> dict[int, int]:
    return {
        symbol: value
        for attribute, content in _records(info)
        if attribute == wanted
        for symbol, value in [struct.unpack("<II", content)]
    }


def _num_threads(info: bytes) -> int:
    for attribute, content in _records(info):
        if attribute in (_EIATTR_REQNTID, _EIATTR_MAX_THREADS):
            x, y, z = struct.unpack("<III", content)
            return int(x * y * z)
    raise KeyError("threads of a block")
