"""Frames: three header formats, and a reader that takes bytes as they come and copies none it need not.

| format | bytes | fields |
|---|---|---|
| `STOCK_REQUEST` | 9 | command u8, size u64 |
| `STOCK_RESPONSE` | 8 | size u64: what it answers is known only by order |
| `HERD` | 16 | kind u8, flags u8, status u16, sequence u32, length u64; both directions |
"""

from __future__ import annotations

import dataclasses
import struct
from typing import TYPE_CHECKING, NamedTuple

from wireherd.errors import LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

#: flag of an answer in the herd header
REPLY = 1
#: `opcode` of a stock answer, which does not say what it answers
NO_OPCODE = -1


class Frame(NamedTuple):
    """A header as read; `size` payload bytes follow it."""

    opcode: int
    flags: int
    status: int
    sequence: int
    size: int


@dataclasses.dataclass(frozen=True, slots=True)
class HeaderFormat:
    """How a header is laid out; `pack` takes opcode, flags, status, sequence and size."""

    name: str
    size: int
    unpack: Callable[[Buffer, int], Frame]
    pack: Callable[[int, int, int, int, int], bytes]

    def __repr__(self) -> str:
        return f"<HeaderFormat {self.name}>"


_REQUEST = struct.Struct("<BQ")
_RESPONSE = struct.Struct("<Q")
_HERD = struct.Struct("<BBHIQ")


def _unpack_request(buffer: Buffer, offset: int) -> Frame:
    opcode, size = _REQUEST.unpack_from(buffer, offset)
    return Frame(opcode, 0, 0, 0, size)


def _unpack_response(buffer: Buffer, offset: int) -> Frame:
    return Frame(NO_OPCODE, REPLY, 0, 0, _RESPONSE.unpack_from(buffer, offset)[0])


def _unpack_herd(buffer: Buffer, offset: int) -> Frame:
    return Frame(*_HERD.unpack_from(buffer, offset))


def _pack_request(opcode: int, _flags: int, _status: int, _sequence: int, size: int) -> bytes:
    return _REQUEST.pack(opcode, size)


def _pack_response(_opcode: int, _flags: int, _status: int, _sequence: int, size: int) -> bytes:
    return _RESPONSE.pack(size)


STOCK_REQUEST = HeaderFormat("stock request", _REQUEST.size, _unpack_request, _pack_request)
STOCK_RESPONSE = HeaderFormat("stock response", _RESPONSE.size, _unpack_response, _pack_response)
HERD = HeaderFormat("herd", _HERD.size, _unpack_herd, _HERD.pack)

_START = 64 << 10
#: after a payload that made the buffer larger than this, the next empty moment gives the memory back
_KEEP = 4 << 20
#: a receive is never offered less room than this unless it goes straight to the caller's memory
_ROOM = 4 << 10


class FrameReader:
    """Cuts a byte stream into headers and payloads, without ever touching a socket. For one thread.

    Theory of operation. The owner receives into `get_buffer()` and says how much came with `received(n)`. Then it asks
    `next_frame()`; for each frame it must dispose of all `size` payload bytes by any mix of `take` (small parts: a view
    of the reader's own buffer), `into` (bulk: straight to the caller's memory) and `skip`. Each of them may be asked
    before the bytes are there: `take` then says None, `into` and `skip` count down `remaining` as bytes come.

    The buffer grows as bytes arrive, never by what a header declares.
    """

    def __init__(self, header: HeaderFormat) -> None:
        self.header = header
        self._buffer = bytearray(_START)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        #: payload bytes of the current frame that nobody asked for yet
        self._payload = 0
        #: bytes that the last `take` or `next_frame` lacked
        self._lacking = header.size
        self._target: memoryview | None = None
        self._filled = 0
        self._skipping = 0

    @property
    def payload_left(self) -> int:
        """Payload bytes of the current frame that were not asked for yet."""
        return self._payload

    @property
    def remaining(self) -> int:
        """Bytes that `into` or `skip` still wait for."""
        if self._target is not None:
            return len(self._target) - self._filled
        return self._skipping

    @property
    def needed(self) -> int:
        """Bytes without which the last question cannot be answered; who receives no more never reads past it."""
        return self.remaining or max(self._lacking, 1)

    @property
    def buffered(self) -> memoryview:
        """Bytes received and not yet asked for; valid until the next `get_buffer`."""
        return self._view[self._start : self._end]

    def get_buffer(self) -> memoryview:
        """Give the memory in which to receive next; never empty. Views from `take` end here."""
        if self._target is not None:
            return self._target[self._filled :]
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > _KEEP:
                self._resize(_START)
        room = len(self._buffer) - self._end
        want = max(min(self._lacking, _KEEP), _ROOM)
        if room < want and self._start:
            self._compact()
            room = len(self._buffer) - self._end
        if room < min(want, _ROOM):
            self._resize(2 * len(self._buffer))
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """Say that `count` bytes were received into the last `get_buffer()`.

        Raises:
            LocalProtocolError: more than that buffer held.
        """
        if self._target is not None:
            self._filled += count
            if self._filled > len(self._target):
                raise LocalProtocolError("more bytes received than asked for")
            if self._filled == len(self._target):
                self._target = None
            return
        self._end += count
        if self._end > len(self._buffer):
            raise LocalProtocolError("more bytes received than asked for")
        self._lacking -= count
        if self._skipping:
            self._skip_buffered()

    def feed(self, data: Buffer) -> None:
        """Take bytes that somebody else received, such as those read before a socket was handed over."""
        view = memoryview(data).cast("B")
        while view:
            room = self.get_buffer()
            count = min(len(room), len(view))
            room[:count] = view[:count]
            self.received(count)
            view = view[count:]

    def next_frame(self) -> Frame | None:
        """Give the next header once it is there; None until then.

        Raises:
            LocalProtocolError: the payload before it was not disposed of.
        """
        if self._payload:
            raise LocalProtocolError(f"{self._payload} bytes of the last payload were not asked for")
        if self._target is not None or self._skipping:
            return None
        size = self.header.size
        start = self._start
        if self._end - start < size:
            self._lacking = size - (self._end - start)
            return None
        frame = self.header.unpack(self._view, start)
        self._start = start + size
        self._payload = frame.size
        return frame

    def take(self, count: int) -> memoryview | None:
        """Give the next `count` payload bytes once they are all there; None until then.

        The view is of the reader's buffer: valid until the next `get_buffer()`. Whoever takes has checked `count`
        against the limit of the command; nothing is reserved ahead of the bytes that come.
        """
        self._check(count)
        start = self._start
        if self._end - start < count:
            self._lacking = count - (self._end - start)
            return None
        self._start = start + count
        self._payload -= count
        return self._view[start : start + count]

    def into(self, view: memoryview) -> None:
        """Let the next `len(view)` payload bytes land in `view`; `remaining` says how many are still to come."""
        count = len(view)
        if view.itemsize != 1 or view.readonly:
            raise LocalProtocolError("a payload lands in writable bytes only")
        self._check(count)
        self._payload -= count
        here = min(self._end - self._start, count)
        if here:
            view[:here] = self._view[self._start : self._start + here]
            self._start += here
        if here < count:
            self._target = view
            self._filled = here

    def skip(self, count: int) -> None:
        """Drop the next `count` payload bytes; `remaining` says how many are still to come."""
        self._check(count)
        self._payload -= count
        self._skipping = count
        self._skip_buffered()

    def switch(self, header: HeaderFormat) -> None:
        """Read the frames from here on in another format."""
        if self._payload or self.remaining:
            raise LocalProtocolError("the header format changes between frames only")
        self.header = header

    def _check(self, count: int) -> None:
        if self.remaining:
            raise LocalProtocolError("the payload asked for before has not arrived yet")
        if not 0 <= count <= self._payload:
            raise LocalProtocolError(f"{count} bytes asked for where {self._payload} are left of the payload")

    def _skip_buffered(self) -> None:
        here = min(self._end - self._start, self._skipping)
        self._start += here
        self._skipping -= here

    def _compact(self) -> None:
        # the views that take() gave out end with get_buffer(), so moving under them is fair
        left = self._end - self._start
        self._view[:left] = self._view[self._start : self._end]
        self._start, self._end = 0, left

    def _resize(self, size: int) -> None:
        # a new buffer rather than a resized one: old views keep the old one alive
        fresh = bytearray(size)
        left = self._end - self._start
        fresh[:left] = self._view[self._start : self._end]
        self._buffer = fresh
        self._view = memoryview(fresh)
        self._start, self._end = 0, left


def write_frame(
    header: HeaderFormat, opcode: int, size: int, *, sequence: int = 0, status: int = 0, flags: int = 0
) -> bytes:
    """Give a header.

    Raises:
        LocalProtocolError: a field does not fit.
    """
    try:
        return header.pack(opcode, flags, status, sequence, size)
    except struct.error as error:
        raise LocalProtocolError(
            f"a {header.name} header cannot hold {size} bytes of command {opcode}: {error}"
        ) from error
