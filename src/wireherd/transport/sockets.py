"""Streams over sockets, whatever their family; what platforms lack ends here.

`PosixStream` keeps its socket blocking, with the timeout inside the kernel (SO_RCVTIMEO): a wait for data is one
system call. It writes with MSG_DONTWAIT and `sendmsg`. Windows has none of these, so `PortableStream` keeps its
socket non-blocking, asks `select` first and sends one buffer at a time. `SocketStream` is the one this system uses.
"""

from __future__ import annotations

import contextlib
import errno
import math
import select
import socket
import struct
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wireherd.errors import ConnectError, ConnectTimeout, PeerClosed, ReadTimeout, TransportError
from wireherd.transport.stream import Buffer, Listener, Stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wireherd.transport.address import Address

#: one call moves at most this much: macOS refuses more than 2 GiB
_MAX_CALL: Final = 1 << 30
#: buffers in one gathered write; the least IOV_MAX that POSIX systems have in practice is 1024
_MAX_VIEWS: Final = 512
_BACKLOG: Final = 128
#: how soon a listener that was closed by another thread stops accepting
_ACCEPT_SLICE_S: Final = 0.25
#: timeouts are at least this long: zero would mean "for ever" to the kernel
_LEAST_TIMEOUT_S: Final = 0.001

_SENTENCES: Final = {
    errno.ECONNREFUSED: "connection refused",
    errno.ECONNRESET: "connection reset by the peer",
    errno.EPIPE: "connection closed by the peer",
    errno.ETIMEDOUT: "the network lost the connection",
    errno.EHOSTUNREACH: "no route to the host",
    errno.ENETUNREACH: "the network is unreachable",
    errno.ENOENT: "there is no such socket",
    errno.EADDRINUSE: "the address is already in use",
    errno.EADDRNOTAVAIL: "it is not an address of this machine",
    errno.EACCES: "permission denied",
    errno.EBADF: "the stream was closed on this side",
}


def sentence(error: OSError) -> str:
    """Say what an operating system error means, without its number."""
    if error.errno in _SENTENCES:
        return _SENTENCES[error.errno]
    text = error.strerror or str(error) or type(error).__name__
    return text[0].lower() + text[1:]


def connect_error(error: OSError) -> ConnectError:
    """Exception for a failure to open a connection."""
    if error.errno == errno.ETIMEDOUT:
        return ConnectTimeout("the machine does not answer")
    return ConnectError(sentence(error))


def poll(sock: socket.socket, read: bool, write: bool, timeout_s: float | None) -> tuple[bool, bool]:
    """Wait until `sock` can be read or written; trouble counts as both, so that the next call tells it."""
    if sys.platform == "win32":
        ready = select.select([sock] if read else [], [sock] if write else [], [sock], timeout_s)
        return bool(ready[0] or ready[2]) and read, bool(ready[1] or ready[2]) and write
    poller = select.poll()
    poller.register(sock, (select.POLLIN if read else 0) | (select.POLLOUT if write else 0))
    events = poller.poll(None if timeout_s is None else math.ceil(timeout_s * 1000))
    if not events:
        return False, False
    found = events[0][1]
    trouble = bool(found & (select.POLLERR | select.POLLHUP | select.POLLNVAL))
    return read and (trouble or bool(found & select.POLLIN)), write and (trouble or bool(found & select.POLLOUT))


class _SocketBase(Stream):
    """What both kinds share; owns `sock`."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.peer = peer
        self._sock = sock
        self._timeout_s: float | None = None
        self._confirms = sys.platform == "linux" and sock.family in {socket.AF_INET, socket.AF_INET6}

    def gettimeout(self) -> float | None:
        return self._timeout_s

    def wait(self, *, read: bool, write: bool, timeout_s: float | None) -> tuple[bool, bool]:
        try:
            return poll(self._sock, read, write, timeout_s)
        except (OSError, ValueError):  # closed meanwhile: the next call says so
            return read, write

    def shutdown(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def close(self) -> None:
        self._sock.close()

    def fileno(self) -> int:
        return self._sock.fileno()

    def unsent(self) -> int:
        if self._confirms:
            return _unsent(self._sock)
        return 0

    def _timed_out(self, what: str) -> ReadTimeout:
        return ReadTimeout(f"the peer {what} for {self._timeout_s:g} s")

    @staticmethod
    def _broken(error: OSError) -> TransportError:
        return PeerClosed(sentence(error))


def _unsent(sock: socket.socket) -> int:
    """Bytes in the kernel's send queue that the other machine has not acknowledged (SIOCOUTQ, Linux only)."""
    if sys.platform != "linux":
        return 0
    import fcntl  # noqa: PLC0415 - Linux only
    import termios  # noqa: PLC0415

    answer = bytearray(4)
    try:
        fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, answer)
    except (OSError, ValueError):
        return 0
    return int.from_bytes(answer, sys.byteorder)


if sys.platform != "win32":
    _NOWAIT: Final = socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0)
    _TIMEVAL: Final = struct.Struct("ll")

    class PosixStream(_SocketBase):
        """A blocking socket; the kernel keeps the receive timeout."""

        def __init__(self, sock: socket.socket, peer: str) -> None:
            super().__init__(sock, peer)
            sock.setblocking(True)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(0, 0))

        def settimeout(self, seconds: float | None) -> None:
            """Bound later receives and sends."""
            if seconds == self._timeout_s:
                return
            micros = 0 if seconds is None else round(max(seconds, _LEAST_TIMEOUT_S) * 1e6)
            try:
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(*divmod(micros, 1_000_000)))
            except OSError:  # the other end is gone, or this one closed: the next call says so
                return
            self._timeout_s = seconds

        def recv_into(self, view: memoryview) -> int:
            """Receive in one system call if data is there."""
            try:
                return self._sock.recv_into(view, min(len(view), _MAX_CALL))
            except BlockingIOError:
                raise self._timed_out("sent nothing") from None
            except OSError as error:
                raise self._broken(error) from error

        def send_nowait(self, views: Sequence[Buffer]) -> int:
            """Gather and send without blocking."""
            try:
                if len(views) == 1:
                    view = views[0]
                    return self._sock.send(view if len(view) <= _MAX_CALL else memoryview(view)[:_MAX_CALL], _NOWAIT)
                return self._sock.sendmsg(_bounded(views), (), _NOWAIT)
            except BlockingIOError:
                return 0
            except OSError as error:
                raise self._broken(error) from error


class PortableStream(_SocketBase):
    """A non-blocking socket that asks `select` before it reads."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        super().__init__(sock, peer)
        sock.setblocking(False)

    def settimeout(self, seconds: float | None) -> None:
        """Bound later receives and sends."""
        self._timeout_s = None if seconds is None else max(seconds, _LEAST_TIMEOUT_S)

    def recv_into(self, view: memoryview) -> int:
        """Ask `select`, then receive."""
        while True:
            readable, _ = self.wait(read=True, write=False, timeout_s=self._timeout_s)
            if not readable:
                raise self._timed_out("sent nothing")
            try:
                return self._sock.recv_into(view, min(len(view), _MAX_CALL))
            except BlockingIOError:
                continue
            except OSError as error:
                raise self._broken(error) from error

    def send_nowait(self, views: Sequence[Buffer]) -> int:
        """Send one buffer after the other until one does not fit."""
        total = 0
        for view in views:
            start = 0
            while start < len(view):
                try:
                    sent = self._sock.send(memoryview(view)[start : start + _MAX_CALL])
                except BlockingIOError:
                    return total
                except OSError as error:
                    raise self._broken(error) from error
                start += sent
                total += sent
        return total


def _bounded(views: Sequence[Buffer]) -> Sequence[Buffer]:
    """As much of `views` as one call may carry."""
    if len(views) <= _MAX_VIEWS and sum(map(len, views)) <= _MAX_CALL:
        return views
    room = _MAX_CALL
    chosen: list[Buffer] = []
    for view in views[:_MAX_VIEWS]:
        chosen.append(view if len(view) <= room else memoryview(view)[:room])
        room -= len(chosen[-1])
        if not room:
            break
    return chosen


if sys.platform == "win32":
    SocketStream = PortableStream
else:
    SocketStream = PosixStream


class SocketListener(Listener):
    """A listening socket; `path` is removed from the file system on close."""

    def __init__(self, sock: socket.socket, address: Address, path: str | None = None) -> None:
        self.address = address
        self._sock = sock
        self._path = path
        self._closed = False
        sock.listen(_BACKLOG)
        sock.setblocking(False)

    def accept(self, timeout_s: float | None = None) -> Stream:
        """Accept the next peer."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._closed:
            left = _ACCEPT_SLICE_S if end is None else min(_ACCEPT_SLICE_S, end - time.monotonic())
            if left <= 0:
                raise ReadTimeout(f"nobody connected within {timeout_s:g} s")
            try:
                if poll(self._sock, read=True, write=False, timeout_s=left)[0]:
                    sock, peer = self._sock.accept()
                    return self._stream(sock, peer)
            except BlockingIOError:
                continue  # the peer left again before it was accepted
            except (OSError, ValueError) as error:
                if not self._closed:
                    raise PeerClosed(f"cannot accept: {error}") from error
        raise PeerClosed("the listener was closed")

    def _stream(self, sock: socket.socket, _peer: object) -> Stream:
        return SocketStream(sock, str(self.address))

    def close(self) -> None:
        """Stop listening."""
        if self._closed:
            return
        self._closed = True
        if self._path is not None:
            with contextlib.suppress(OSError):
                Path(self._path).unlink()
        with contextlib.suppress(OSError):  # wakes who accepts at once, where the system can
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def fileno(self) -> int:
        """Descriptor of the listening socket."""
        return self._sock.fileno()
