"""The two kinds of ends of a link: the one that waits, for one client after the other, and the one that greets."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import time
from typing import TYPE_CHECKING, Final

from wireherd.errors import ConnectError, ConnectTimeout
from wireherd.obs.log import get_logger
from wireherd.transport.device_file import DeviceFile, DeviceGone, open_device
from wireherd.transport.link import Link, LinkLost
from wireherd.transport.link_channel import MAX_CHANNELS, WINDOW
from wireherd.transport.link_frames import FILLER, GREETING, VERSION, Frame, Kind, Scanner, encode

if TYPE_CHECKING:
    from collections.abc import Callable

log = get_logger(__name__)

#: pause between greetings that nobody has answered yet
GREET_S: Final = 0.25
#: pause before a device that ended is opened again
REOPEN_S: Final = 0.2


class ServerLink(Link):
    """The end that waits: for greetings, one after the other, and for the connections that each brings."""

    def __init__(
        self, device: DeviceFile, deliver: Callable[[socket.socket], None], on_end: Callable[[str], None]
    ) -> None:
        """Set what to do with connections.

        Args:
            device: where to wait.
            deliver: takes a connection that was opened: its socket. Called on the link's thread.
            on_end: called there when no client can come any more, with the reason.
        """
        super().__init__(device)
        self._deliver = deliver
        self._on_end = on_end
        self._nonce = b""
        self._reopen_at: float | None = None

    def _greeted(self, frame: Frame) -> None:
        if frame.kind is not Kind.HELLO:
            return
        version, window, nonce = GREETING.unpack(frame.payload)
        anew = nonce != self._nonce or not self._epoch
        if anew and version == VERSION:
            self._lose("another client greeted", None)
            self._nonce = nonce
            self._begin(secrets.randbits(32) | 1, window)
            self._queue(FILLER)
            log.debug("a client greeted over %s", self.path)
        self._queue(encode(Kind.WELCOME, self._epoch, payload=GREETING.pack(VERSION, WINDOW, nonce)))

    def _opened(self, number: int) -> None:
        if number in self._channels or len(self._channels) >= MAX_CHANNELS:
            self._send(Kind.RESET, number)
            return
        ours, theirs = socket.socketpair()
        self._add(number, ours)
        self._deliver(theirs)

    def _tick(self, now: float) -> float:
        if self._device is not None or self._reopen_at is None:
            return super()._tick(now)
        if now >= self._reopen_at:
            self._reopen_at = now + REOPEN_S
            with contextlib.suppress(ConnectError):
                self._device = open_device(self.path)
                log.debug("%s is open again", self.path)
        return REOPEN_S

    def _ended(self, reason: str, gone: DeviceGone | None) -> None:
        if gone is None or self._device is None:
            return
        if self._device.given:
            if not gone.again:
                self._stopping = True
                self._on_end(reason)
            time.sleep(REOPEN_S)  # nobody has the other end open: this one reads again when somebody has
            return
        self._device.close()
        self._device = None
        self._scanner = Scanner()
        self._reopen_at = time.monotonic() + REOPEN_S


class ClientLink(Link):
    """The end that greets. `opened` opens a connection; the link closes when it has had none for a while."""

    #: without a connection for this long the device is given back
    IDLE_S: Final = 0.25

    def __init__(self, device: DeviceFile) -> None:
        super().__init__(device)
        self._greeting = GREETING.pack(VERSION, WINDOW, secrets.token_bytes(16))
        self._next = 0
        self._greet_at = 0.0
        self._empty_since = time.monotonic()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        #: why it is over, once it is
        self.over: str | None = None
        #: whether that was for want of connections
        self.idle_closed = False
        self._up = False

    def opened(self, timeout_s: float) -> socket.socket:
        """Open a connection and return its socket; from any thread.

        Raises:
            ConnectTimeout: nobody answered at the other end in time.
            ConnectError: the link is over.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._up or self.over is not None, timeout_s)
            if self.over is not None:
                raise ConnectError(self.over)
            if not self._up:
                raise ConnectTimeout(f"no worker answered at the other end for {timeout_s:g} s")
            ours, theirs = socket.socketpair()
            self.call(lambda: self._open(ours))
        return theirs

    def _open(self, sock: socket.socket) -> None:
        if not self._epoch or len(self._channels) >= MAX_CHANNELS:
            sock.close()
            return
        while True:
            self._next = self._next % 0xFFFF + 1
            if self._next not in self._channels:
                break
        self._add(self._next, sock)
        self._send(Kind.OPEN, self._next)

    def _greeted(self, frame: Frame) -> None:
        if frame.kind is not Kind.WELCOME:
            if frame.kind is Kind.HELLO and not self._epoch and frame.payload != self._greeting:
                raise LinkLost("another client is at the other end, not a worker")
            return
        version, window, nonce = GREETING.unpack(frame.payload)
        if self._epoch or nonce != self._greeting[-16:]:
            return
        if version != VERSION or not frame.epoch:
            raise LinkLost(f"the other end speaks version {version} of the link, this one {VERSION}: use one release")
        self._begin(frame.epoch, window)
        self._empty_since = time.monotonic()
        with self._changed:
            self._up = True
            self._changed.notify_all()

    def _opened(self, number: int) -> None:
        self._send(Kind.RESET, number)  # a client serves nobody

    def _tick(self, now: float) -> float:
        if self._epoch:
            if not self._channels and not self._calls:
                if now - self._empty_since > self.IDLE_S:
                    with self._changed:
                        if self._calls:
                            return 0.0
                        self.over = "the device was given back"
                        self.idle_closed = True
                        self._changed.notify_all()
                    self._stopping = True
                    return 0.0
                return self.IDLE_S
            return super()._tick(now)
        if now >= self._greet_at:
            first = not self._greet_at
            self._greet_at = now + GREET_S
            if self._waiting <= len(FILLER):
                if first:
                    self._queue(FILLER)
                self._queue(encode(Kind.HELLO, 0, payload=self._greeting))
        return max(0.0, self._greet_at - now)

    def _tidy(self) -> None:
        self._empty_since = time.monotonic()

    def _lose(self, reason: str, gone: DeviceGone | None) -> None:
        with self._changed:  # first, so that who sees a connection end does not open the next one here
            self._stopping = True
            if self.over is None:
                self.over = reason
            self._changed.notify_all()
        super()._lose(reason, gone)

    def _ended(self, reason: str, gone: DeviceGone | None) -> None:
        """Nothing is left to do."""
