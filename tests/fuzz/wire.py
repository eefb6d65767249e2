"""A bare connection to a worker for hostile tests: sends any bytes, reads any frame, checks nothing it sends."""

from __future__ import annotations

import socket
import struct
from typing import Any, NamedTuple

import numpy as np

from wireherd.protocol.dialect import Dialect, dialect_for
from wireherd.protocol.messages_herd import HerdHelloRequest, HerdHelloResponse
from wireherd.protocol.messages_stock import (
    AllocBufferRequest,
    AllocBufferResponse,
    BufferGetBaseRequest,
    BufferGetBaseResponse,
    FreeBufferRequest,
    GetTensorRequest,
    HelloRequest,
    HelloResponse,
    SetTensorRequest,
)
from wireherd.protocol.table import BY_MESSAGE, Opcode
from wireherd.protocol.version import NEWEST

STOCK_REQUEST = struct.Struct("<BQ")
STOCK_RESPONSE = struct.Struct("<Q")
HERD = struct.Struct("<BBHIQ")
TIMEOUT_S = 30.0
ROW_BYTES = 1024


class Closed(Exception):
    """The worker ended the connection, as it may after nonsense."""


class HerdFrame(NamedTuple):
    """A frame of the extension as it arrived."""

    opcode: int
    flags: int
    status: int
    sequence: int
    payload: bytes


class Wire:
    """One connection: HELLO is said, and HERD_HELLO if `herd`. Errors of the socket are `Closed`."""

    def __init__(self, endpoint: str, *, herd: bool = True, handshake: bool = True) -> None:
        host, _, port = endpoint.rpartition(":")
        self.herd = False
        self.dialect: Dialect = dialect_for(NEWEST)
        self.sequence = 0
        self.offered = False
        self.numbers: dict[str, tuple[str, ...]] = {}
        try:
            self.socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        except OSError as error:
            raise Closed(str(error)) from error
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if handshake:
            try:
                self._greet(herd)
            except BaseException:
                self.close()
                raise

    def _greet(self, herd: bool) -> None:
        hello = self.call(HelloRequest())
        assert isinstance(hello, HelloResponse)
        self.dialect = dialect_for(hello.version)
        if herd:
            assert hello.herd, "the worker does not offer the extension"
            answer = self.call(HerdHelloRequest())
            assert isinstance(answer, HerdHelloResponse)
            assert answer.status == 0, answer.build
            self.numbers = {"op": answer.ops, "unary": answer.unary_ops, "glu": answer.glu_ops, "type": answer.types}
            self.dialect = dialect_for(NEWEST, herd=True)
            self.herd = True

    def frame(self, opcode: int, payload: bytes, *, size: int | None = None) -> bytes:
        """A request frame; `size` lies about the payload's length."""
        declared = len(payload) if size is None else size
        if not self.herd:
            return STOCK_REQUEST.pack(opcode, declared) + payload
        self.sequence = (self.sequence + 1) & 0xFFFFFFFF
        return HERD.pack(opcode, 0, 0, self.sequence, declared) + payload

    def request(self, message: Any, bulk: bytes = b"") -> bytes:
        """The frame of an honest message."""
        return self.frame(BY_MESSAGE[type(message)].opcode, self.dialect.encode(message) + bulk)

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise Closed(str(error)) from error

    def read(self, size: int) -> bytes:
        parts = []
        while size:
            try:
                part = self.socket.recv(min(size, 1 << 20))
            except TimeoutError:
                raise AssertionError(f"the worker neither answered nor closed within {TIMEOUT_S:g} s") from None
            except OSError as error:
                raise Closed(str(error)) from error
            if not part:
                raise Closed("end of stream")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def read_herd(self) -> HerdFrame:
        opcode, flags, status, sequence, size = HERD.unpack(self.read(HERD.size))
        return HerdFrame(opcode, flags, status, sequence, self.read(size))

    def call(self, message: Any, bulk: bytes = b"") -> Any:
        """Send an honest request and decode its answer (bytes for raw ones). Nothing else may be under way."""
        command = BY_MESSAGE[type(message)]
        self.send(self.request(message, bulk))
        if self.herd:
            frame = self.read_herd()
            if frame.status or frame.opcode == Opcode.ERROR:
                raise Closed(f"status {frame.status}: {frame.payload[:200]!r}")
            payload = frame.payload
        else:
            (size,) = STOCK_RESPONSE.unpack(self.read(STOCK_RESPONSE.size))
            payload = self.read(size)
        if command.response is None:
            return payload
        return self.dialect.decode_response(command.opcode, payload)

    def buffer(self, size: int) -> tuple[int, int]:
        """Allocate on device 0; returns handle and base address."""
        made = self.call(AllocBufferRequest(0, size))
        assert isinstance(made, AllocBufferResponse)
        assert made.remote_ptr, "the worker had no room"
        base = self.call(BufferGetBaseRequest(made.remote_ptr))
        assert isinstance(base, BufferGetBaseResponse)
        return made.remote_ptr, base.base_ptr

    def row(self, handle: int, address: int, count: int = ROW_BYTES // 4) -> bytes:
        """Tensor record of `count` floats in a buffer."""
        record = np.zeros(1, self.dialect.tensor_dtype)
        record["id"], record["buffer"], record["data"] = 1, handle, address
        record["ne"][0] = (count, 1, 1, 1)
        record["nb"][0] = (4, 4 * count, 4 * count, 4 * count)
        return record.tobytes()

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def honest(endpoint: str, *, herd: bool = True) -> None:
    """What any client may expect: write, read back the same, free.

    Raises:
        AssertionError: what came back is not what was written.
        Closed: the worker hung up on an honest client.
    """
    pattern = bytes(range(256)) * (ROW_BYTES // 256)
    with Wire(endpoint, herd=herd) as wire:
        handle, base = wire.buffer(4096)
        record = wire.row(handle, base)
        wire.send(wire.request(SetTensorRequest(record, 0, 0), pattern))
        assert wire.call(GetTensorRequest(record, 0, ROW_BYTES)) == pattern
        wire.send(wire.request(FreeBufferRequest(handle)))
