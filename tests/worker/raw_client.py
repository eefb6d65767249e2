"""A bare stock client over a socket: what travels is written out, so that tests see the worker and nothing else."""

from __future__ import annotations

import socket
import struct

HELLO, ALLOC_BUFFER, GET_ALIGNMENT, GET_MAX_SIZE, BUFFER_GET_BASE, FREE_BUFFER, SET_TENSOR = 14, 0, 1, 2, 3, 4, 6
GET_DEVICE_MEMORY, GET_ALLOC_SIZE, DEVICE_COUNT, HERD_HELLO = 11, 13, 15, 128
CAPS = bytes(24)


class Gone(Exception):
    """The worker closed the connection."""


class Raw:
    """One connection; closed by `with`."""

    def __init__(self, port: int, *, hello: bool = True, timeout_s: float = 20, host: str = "127.0.0.1") -> None:
        self.sock = socket.create_connection((host, port), timeout=timeout_s)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.version = b""
        if hello:
            self.version = self.call(HELLO, CAPS)

    def send(self, opcode: int, payload: bytes = b"", size: int | None = None) -> None:
        self.sock.sendall(struct.pack("<BQ", opcode, len(payload) if size is None else size) + payload)

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                piece = self.sock.recv(size - len(data))
            except ConnectionError as error:
                raise Gone from error
            if not piece:
                raise Gone
            data += piece
        return data

    def reply(self) -> bytes:
        return self.read(struct.unpack("<Q", self.read(8))[0])

    def call(self, opcode: int, payload: bytes = b"") -> bytes:
        self.send(opcode, payload)
        return self.reply()

    def closed(self) -> bool:
        """Whether the worker closes the connection (or has) without another word."""
        try:
            self.read(1)
        except Gone:
            return True
        return False

    def alloc(self, size: int, device: int = 0) -> int:
        """Handle of a new buffer; 0 if there was no room."""
        return struct.unpack("<QQ", self.call(ALLOC_BUFFER, struct.pack("<IQ", device, size)))[0]

    def alloc_size(self, tensor: bytes) -> int:
        return struct.unpack("<Q", self.call(GET_ALLOC_SIZE, struct.pack("<I", 0) + tensor + bytes(10 * 296)))[0]

    def number(self, opcode: int, payload: bytes = b"") -> int:
        return int.from_bytes(self.call(opcode, payload), "little")

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def tensor(elements: int = 64, kind: int = 0, size: int = 4) -> bytes:
    """A stock tensor record: one row of F32, nowhere yet."""
    record = bytearray(296)
    struct.pack_into("<QI", record, 0, 1, kind)
    struct.pack_into("<4I", record, 20, elements, 1, 1, 1)
    row = elements * size
    struct.pack_into("<4I", record, 36, size, row, row, row)
    return bytes(record)
