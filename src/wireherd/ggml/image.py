"""Where the code and data of a loaded library lie, so that a pointer can be told from a number.

Each system has its own way: /proc/self/maps on Linux, dladdr and getsegmentdata on macOS, VirtualQuery on Windows.
Only the Linux way has been run.
"""

from __future__ import annotations

import bisect
import ctypes
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Range(NamedTuple):
    start: int
    end: int
    code: bool


class Image:
    """The address ranges of one or more loaded library files."""

    def __init__(self, ranges: Sequence[_Range]) -> None:
        self._ranges = sorted(ranges)
        self._starts = [entry.start for entry in self._ranges]

    def _find(self, address: int) -> _Range | None:
        index = bisect.bisect_right(self._starts, address) - 1
        if index >= 0 and address < self._ranges[index].end:
            return self._ranges[index]
        return None

    def contains(self, address: int) -> bool:
        """Whether the address lies in the library, code or data."""
        return self._find(address) is not None

    def is_code(self, address: int) -> bool:
        """Whether the address lies in the library's executable part."""
        entry = self._find(address)
        return entry is not None and entry.code


def image_of(paths: Sequence[Path], anchors: Sequence[int]) -> Image:
    """Ranges of the libraries at `paths`; `anchors` are addresses of functions, at least one in each of them."""
    system: str = sys.platform  # a plain str, or the type checker takes all branches but its own for dead
    if system == "linux":
        return Image(_from_proc(paths))
    if system == "darwin":
        return Image([entry for anchor in anchors for entry in _from_dladdr(anchor)])
    return Image([entry for anchor in anchors for entry in _from_virtual_query(anchor)])


def _from_proc(paths: Sequence[Path]) -> list[_Range]:
    """Lines of /proc/self/maps (proc(5)): range, permissions, offset, device, inode, path."""
    files = {(stat.st_dev, stat.st_ino) for stat in (path.stat() for path in paths)}
    found = []
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) < 6 or not fields[5].startswith("/"):
            continue
        major, minor = (int(part, 16) for part in fields[3].split(":"))
        name = fields[5].removesuffix(" (deleted)")
        # some file systems show another device number here than stat does: then the path decides
        same = ((major << 8) | minor, int(fields[4])) in files or Path(name) in paths
        if same:
            start, end = (int(part, 16) for part in fields[0].split("-"))
            found.append(_Range(start, end, "x" in fields[1]))
    return found


class _DlInfo(ctypes.Structure):
    _fields_ = (
        ("fname", ctypes.c_char_p),
        ("fbase", ctypes.c_void_p),
        ("sname", ctypes.c_char_p),
        ("saddr", ctypes.c_void_p),
    )


def _from_dladdr(anchor: int) -> list[_Range]:
    """MacOS: the segments of the Mach-O image that holds `anchor` (dladdr(3), getsegmentdata(3))."""
    system = ctypes.CDLL(None)
    info = _DlInfo()
    if not system.dladdr(ctypes.c_void_p(anchor), ctypes.byref(info)) or not info.fbase:
        return []
    segment = system.getsegmentdata
    segment.restype = ctypes.c_void_p
    segment.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_ulong)]
    found = []
    for name in (b"__TEXT", b"__DATA_CONST", b"__DATA"):
        size = ctypes.c_ulong()
        start = segment(info.fbase, name, ctypes.byref(size))
        if start:
            found.append(_Range(start, start + size.value, name == b"__TEXT"))
    return found


class _MemoryInfo(ctypes.Structure):
    """`MEMORY_BASIC_INFORMATION` of a 64-bit process."""

    _fields_ = (
        ("base", ctypes.c_size_t),
        ("allocation", ctypes.c_size_t),
        ("allocation_protect", ctypes.c_uint32),
        ("partition", ctypes.c_uint32),
        ("size", ctypes.c_size_t),
        ("state", ctypes.c_uint32),
        ("protect", ctypes.c_uint32),
        ("type", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
    )


def _from_virtual_query(anchor: int) -> list[_Range]:
    """Windows: the regions of the module that holds `anchor`; all of a module has one allocation base."""
    kernel: Any = getattr(ctypes, "WinDLL")("kernel32")  # noqa: B009  the name exists on Windows only
    kernel.VirtualQuery.argtypes = [ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t]
    kernel.VirtualQuery.restype = ctypes.c_size_t
    info = _MemoryInfo()
    size = ctypes.sizeof(info)
    if not kernel.VirtualQuery(anchor, ctypes.byref(info), size):
        return []
    module = info.allocation
    found = []
    position = module
    while kernel.VirtualQuery(position, ctypes.byref(info), size) and info.allocation == module:
        found.append(_Range(info.base, info.base + info.size, bool(info.protect & 0xF0)))
        position = info.base + info.size
    return found
