"""One end of a link: connections over a byte-stream device, each of them a socket of this machine.

Theory of operation. A thread owns the device and, for every connection, one end of a socket pair; whoever uses the
connection has the other end, and need not know. The thread moves bytes between them as frames (`link_frames.py`). It
takes from a socket only what the device takes soon and what the far end has granted, so that a reader who is busy holds
up its own connection and no other: a sign of life passes beside a full stream.

How a link ends: with BYE; when the device does; with bytes that are no frame, or a greeting anew, which both mean that
another program is at the other end now; or after `SILENCE_S` without a byte. Then every connection of it ends too.
What happens then is for the two kinds of ends to say (`link_ends.py`).
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from wireherd.obs.log import get_logger
from wireherd.transport.device_file import DeviceFile, DeviceGone
from wireherd.transport.link_channel import WINDOW, Channel
from wireherd.transport.link_frames import Frame, Kind, Scanner, encode
from wireherd.transport.stream import advance

if TYPE_CHECKING:
    from collections.abc import Callable

log = get_logger(__name__)

#: an end that has nothing to say says so this often
BEAT_S: Final = 2.0
#: without a byte for this long the other end is gone: as long as a TCP peer may leave data unconfirmed (`tcp.py`)
SILENCE_S: Final = 30.0
#: a device without poll says that it is ready when it is not
_IDLE_S: Final = 0.001
#: bytes that may wait for the device
_OUT: Final = 64 << 10
_MOST_VIEWS: Final = 64
_GREETINGS: Final = frozenset({Kind.HELLO, Kind.WELCOME})
#: what is left to send at the end has this long
_LAST_S: Final = 0.5


class LinkLost(Exception):  # noqa: N818 - how a link ends, no error of this end
    """The link has ended, in words."""


class Link:
    """What both ends share; everything but `start`, `stop` and `call` runs on the link's thread."""

    def __init__(self, device: DeviceFile) -> None:
        self.path = device.path
        self._device: DeviceFile | None = device
        self._epoch = 0
        self._window = 0  # the other end's
        self._channels: dict[int, Channel] = {}
        self._scanner = Scanner()
        self._out: list[memoryview] = []
        self._waiting = 0  # bytes in it
        self._heard = self._said = time.monotonic()
        self._stopping = False
        self._calls: deque[Callable[[], None]] = deque()
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        self._thread = threading.Thread(target=self._run, name=f"link {self.path}", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self, wait_s: float = 2 * _LAST_S) -> None:
        """Say goodbye and close the device; from any thread, also twice."""
        self.call(self._stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(wait_s)

    def call(self, work: Callable[[], None]) -> None:
        """Have the link's thread do something."""
        self._calls.append(work)
        with contextlib.suppress(OSError):
            self._wake.send(b"x")

    def _stop(self) -> None:
        self._stopping = True

    # what the two kinds of ends decide

    def _greeted(self, frame: Frame) -> None:
        """HELLO or WELCOME came."""
        raise NotImplementedError

    def _opened(self, number: int) -> None:
        """The other end opened a channel."""
        raise NotImplementedError

    def _ended(self, reason: str, gone: DeviceGone | None) -> None:
        """The link has ended; its channels are closed already. `gone` if it was the device."""
        raise NotImplementedError

    def _tick(self, now: float) -> float:
        """Do what is due; the seconds until more is."""
        if not self._epoch:
            return BEAT_S
        if now - self._heard > SILENCE_S:
            raise LinkLost(f"the other end was silent for {SILENCE_S:g} s")
        if now - self._said >= BEAT_S:
            self._send(Kind.BEAT)
        return max(0.0, min(self._said + BEAT_S, self._heard + SILENCE_S) - now) + 0.01

    # the loop

    def _run(self) -> None:
        try:
            while not self._stopping:
                try:
                    self._turn()
                except LinkLost as lost:
                    self._lose(str(lost), None)
                except DeviceGone as gone:
                    self._lose(str(gone), gone)
            self._say_goodbye()
        except Exception:  # a fault of ours must not leave connections open that nobody serves
            log.exception("a fault on the link over %s", self.path)
        finally:
            self._stopping = True
            self._lose("this end is closed", None)
            while self._calls:  # who waits for a connection finds it closed
                self._calls.popleft()()
            if self._device is not None:
                self._device.close()
            self._wake.close()
            self._woken.close()

    def _turn(self) -> None:
        pause_s = self._tick(time.monotonic())
        poller = select.poll()
        poller.register(self._woken, select.POLLIN)
        device = self._device
        if device is not None:
            poller.register(device.fileno(), select.POLLIN | (select.POLLOUT if self._waiting else 0))
        for channel in self._channels.values():
            if events := channel.events(room=self._waiting < _OUT):
                poller.register(channel.sock, events)
        ready = dict(poller.poll(pause_s * 1000))
        if ready.pop(self._woken.fileno(), 0):
            with contextlib.suppress(OSError):
                self._woken.recv(4096)
        while self._calls:
            self._calls.popleft()()
        if device is not None and device is self._device:
            events = ready.pop(device.fileno(), 0)
            if events & ~select.POLLOUT:
                self._receive(device)
        for channel in list(self._channels.values()):
            if (events := ready.get(channel.sock.fileno(), 0)) and self._channels.get(channel.number) is channel:
                self._serve(channel, events)
        self._flush()

    def _receive(self, device: DeviceFile) -> None:
        data = device.read()
        if data is None:
            time.sleep(_IDLE_S)
            return
        self._heard = time.monotonic()
        skipped = self._scanner.skipped
        frames = self._scanner.feed(data)
        if self._epoch and self._scanner.skipped != skipped and not any(f.kind in _GREETINGS for f in frames):
            raise LinkLost("what came is no frame: bytes were lost, or another program uses the device")
        for frame in frames:
            try:
                self._take(frame)
            except LinkLost as lost:  # what follows may be the next client's greeting
                self._lose(str(lost), None)

    def _take(self, frame: Frame) -> None:
        if frame.kind in _GREETINGS:
            self._greeted(frame)
            return
        if not self._epoch or frame.epoch != self._epoch:
            return  # of a link that is over
        if frame.kind is Kind.BYE:
            raise LinkLost("the other end left")
        channel = self._channels.get(frame.channel)
        if frame.kind is Kind.OPEN:
            self._opened(frame.channel)
        elif channel is not None and not channel.received(frame):
            self._drop(channel, tell=True)
        if channel is not None and channel.number in self._channels:
            self._settle(channel)

    def _serve(self, channel: Channel, events: int) -> None:
        """Move what a channel's socket has, or has room for."""
        payload = channel.take(events, _OUT - self._waiting)
        if payload:
            self._send(Kind.DATA, channel.number, payload)
        self._settle(channel)

    def _settle(self, channel: Channel) -> None:
        """Give the socket what waits for it, tell the other end what changed, and forget a channel that is over."""
        channel.deliver()
        for kind, payload in channel.news():
            self._send(kind, channel.number, payload)
        if channel.over:
            self._drop(channel, tell=channel.broken)

    def _drop(self, channel: Channel, *, tell: bool) -> None:
        self._channels.pop(channel.number, None)
        channel.close()
        if tell:
            self._send(Kind.RESET, channel.number)
        self._tidy()

    def _tidy(self) -> None:
        """A channel is gone."""

    def _add(self, number: int, sock: socket.socket) -> None:
        self._channels[number] = Channel(number, sock, self._window)

    def _send(self, kind: Kind, channel: int = 0, payload: bytes = b"") -> None:
        self._queue(encode(kind, self._epoch, channel, payload))

    def _queue(self, data: bytes) -> None:
        self._out.append(memoryview(data))
        self._waiting += len(data)
        self._said = time.monotonic()

    def _flush(self) -> None:
        while self._out and self._device is not None:
            sent = self._device.write(self._out[:_MOST_VIEWS])
            if not sent:
                return
            self._waiting -= sent
            self._out = advance(self._out[:_MOST_VIEWS], sent) + self._out[_MOST_VIEWS:]

    def _begin(self, epoch: int, window: int) -> None:
        self._epoch = epoch
        self._window = min(window, WINDOW)
        self._heard = time.monotonic()

    def _lose(self, reason: str, gone: DeviceGone | None) -> None:
        """End the link and every connection of it."""
        if self._epoch:
            log.debug("the link over %s ended: %s", self.path, reason)
        self._epoch = 0
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        if not self._stopping or gone is not None:
            self._out.clear()
            self._waiting = 0
        self._ended(reason, gone)

    def _say_goodbye(self) -> None:
        if self._epoch:
            self._send(Kind.BYE)
        end = time.monotonic() + _LAST_S
        with contextlib.suppress(DeviceGone):
            while self._waiting and self._device is not None and time.monotonic() < end:
                self._flush()
                poller = select.poll()
                poller.register(self._device.fileno(), select.POLLOUT)
                poller.poll(_LAST_S * 100)
