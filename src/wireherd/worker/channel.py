"""The wire between the supervisor and one of its processes: small typed messages that may carry a socket.

A message is a fixed header, a text and some bytes. Where the system can (POSIX) a socket travels beside it as a
descriptor (SCM_RIGHTS); on Windows its `socket.share` record travels inside it. Either way the sender closes its own
copy once the message is out, so exactly one process owns a client at any time.

The channel doubles as the life line: when one end dies, the kernel closes it and the other end reads end of stream.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from wireherd.errors import PeerClosed, TransportError

#: kind u8, flags u8, two bytes unused, text length u32, data length u32, socket record length u32, number u64
_HEADER: Final = struct.Struct("<BBxxIIIQ")
_HAS_SOCKET: Final = 1
_MAX_PART: Final = 1 << 22
_CHUNK: Final = 1 << 16
_MAX_SOCKETS: Final = 16


class Kind(IntEnum):
    """What a message says; each line names the parts it uses."""

    CONFIG = 1  # to the process, once: text = settings as JSON
    READY = 2  # to the supervisor: text = what this process serves as JSON
    FAILED = 3  # to the supervisor: number = exit code, text = why the process cannot start, one sentence
    TAKE = 4  # to a session: text = `Handover` as JSON, data = bytes already read, and the client's socket
    PROBE = 5  # to a probe: number = request, text = opcode and bytes free of the limit (-1: none), data = payload
    ANSWER = 6  # to the supervisor: number = request, text = reason if refused, data = the whole reply
    RESERVE = 7  # to the supervisor: number = bytes wanted
    SHARE = 8  # to the supervisor: how much of the limit is free?
    GRANT = 9  # to the session, answers both: number = 1 granted or 0 refused; number = bytes free
    RELEASE = 10  # to the supervisor: number = bytes given back
    ENDED = 11  # to the supervisor: text = why the session ends, one sentence


@dataclass(frozen=True, slots=True)
class Message:
    """One message; which parts mean something depends on `kind`. A received `sock` belongs to the receiver."""

    kind: Kind
    number: int = 0
    text: str = ""
    data: bytes = b""
    sock: socket.socket | None = None


def pair() -> tuple[socket.socket, socket.socket]:
    """Make the two ends of a channel."""
    return socket.socketpair()


class Decoder:
    """Turns received chunks and descriptors into messages; knows no socket calls."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._descriptors: deque[int] = deque()

    def feed(self, data: bytes, descriptors: list[int]) -> list[Message]:
        """Take what one receive gave and return the messages it completed.

        Raises:
            TransportError: the stream makes no sense; the other end is of another release or broken.
        """
        self._buffer += data
        self._descriptors.extend(descriptors)
        messages = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def _next(self) -> Message | None:
        if len(self._buffer) < _HEADER.size:
            return None
        kind, flags, text_size, data_size, record_size, number = _HEADER.unpack_from(self._buffer)
        if max(text_size, data_size, record_size) > _MAX_PART or kind not in Kind._value2member_map_:
            raise TransportError("the channel between the processes of the worker is out of step")
        data_start = _HEADER.size + text_size
        record_start = data_start + data_size
        end = record_start + record_size
        if len(self._buffer) < end:
            return None
        text = self._buffer[_HEADER.size : data_start].decode()
        data = bytes(self._buffer[data_start:record_start])
        record = bytes(self._buffer[record_start:end])
        del self._buffer[:end]
        sock = self._socket(record) if flags & _HAS_SOCKET else None
        return Message(Kind(kind), number, text, data, sock)

    def _socket(self, record: bytes) -> socket.socket:
        if sys.platform == "win32":
            return socket.fromshare(record)
        if not self._descriptors:
            raise TransportError("a socket was announced on the channel but did not arrive")
        descriptor = self._descriptors.popleft()
        os.set_inheritable(descriptor, False)
        return socket.socket(fileno=descriptor)

    def close(self) -> None:
        """Close descriptors that no message claimed."""
        while self._descriptors:
            os.close(self._descriptors.popleft())


def encode(message: Message, peer_pid: int) -> bytes:
    """Bytes of a message; on Windows with the record that lets process `peer_pid` open its socket."""
    text = message.text.encode()
    record = b""
    flags = 0
    if message.sock is not None:
        flags = _HAS_SOCKET
        if sys.platform == "win32":
            record = message.sock.share(peer_pid)
    header = _HEADER.pack(message.kind, flags, len(text), len(message.data), len(record), message.number)
    return b"".join((header, text, message.data, record))


def send(sock: socket.socket, data: memoryview, passed: socket.socket | None) -> int:
    """Send some of `data`; the descriptor of `passed` goes with its first byte."""
    if sys.platform == "win32" or passed is None:
        return sock.send(data)
    return socket.send_fds(sock, [data], [passed.fileno()])


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Receive some bytes and the descriptors that came with them; no bytes: the end.

    Raises:
        TransportError: a descriptor could not be taken.
    """
    if sys.platform == "win32":
        return sock.recv(_CHUNK), []
    data, descriptors, flags, _ = socket.recv_fds(sock, _CHUNK, _MAX_SOCKETS)
    if flags & socket.MSG_CTRUNC:
        raise TransportError("this process has too many open files to take another client")
    return data, list(descriptors)


class Channel:
    """The process's end: blocking, any thread may send, one thread receives."""

    def __init__(self, sock: socket.socket, peer_pid: int = 0) -> None:
        self._sock = sock
        self._peer_pid = peer_pid
        self._decoder = Decoder()
        self._ready: deque[Message] = deque()
        self._send_lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Send a message and close the socket it carries.

        Raises:
            PeerClosed: the supervisor is gone.
        """
        data = memoryview(encode(message, self._peer_pid))
        passed = message.sock
        try:
            with self._send_lock:
                while data:
                    sent = send(self._sock, data, passed)
                    data = data[sent:]
                    passed = None
        except OSError as error:
            raise PeerClosed("the supervisor of this worker is gone") from error
        finally:
            if message.sock is not None:
                message.sock.close()

    def receive(self) -> Message | None:
        """Wait for the next message; None when the other end is gone.

        Raises:
            TransportError: the stream makes no sense.
        """
        while not self._ready:
            try:
                data, descriptors = receive(self._sock)
            except OSError:
                return None
            if not data:
                return None
            self._ready.extend(self._decoder.feed(data, descriptors))
        return self._ready.popleft()

    def close(self) -> None:
        """Close this end."""
        self._decoder.close()
        self._sock.close()
