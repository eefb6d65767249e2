"""Make ELF libraries built against glibc 2.38 loadable on older systems, without a compiler.

Compilers of that age redirect strtol and its kin to __isoc23_strtol@GLIBC_2.38. The undefined symbol
"__isoc23_strtol" is renamed to its own tail "strtol" (its name offset moves by nine) and bound to GLIBC_2.2.5; the
record that demands GLIBC_2.38 is rewritten to demand GLIBC_2.2.5. Undefined symbols stand in no hash table, so nothing
else changes. Layouts: elf(5), Elf64_Shdr, Elf64_Sym, Elf64_Verneed and Elf64_Vernaux.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PREFIX = b"__isoc23_"
TOO_NEW = b"GLIBC_2.38"
BASE = b"GLIBC_2.2.5"


class Section(NamedTuple):
    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


class Need(NamedTuple):
    """One version that the library demands of another: where its record stands, and what it says."""

    library: bytes
    at: int
    hash: int
    index: int
    name_offset: int
    name: bytes


class Elf:
    """A 64-bit little-endian ELF file in memory."""

    def __init__(self, data: bytearray) -> None:
        self.data = data
        (table,) = struct.unpack_from("<Q", data, 0x28)
        size, count, names = struct.unpack_from("<HHH", data, 0x3A)
        sections = [Section(*struct.unpack_from("<IIQQQQIIQQ", data, table + size * i)) for i in range(count)]
        self.sections = {self.text(sections[names].offset + each.name): each for each in sections}

    def text(self, at: int) -> bytes:
        return bytes(self.data[at : self.data.index(0, at)])

    def dynamic_text(self, offset: int) -> bytes:
        return self.text(self.sections[b".dynstr"].offset + offset)

    def needs(self) -> Iterator[Need]:
        at = self.sections[b".gnu.version_r"].offset
        while True:
            _, count, library, first, following = struct.unpack_from("<HHIII", self.data, at)
            record = at + first
            for _ in range(count):
                digest, _, index, name, step = struct.unpack_from("<IHHII", self.data, record)
                yield Need(self.dynamic_text(library), record, digest, index, name, self.dynamic_text(name))
                record += step
            if not following:
                return
            at += following


def fix(path: Path) -> int:
    """Mend a library in place; returns how many symbols were rebound."""
    elf = Elf(bytearray(path.read_bytes()))
    needs = list(elf.needs())
    new = [need for need in needs if need.name == TOO_NEW]
    if not new:
        return 0
    base = next(need for need in needs if need.name == BASE and need.library == b"libc.so.6")
    for need in new:
        struct.pack_into("<I", elf.data, need.at, base.hash)
        struct.pack_into("<I", elf.data, need.at + 8, base.name_offset)
    indices = {need.index for need in new}
    symbols, versions = elf.sections[b".dynsym"], elf.sections[b".gnu.version"]
    rebound = 0
    for number in range(symbols.size // 24):
        symbol, version = symbols.offset + 24 * number, versions.offset + 2 * number
        (name,) = struct.unpack_from("<I", elf.data, symbol)
        (index,) = struct.unpack_from("<H", elf.data, version)
        if index not in indices:
            continue
        if not elf.dynamic_text(name).startswith(PREFIX):
            raise ValueError(f"{path} needs {elf.dynamic_text(name)!r} of {TOO_NEW!r}, which has no older form")
        struct.pack_into("<I", elf.data, symbol, name + len(PREFIX))
        struct.pack_into("<H", elf.data, version, base.index)
        rebound += 1
    path.write_bytes(elf.data)
    return rebound
