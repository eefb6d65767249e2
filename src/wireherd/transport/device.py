"""Connections over a byte-stream device: a USB4 stream, a serial line, a pseudo-terminal, a descriptor from elsewhere.

A device carries one stream and knows no connections, no beginning and no end. A link (`link.py`) makes connections of
it: the one that listens waits for greetings, the one that connects greets. All connections of a process over one device
share a link; another process waits until the device is given back.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

from wireherd.errors import ConnectError, PeerClosed, ReadTimeout
from wireherd.transport.device_file import DeviceBusyError, open_device
from wireherd.transport.link_ends import ClientLink, ServerLink
from wireherd.transport.sockets import SocketStream
from wireherd.transport.stream import Listener

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from wireherd.transport.address import Address
    from wireherd.transport.stream import Stream

#: pause before a device that is in use is tried again
_BUSY_S: Final = 0.1

_links: Final[dict[str, ClientLink]] = {}
_links_lock: Final = threading.Lock()


def connect(address: Address, timeout_s: float) -> Stream:
    """Open a connection over a device, greeting the other end first where that has not been done.

    Raises:
        ConnectTimeout: no worker answered at the other end within `timeout_s`.
        ConnectError: there is no such device, it is none, or another process kept it.
    """
    path = os.path.realpath(address.name) if not address.name.startswith(("/dev/fd/", "/proc/")) else address.name
    end = time.monotonic() + timeout_s
    while True:
        with _links_lock:
            link = _links.get(path)
            if link is None or link.over is not None:
                if link is not None:
                    link.stop()
                    del _links[path]
                try:
                    link = ClientLink(open_device(path))
                except DeviceBusyError:
                    if time.monotonic() > end:
                        raise
                    link = None
                else:
                    _links[path] = link
                    link.start()
        if link is None:
            time.sleep(_BUSY_S)
            continue
        try:
            sock = link.opened(max(0.0, end - time.monotonic()))
        except ConnectError:
            if link.over is None or not link.idle_closed:
                link.stop()
                raise
            continue  # it was just given back for want of connections
        return SocketStream(sock, str(address))


def listen(address: Address) -> DeviceListener:
    """Wait at a device for clients.

    Raises:
        ConnectError: there is no such device, it is none, or another process has it.
    """
    return DeviceListener(address)


class DeviceListener(Listener):
    """Accepts the connections that come over a device; each is a socket of this machine."""

    def __init__(
        self,
        address: Address,
        deliver: Callable[[socket.socket], None] | None = None,
        on_end: Callable[[str], None] | None = None,
    ) -> None:
        """Open the device and wait.

        Args:
            address: of the device.
            deliver: takes each connection, on a thread of the listener's own; without it, `accept` gives them out.
            on_end: called there, with the reason, when the device has ended for good.

        Raises:
            ConnectError: there is no such device, it is none, or another process has it.
        """
        self.address = address
        self._queue: SimpleQueue[socket.socket | None] = SimpleQueue()
        self._closed: str | None = None
        self._on_end = on_end
        self._link = ServerLink(open_device(address.name), deliver or self._queue.put, self._end)
        self._link.start()

    def accept(self, timeout_s: float | None = None) -> Stream:
        """Take the next connection."""
        if self._closed is None:
            try:
                sock = self._queue.get(timeout=timeout_s)
            except Empty:
                raise ReadTimeout(f"nobody connected within {timeout_s:g} s") from None
            if sock is not None:
                return SocketStream(sock, str(self.address))
        self._queue.put(None)  # for the next who asks
        raise PeerClosed(self._closed or "the listener was closed")

    def close(self) -> None:
        """Say goodbye to the client and give the device back."""
        self._closed = self._closed or "the listener was closed"
        self._queue.put(None)
        self._link.stop()

    def _end(self, reason: str) -> None:
        self._closed = self._closed or reason
        if self._on_end is not None:
            self._on_end(reason)
        self._queue.put(None)


@atexit.register
def close_links() -> None:
    """End every link that this process began and give the devices back; the end of a process tells nobody by itself."""
    with _links_lock:
        links = list(_links.values())
        _links.clear()
    for link in links:
        link.stop()
