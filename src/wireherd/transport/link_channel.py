"""One connection of a link: the socket of this machine that stands for it, and what each end may send."""

from __future__ import annotations

import contextlib
import select
import socket
from typing import TYPE_CHECKING, Final

from wireherd.transport.link_frames import CREDIT, MAX_PAYLOAD, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wireherd.transport.link_frames import Frame

#: bytes of one connection that may be on the way or wait here, each way
WINDOW: Final = 1 << 20
MAX_CHANNELS: Final = 64


class Channel:
    """State of one connection at one end; no device in sight.

    Attributes:
        number: its name on the link.
        sock: this thread's end of a pair; its user has the other.
        broken: it must be reset: the user will take no more, or the other end breaks the rules.
    """

    def __init__(self, number: int, sock: socket.socket, credit: int) -> None:
        self.number = number
        self.sock = sock
        self.broken = False
        self._credit = credit
        self._arrived = bytearray()
        self._delivered = 0  # since the last CREDIT
        self._ended_here = False
        self._told_end = False
        self._ended_there = False
        self._shut = False
        sock.setblocking(False)

    @property
    def over(self) -> bool:
        """Whether nothing can move any more."""
        return self.broken or (self._told_end and self._shut)

    def events(self, *, room: bool) -> int:
        """What to wait for on the socket; `room` if the device takes more."""
        read = room and self._credit > 0 and not self._ended_here
        return (select.POLLIN if read else 0) | (select.POLLOUT if self._arrived else 0)

    def take(self, events: int, room: int) -> bytes:
        """What the user has sent, as far as it may go now."""
        if not events & (select.POLLIN | select.POLLHUP | select.POLLERR) or self._ended_here:
            return b""
        size = min(MAX_PAYLOAD, self._credit, room)
        if size <= 0:
            return b""
        try:
            data = self.sock.recv(size)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        self._credit -= len(data)
        self._ended_here = not data
        return data

    def received(self, frame: Frame) -> bool:
        """Take a frame from the other end; False if it breaks the rules, or the channel is gone there."""
        if frame.kind is Kind.DATA:
            self._arrived += frame.payload
            return not self._ended_there and len(self._arrived) + self._delivered <= WINDOW
        if frame.kind is Kind.CREDIT:
            self._credit += CREDIT.unpack(frame.payload)[0]
            return self._credit <= WINDOW
        if frame.kind is Kind.END:
            self._ended_there = True
            return True
        if frame.kind is Kind.RESET:
            self.deliver()
            return False
        return True

    def deliver(self) -> None:
        """Give the user what has arrived, as far as the socket takes it, and then the end."""
        try:
            while self._arrived:
                sent = self.sock.send(memoryview(self._arrived)[:WINDOW])
                del self._arrived[:sent]
                self._delivered += sent
        except BlockingIOError:
            return
        except OSError:  # the user closed its end
            self.broken = True
            return
        if self._ended_there and not self._shut:
            self._shut = True
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_WR)

    def news(self) -> Iterator[tuple[Kind, bytes]]:
        """Frames that the other end should have now."""
        if self._delivered >= WINDOW // 2 and not self._ended_there:
            yield Kind.CREDIT, CREDIT.pack(self._delivered)
            self._delivered = 0
        if self._ended_here and not self._told_end:
            self._told_end = True
            yield Kind.END, b""

    def close(self) -> None:
        """Close this end; the user reads an end of stream behind what was delivered."""
        self.sock.close()
