"""The frames of a link: how a byte-stream device, which has no connections, carries some.

Every frame has a header with a check of its own, and its payload has another. So whoever comes late, finds bytes of a
dead predecessor or noise, skips to the next frame that is one. All numbers are little-endian:

    magic 4s | kind u8 | zero u8 | channel u16 | epoch u32 | size u32 | CRC-32 of the payload u32 | CRC-32 of these u32

A client opens a link with `FILLER` (it completes whatever frame was cut off on the way), then HELLO with a nonce, again
and again until the other end answers WELCOME with that nonce and a fresh epoch. Later frames carry the epoch; those of
another one are stale and ignored. Within a link, connections are channels: OPEN, DATA, END (this side sends no more),
RESET (the channel is gone). DATA is bounded by credit: at first a window, then what CREDIT gives back. BEAT says that
an idle end lives, BYE ends the link.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from typing import Final, NamedTuple

MAGIC: Final = b"\xa7wHl"
HEADER: Final = struct.Struct("<4sBxHIIII")
_CHECKED: Final = HEADER.size - 4
#: a frame's payload; small, so that a sign of life waits for one at most, and a cut one is soon filled up
MAX_PAYLOAD: Final = 16 << 10
FILLER: Final = bytes(MAX_PAYLOAD + HEADER.size)
#: version u32, window u32, nonce: the payload of HELLO and of WELCOME
GREETING: Final = struct.Struct("<II16s")
CREDIT: Final = struct.Struct("<I")
VERSION: Final = 1


class Kind(IntEnum):
    """What a frame is."""

    HELLO = 1
    WELCOME = 2
    OPEN = 3
    DATA = 4
    CREDIT = 5
    END = 6
    RESET = 7
    BEAT = 8
    BYE = 9


_SIZES: Final = {Kind.HELLO: GREETING.size, Kind.WELCOME: GREETING.size, Kind.CREDIT: CREDIT.size}


class Frame(NamedTuple):
    """One frame, checked."""

    kind: Kind
    channel: int
    epoch: int
    payload: bytes


def encode(kind: Kind, epoch: int, channel: int = 0, payload: bytes = b"") -> bytes:
    """A frame's bytes."""
    fields = (MAGIC, kind, channel, epoch, len(payload), zlib.crc32(payload))
    checked = HEADER.pack(*fields, 0)[:_CHECKED]
    return b"".join((checked, zlib.crc32(checked).to_bytes(4, "little"), payload))


class Scanner:
    """Finds the frames in a stream of bytes, whatever stands between them.

    Attributes:
        skipped: bytes so far that were no frame.
    """

    def __init__(self) -> None:
        self._data = bytearray()
        self.skipped = 0

    def feed(self, data: bytes) -> list[Frame]:
        """Take bytes and return the frames that they complete. Time and memory are linear in what is fed."""
        self._data += data
        found: list[Frame] = []
        position = 0
        while (end := self._next(found, position)) is not None:
            position = end
        del self._data[:position]
        return found

    def _next(self, found: list[Frame], start: int) -> int | None:
        """Where to go on behind `start`; None if more bytes are needed first."""
        data = self._data
        if len(data) - start < HEADER.size:
            return self._skip(start) if not MAGIC.startswith(data[start : start + len(MAGIC)]) else None
        magic, kind, channel, epoch, size, check, header_check = HEADER.unpack_from(data, start)
        if magic != MAGIC or zlib.crc32(data[start : start + _CHECKED]) != header_check or not _sound(kind, size):
            return self._skip(start)
        end = start + HEADER.size + int(size)
        if len(data) < end:
            return None
        payload = bytes(data[start + HEADER.size : end])
        if zlib.crc32(payload) == check:
            found.append(Frame(Kind(kind), channel, epoch, payload))
        else:
            self.skipped += end - start
        return end

    def _skip(self, start: int) -> int | None:
        """Position of the next thing that may be a frame; what is left may be the first bytes of one."""
        data = self._data
        if start >= len(data):
            return None
        position = data.find(MAGIC, start + 1)
        if position < 0:
            position = max(start + 1, len(data) - len(MAGIC) + 1)
        self.skipped += position - start
        return position


def _sound(kind: int, size: int) -> bool:
    if kind not in Kind._value2member_map_:
        return False
    return 0 < size <= MAX_PAYLOAD if kind == Kind.DATA else size == _SIZES.get(Kind(kind), 0)
