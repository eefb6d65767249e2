"""The supervisor's end of a channel: the same messages as `channel.py`, on an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from wireherd.errors import TransportError
from wireherd.worker.channel import Decoder, Message, encode, receive, send

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable


class AsyncChannel:
    """The supervisor's end: never blocks; messages and the end arrive as calls on the event loop."""

    def __init__(
        self,
        sock: socket.socket,
        on_message: Callable[[Message], None],
        on_end: Callable[[], None],
    ) -> None:
        self._sock = sock
        self._on_message = on_message
        self._on_end = on_end
        self._decoder = Decoder()
        self._outgoing: deque[tuple[memoryview, socket.socket | None]] = deque()
        self._loop = asyncio.get_running_loop()
        self._closed = False
        #: process on the other end; must be set before a socket is sent (Windows shares sockets by process)
        self.peer_pid = 0
        sock.setblocking(False)
        self._loop.add_reader(sock, self._readable)

    def send(self, message: Message) -> None:
        """Queue a message and send what fits now; its socket is closed here once sent. After the end it is dropped."""
        if self._closed:
            if message.sock is not None:
                message.sock.close()
            return
        self._outgoing.append((memoryview(encode(message, self.peer_pid)), message.sock))
        if len(self._outgoing) == 1:
            self._writable()

    def _writable(self) -> None:
        while self._outgoing:
            data, passed = self._outgoing[0]
            try:
                sent = send(self._sock, data, passed)
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._sock, self._writable)
                return
            except OSError:
                self._end()
                return
            if passed is not None:
                passed.close()
            if sent < len(data):
                self._outgoing[0] = (data[sent:], None)
            else:
                self._outgoing.popleft()
        self._loop.remove_writer(self._sock)

    def _readable(self) -> None:
        try:
            data, descriptors = receive(self._sock)
            messages = self._decoder.feed(data, descriptors) if data else None
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, TransportError):
            messages = None
        if messages is None:
            self._end()
            return
        for message in messages:
            self._on_message(message)

    def _end(self) -> None:
        if not self._closed:
            self.close()
            self._on_end()

    def close(self) -> None:
        """Close this end and every socket that was not sent yet; `on_end` is not called."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        self._decoder.close()
        for _, passed in self._outgoing:
            if passed is not None:
                passed.close()
        self._outgoing.clear()
