"""A real server over the session room: buffers of plain memory, graphs that only take time. Also runs as a process.

A graph's uid says how many milliseconds it computes; on device 7 it fails.
"""

from __future__ import annotations

import secrets
import sys
import threading
import time

from wireherd.errors import (
    BadRequest,
    GraphFailed,
    NoSuchBuffer,
    OutOfBounds,
    OutOfMemory,
    PeerClosed,
    WireherdError,
)
from wireherd.protocol.connection import ServerConnection
from wireherd.protocol.dialect import dialect_for
from wireherd.protocol.messages_graph import GraphRecomputeRequest
from wireherd.protocol.messages_herd import (
    FEATURES,
    CancelRequest,
    HerdHelloRequest,
    HerdHelloResponse,
    PingRequest,
    PingResponse,
    Purpose,
)
from wireherd.protocol.messages_stock import (
    AllocBufferRequest,
    AllocBufferResponse,
    BufferClearRequest,
    DeviceCountRequest,
    DeviceCountResponse,
    FreeBufferRequest,
    GetTensorRequest,
    MemsetTensorRequest,
    SetTensorRequest,
)
from wireherd.protocol.negotiate import agree_features
from wireherd.protocol.tensor import TensorRecord, pack, unpack
from wireherd.protocol.version import NEWEST
from wireherd.session.server import ServeOptions, serve
from wireherd.transport import listen

LIMIT = 1 << 30


def record(dialect, buffer, size):
    """A row of bytes as a tensor record."""
    return pack(
        TensorRecord(1, 24, buffer, (size, 1, 1, 1), (1, size, size, size), 0, (0,) * 16, 0, (0,) * 10, 0, 0, 0, b"t"),
        dialect,
    )


class Store:
    """Memory of one session."""

    def __init__(self, dialect, session):
        self.dialect = dialect
        self.session = session
        self.buffers = {}
        self.offered = []
        self.computed = []
        self.cancelled = threading.Event()
        self.frees = []

    def handle(self, opcode, message, connection):
        self.dialect = connection.dialect
        match message:
            case HerdHelloRequest():
                self.dialect = dialect_for(NEWEST, herd=True)
                return HerdHelloResponse(features=agree_features(message, int(FEATURES)), session=self.session)
            case DeviceCountRequest():
                return DeviceCountResponse(2)
            case AllocBufferRequest():
                if message.size > LIMIT:
                    raise OutOfMemory(f"{message.size} bytes are more than the limit")
                handle = len(self.buffers) + 1
                self.buffers[handle] = bytearray(message.size)
                return AllocBufferResponse(handle, message.size)
            case FreeBufferRequest():
                self.frees.append(message.remote_ptr)
                return None
            case BufferClearRequest():
                raise ZeroDivisionError("a fault of the worker's own")
            case GetTensorRequest():
                return self.span(message, message.size)
            case MemsetTensorRequest():
                self.span(message, message.size)[:] = bytes([message.value]) * message.size
                return None
            case GraphRecomputeRequest():
                if message.device == 7:
                    raise GraphFailed("no kernel")
                self.cancelled.wait(message.uid / 1000)
                self.computed.append((message.uid, time.perf_counter()))
                return None
            case PingRequest():
                return PingResponse(message.nonce)
            case CancelRequest():
                self.cancelled.set()
                return None
        raise BadRequest(f"{opcode.name} is not for here")

    def span(self, message, size):
        tensor = unpack(message.tensor, self.dialect)
        buffer = self.buffers.get(tensor.buffer)
        if buffer is None:
            raise NoSuchBuffer(f"no buffer {tensor.buffer}")
        if message.offset + size > len(buffer):
            raise OutOfBounds(f"{size} bytes at {message.offset}")
        return memoryview(buffer)[message.offset : message.offset + size]

    def sink(self, opcode, message, size):
        self.offered.append((opcode, size))
        assert isinstance(message, SetTensorRequest)
        return self.span(message, size)

    def received(self, opcode, message, view):
        pass

    def failed(self, error):
        pass


class Peer:
    """Listens and serves every connection in a thread; `herd=False` is a stock server."""

    def __init__(self, address, version=NEWEST, *, herd=True, options=None, close_on_herd=False, control=True):
        self.listener = listen(address)
        self.address = str(self.listener.address)
        self.version = version
        self.herd = herd
        self.options = options or ServeOptions(stall_timeout_s=10)
        self.close_on_herd = close_on_herd
        self.control = control
        self.stores = {}
        self.streams = []
        self.ends = []
        self.changed = threading.Condition()
        self.threads = [threading.Thread(target=self.accept, daemon=True)]
        self.threads[0].start()

    @property
    def store(self):
        """The newest session's."""
        return list(self.stores.values())[-1]

    def accept(self):
        while True:
            try:
                stream = self.listener.accept()
            except PeerClosed:
                return
            thread = threading.Thread(target=self.work, args=(stream,), daemon=True)
            self.streams.append(stream)
            self.threads.append(thread)
            thread.start()

    def work(self, stream):
        connection = ServerConnection(self.version, herd=self.herd)
        try:
            end = serve(stream, connection, Chooser(self, connection), options=self.options)
        except WireherdError as error:
            end = f"{type(error).__name__}: {error}"
        stream.close()
        with self.changed:
            self.ends.append(end)
            self.changed.notify_all()

    def wait_for_ends(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.ends) >= count, 20), self.ends
        return self.ends

    def close(self):
        self.listener.close()
        for stream in self.streams:
            stream.shutdown()
        for store in self.stores.values():
            store.cancelled.set()
        for thread in self.threads:
            thread.join(20)
            assert not thread.is_alive()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Chooser:
    """Finds the session that a connection belongs to: a new one, or for a control connection the one it names."""

    def __init__(self, peer, connection):
        self.peer = peer
        self.connection = connection
        self.store = None

    def find(self, message):
        if self.store is None:
            if isinstance(message, HerdHelloRequest) and message.purpose == Purpose.CONTROL:
                if message.session not in self.peer.stores or not self.peer.control:
                    raise BadRequest("no such session")
                self.store = self.peer.stores[message.session]
            else:
                name = secrets.token_bytes(16)
                self.store = self.peer.stores[name] = Store(self.connection.dialect, name)
        return self.store

    def handle(self, opcode, message, connection):
        if isinstance(message, HerdHelloRequest) and self.peer.close_on_herd:
            raise PeerClosed("as told")
        return self.find(message).handle(opcode, message, connection)

    def sink(self, opcode, message, size):
        return self.find(message).sink(opcode, message, size)

    def received(self, opcode, message, view):
        return self.find(message).received(opcode, message, view)

    def failed(self, error):
        pass


def main():
    with Peer(sys.argv[1], herd="stock" not in sys.argv) as peer:
        print(peer.address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
