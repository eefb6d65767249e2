"""Streams inside this process: two ends linked by bounded buffers, as real as sockets but without a kernel.

Tests use them where a socket would only add noise. They block, time out and fill up like sockets; only a descriptor
is missing.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from wireherd.errors import ConnectError, PeerClosed, ReadTimeout
from wireherd.transport.address import MEMORY, Address
from wireherd.transport.stream import Buffer, Listener, Stream

if TYPE_CHECKING:
    from collections.abc import Sequence

#: bytes that one direction holds before its writer must wait
CAPACITY: Final = 1 << 18

_listeners: Final[dict[str, MemoryListener]] = {}
_listeners_lock: Final = threading.Lock()
_numbers: Final = itertools.count(1)


class MemoryStream(Stream):
    """One end of a linked pair; made by `pair`."""

    def __init__(self, peer: str, changed: threading.Condition, capacity: int) -> None:
        self.peer = peer
        self._changed = changed  # shared by both ends: guards and announces every change of either
        self._capacity = capacity
        self._arrived = bytearray()
        self._ended = False  # nothing more arrives
        self._timeout_s: float | None = None
        self._other: MemoryStream = self

    def recv_into(self, view: memoryview) -> int:
        """Take what has arrived."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._arrived or self._ended, self._timeout_s):
                raise self._timed_out("sent nothing")
            size = min(len(view), len(self._arrived))
            view[:size] = self._arrived[:size]
            del self._arrived[:size]
            self._changed.notify_all()
            return size

    def send_nowait(self, views: Sequence[Buffer]) -> int:
        """Copy what fits into the other end."""
        other = self._other
        with self._changed:
            if other._ended:  # noqa: SLF001 - the two ends are one object in two halves
                raise PeerClosed("connection closed by the peer")
            room = self._capacity - len(other._arrived)  # noqa: SLF001
            sent = 0
            for view in views:
                part = memoryview(view)[: room - sent]
                other._arrived += part  # noqa: SLF001
                sent += len(part)
                if sent == room:
                    break
            if sent:
                self._changed.notify_all()
            return sent

    def wait(self, *, read: bool, write: bool, timeout_s: float | None) -> tuple[bool, bool]:
        """Wait for bytes to arrive or for room at the other end."""
        with self._changed:
            self._changed.wait_for(lambda: (read and self._readable()) or (write and self._writable()), timeout_s)
            return read and self._readable(), write and self._writable()

    def _readable(self) -> bool:
        return bool(self._arrived) or self._ended

    def _writable(self) -> bool:
        other = self._other
        return other._ended or len(other._arrived) < self._capacity  # noqa: SLF001

    def settimeout(self, seconds: float | None) -> None:
        """Bound later receives and sends."""
        self._timeout_s = seconds

    def gettimeout(self) -> float | None:
        """The timeout set last."""
        return self._timeout_s

    def shutdown(self) -> None:
        """End both directions; what has arrived can still be received."""
        with self._changed:
            self._ended = True
            self._other._ended = True  # noqa: SLF001
            self._changed.notify_all()

    def close(self) -> None:
        """Shut down and forget what has arrived."""
        self.shutdown()
        with self._changed:
            self._arrived.clear()

    def _timed_out(self, what: str) -> ReadTimeout:
        return ReadTimeout(f"the peer {what} for {self._timeout_s:g} s")


class MemoryListener(Listener):
    """Accepts memory streams under a name that is unique in this process."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._changed = threading.Condition()
        self._queue: deque[MemoryStream] = deque()
        self._closed = False

    def accept(self, timeout_s: float | None = None) -> Stream:
        """Take the next stream from the queue."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while not self._queue and not self._closed:
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    raise ReadTimeout(f"nobody connected within {timeout_s:g} s")
                self._changed.wait(left)
            if self._closed:
                raise PeerClosed("the listener was closed")
            return self._queue.popleft()

    def offer(self, stream: MemoryStream) -> None:
        """Queue the accepting end of a new pair.

        Raises:
            ConnectError: the listener is closed.
        """
        with self._changed:
            if self._closed:
                raise ConnectError("connection refused")
            self._queue.append(stream)
            self._changed.notify()

    def close(self) -> None:
        """Free the name and refuse who waits."""
        with _listeners_lock:
            if _listeners.get(self.address.name) is self:
                del _listeners[self.address.name]
        with self._changed:
            self._closed = True
            waiting = list(self._queue)
            self._queue.clear()
            self._changed.notify_all()
        for stream in waiting:
            stream.close()


def pair(capacity: int = CAPACITY) -> tuple[MemoryStream, MemoryStream]:
    """Make two linked ends; what one sends the other receives."""
    number = next(_numbers)
    changed = threading.Condition()
    left = MemoryStream(f"memory:{number}", changed, capacity)
    right = MemoryStream(f"memory:{number}", changed, capacity)
    left._other, right._other = right, left  # noqa: SLF001
    return left, right


def connect(address: Address, timeout_s: float) -> MemoryStream:  # noqa: ARG001 - as the other transports
    """Connect to a listener of this process.

    Raises:
        ConnectError: nobody listens under that name.
    """
    with _listeners_lock:
        listener = _listeners.get(address.name)
    if listener is None:
        raise ConnectError("connection refused")
    near, far = pair()
    near.peer = str(address)
    listener.offer(far)
    return near


def listen(address: Address) -> MemoryListener:
    """Listen under a name; the name "0" takes a free one.

    Raises:
        ConnectError: the name is taken.
    """
    if address.name == "0":
        address = Address(MEMORY, name=f"listener-{next(_numbers)}")
    listener = MemoryListener(address)
    with _listeners_lock:
        if address.name in _listeners:
            raise ConnectError("the address is already in use")
        _listeners[address.name] = listener
    return listener
