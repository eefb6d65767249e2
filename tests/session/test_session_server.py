"""The server's loop against peers that know the rules and peers that do not."""

from __future__ import annotations

import contextlib
import random
import struct
import threading
import time

import pytest
from store_peer import Chooser, Peer, Store, record

from wireherd.errors import PeerClosed, ReadTimeout, RemoteProtocolError, WireherdError, WorkerRefused
from wireherd.protocol.connection import ClientConnection, ServerConnection
from wireherd.protocol.dialect import dialect_for
from wireherd.protocol.framing import HERD, STOCK_REQUEST
from wireherd.protocol.messages_herd import HerdHelloRequest, HerdHelloResponse, Purpose
from wireherd.protocol.messages_stock import (
    AllocBufferRequest,
    DeviceCountRequest,
    GetTensorRequest,
    HelloRequest,
    SetTensorRequest,
)
from wireherd.protocol.table import Opcode, State
from wireherd.protocol.version import NEWEST
from wireherd.session import server
from wireherd.session.client import ClientSession
from wireherd.session.frames import FrameStream
from wireherd.session.server import ServeOptions, serve
from wireherd.testing.streams import memory_pair, read_exactly, read_to_end
from wireherd.transport import connect

HELLO = STOCK_REQUEST.pack(Opcode.HELLO, 0, 0, 0, 24) + bytes(24)


class Served:
    """A server on one end of a pair of streams."""

    def __init__(self, *, received=b"", connection=None, options=None, dispatcher=None):
        self.stream, far = memory_pair(1 << 20)
        self.stream.settimeout(10)
        self.connection = connection or ServerConnection()
        self.store = dispatcher or Store(self.connection.dialect, b"s" * 16)
        self.result = None

        def work():
            try:
                self.result = serve(far, self.connection, self.store, received=received, options=options)
            except WireherdError as error:
                self.result = error
            far.close()

        self.thread = threading.Thread(target=work, daemon=True)
        self.thread.start()

    def send(self, *pieces):
        self.stream.sendall(pieces)

    def end(self):
        self.stream.shutdown()
        self.thread.join(10)
        assert not self.thread.is_alive()
        assert self.connection.state is State.CLOSED
        return self.result

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


def greeted(served, purpose=Purpose.STREAM):
    """A client's connection and frames after the handshake."""
    client = ClientConnection()
    frames = FrameStream(served.stream, client.incoming, idle_s=10, stall_s=10)
    for message in (HelloRequest(), HerdHelloRequest(purpose=int(purpose))):
        served.send(client.request(message))
        frame = frames.frame()
        client.response(client.match(frame), frame, frames.take(frame.size))
    frames.reader.switch(client.incoming)
    return client, frames


def answer(client, frames):
    frame = frames.frame()
    return client.response(client.match(frame), frame, frames.take(frame.size))


def test_handshake_and_a_command():
    with Served() as served:
        client, frames = greeted(served)
        assert served.connection.herd
        served.send(client.request(DeviceCountRequest()))
        assert answer(client, frames).count == 2
        assert served.end() == "the peer left"


def test_a_connection_taken_over_with_bytes_already_read():
    client = ClientConnection()
    hello = client.request(HelloRequest())
    assert hello == HELLO
    with Served() as supervisor:
        supervisor.send(hello)
        frames = FrameStream(supervisor.stream, client.incoming, idle_s=10, stall_s=10)
        answer(client, frames)
    herd_hello = client.request(HerdHelloRequest())
    for cut in (0, 1, 9, len(herd_hello)):
        with Served(received=herd_hello[:cut], connection=ServerConnection(state=State.HELLO)) as session:
            session.send(herd_hello[cut:])
            frames = FrameStream(session.stream, client.incoming, idle_s=10, stall_s=10)
            frame = frames.frame()
            raw = bytes(frames.take(frame.size))
            assert dialect_for(NEWEST).decode_response(Opcode.HERD_HELLO, raw).session == b"s" * 16


def test_everything_byte_by_byte():
    with Served() as served:
        client, frames = greeted(served)
        message = AllocBufferRequest(0, 100)
        for byte in client.request(message):
            served.send(bytes([byte]))
        handle = answer(client, frames).remote_ptr
        tensor = record(client.dialect, handle, 5)
        for byte in client.request(SetTensorRequest(tensor, 0, 0), 5) + b"hello":
            served.send(bytes([byte]))
        served.send(client.request(GetTensorRequest(tensor, 0, 5)))
        frame = frames.frame()
        client.match(frame)
        assert bytes(frames.take(frame.size)) == b"hello"


@pytest.mark.parametrize("size", [1 << 62, 12 << 30, (1 << 64) - 1])
@pytest.mark.parametrize("herd", [False, True])
def test_a_declared_size_reserves_nothing(size, herd):
    import tracemalloc

    with Served() as served:
        if herd:
            client, _ = greeted(served)
            header = HERD.pack(Opcode.SET_TENSOR, 0, 0, client.sequence + 1, size)
        else:
            served.send(HELLO)
            read_exactly(served.stream, 36)
            header = STOCK_REQUEST.pack(Opcode.SET_TENSOR, 0, 0, 0, size)
        dialect = dialect_for(NEWEST, herd=herd)
        tracemalloc.start()
        served.send(header, dialect.encode(SetTensorRequest(record(dialect, 1, 10), 0, 0)))
        time.sleep(0.2)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 1 << 20
        result = served.end()
    if size > 1 << 40:
        assert isinstance(result, RemoteProtocolError)
        assert served.store.offered == []
    else:
        assert result == "SET_TENSOR failed: no buffer 1"
        assert served.store.offered[0][0] is Opcode.SET_TENSOR
        assert size - 400 < served.store.offered[0][1] < size


def test_no_record_no_question():
    """The owner of the memory is asked only after the command's own record has come."""
    with Served() as served:
        client, _ = greeted(served)
        served.send(HERD.pack(Opcode.SET_TENSOR, 0, 0, client.sequence + 1, 12 << 30), bytes(100))
        time.sleep(0.1)
        assert served.store.offered == []
        assert isinstance(served.end(), PeerClosed)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (lambda n: HERD.pack(200, 0, 0, n, 0), "no command 200"),
        (lambda n: HERD.pack(Opcode.DEVICE_COUNT, 0, 0, n, 7), "7 bytes where 0 belong"),
        (lambda n: HERD.pack(Opcode.DEVICE_COUNT, 0, 0, n + 5, 0), "number"),
        (lambda n: HERD.pack(Opcode.DEVICE_COUNT, 1, 0, n, 0), "flags"),
        (lambda n: HERD.pack(Opcode.HELLO, 0, 0, n, 24), "state"),
        (lambda n: HERD.pack(Opcode.CANCEL, 0, 0, n, 0), "state"),
        (lambda n: HERD.pack(Opcode.GRAPH_COMPUTE, 0, 0, n, 1 << 50), "at most"),
        (lambda n: HERD.pack(Opcode.GRAPH_COMPUTE, 0, 0, n, 24) + struct.pack("<IQII", 0, 1, 9, 9) + bytes(4), ""),
    ],
)
def test_broken_rules_are_told_and_end_the_session(raw, reason):
    with Served() as served:
        client, frames = greeted(served)
        served.send(raw(client.sequence + 1), b"and what follows is dropped")
        notice = answer(client, frames)
        assert notice.status == 1
        assert reason in notice.reason
        result = served.end()
        assert isinstance(result, RemoteProtocolError)
        assert reason in str(result)


@pytest.mark.parametrize(
    "raw", [b"GET / HTTP/1.1\r\n\r\n", STOCK_REQUEST.pack(0, 0, 0, 0, 12), HELLO[:-1] + b"\0\xff" * 9]
)
def test_a_stranger_is_closed_without_a_word(raw):
    served = Served()
    served.send(raw)
    with contextlib.suppress(PeerClosed):
        read_to_end(served.stream)
    assert isinstance(served.end(), RemoteProtocolError)


def test_leaving_between_and_within_frames():
    with Served() as served:
        assert served.end() == "the peer left"
    with Served() as served:
        served.send(HELLO[:5])
        time.sleep(0.05)
        assert isinstance(served.end(), PeerClosed)
    with Served() as served:
        served.send(HELLO[:20])
        time.sleep(0.05)
        assert isinstance(served.end(), PeerClosed)


def test_a_frame_that_stands_still_times_out():
    options = ServeOptions(stall_timeout_s=0.2)
    for part in (5, 20):
        served = Served(options=options)
        served.send(HELLO[:part])
        served.thread.join(5)
        result = served.end()
        assert isinstance(result, ReadTimeout)
        assert "in the middle of a frame" in str(result)


def test_an_idle_peer_may_stay_unless_told_otherwise():
    with Served(options=ServeOptions(stall_timeout_s=0.1)) as served:
        time.sleep(0.8)
        served.send(HELLO)
        assert len(read_exactly(served.stream, 36)) == 36
    served = Served(options=ServeOptions(idle_timeout_s=0.1))
    served.thread.join(5)
    assert isinstance(served.end(), ReadTimeout)


def test_an_answer_that_nobody_takes_times_out():
    served = Served(options=ServeOptions(stall_timeout_s=0.6))
    client, frames = greeted(served)
    served.send(client.request(AllocBufferRequest(0, 8 << 20)))
    handle = answer(client, frames).remote_ptr
    served.send(client.request(GetTensorRequest(record(client.dialect, handle, 8 << 20), 0, 8 << 20)))
    served.thread.join(10)
    assert isinstance(served.end(), ReadTimeout)


def test_the_end_after_a_failure_does_not_wait_for_ever(monkeypatch):
    monkeypatch.setattr(server, "LINGER_S", 0.5)
    served = Served()
    client, _ = greeted(served)
    tensor = record(client.dialect, 99, 5)
    served.send(client.request(SetTensorRequest(tensor, 0, 0), 5), b"lost!")
    served.thread.join(5)
    assert served.end() == "SET_TENSOR failed: no buffer 99"


def test_wrong_memory_from_a_dispatcher_is_a_fault_of_ours():
    class Short(Store):
        def sink(self, opcode, message, size):
            return memoryview(bytearray(size - 1))

    served = Served(dispatcher=Short(dialect_for(NEWEST), b"s" * 16))
    client, frames = greeted(served)
    served.send(client.request(SetTensorRequest(record(client.dialect, 1, 5), 0, 0), 5), b"12345")
    notice = answer(client, frames)
    assert notice.status == 13
    assert "was offered 4 bytes of memory, not 5" in notice.reason
    served.end()


def test_no_memory_is_a_status():
    class Full(Store):
        def handle(self, opcode, message, connection):
            if opcode is not Opcode.ALLOC_BUFFER:
                return super().handle(opcode, message, connection)
            raise MemoryError

    served = Served(dispatcher=Full(dialect_for(NEWEST), b"s" * 16))
    client, frames = greeted(served)
    served.send(client.request(AllocBufferRequest(0, 1)))
    with pytest.raises(WireherdError, match="no memory left"):
        answer(client, frames)
    served.end()


def test_a_refused_handshake_is_answered():
    class Choosy(Store):
        def handle(self, opcode, message, connection):
            return HerdHelloResponse(status=10, build="not today")

    for raw, reason in ((HerdHelloRequest(), "not today"), (HerdHelloRequest(magic=1), "not today")):
        served = Served(dispatcher=Choosy(dialect_for(NEWEST), b"s" * 16))
        client = ClientConnection()
        frames = FrameStream(served.stream, client.incoming, idle_s=10, stall_s=10)
        served.send(client.request(HelloRequest()))
        answer(client, frames)
        served.send(client.request(raw))
        with pytest.raises(WireherdError, match=reason):
            answer(client, frames)
        assert served.end() == "HERD_HELLO was refused: not today"


def test_a_handshake_of_another_extension_is_refused_with_both_numbers(peers, monkeypatch):
    peer = peers()
    monkeypatch.setattr(
        "wireherd.session.handshake.HerdHelloRequest", lambda **fields: HerdHelloRequest(extension=9, **fields)
    )
    with pytest.raises(WorkerRefused, match="extension 9 of wireherd, this worker 1"):
        ClientSession.connect(peer.address)


def test_random_bytes_never_do_more_than_end_the_connection():
    chance = random.Random(4)
    for round_number in range(60):
        served = Served()
        client, _ = greeted(served)
        pieces = []
        for sequence in range(client.sequence + 1, client.sequence + 4):
            body = chance.randbytes(chance.randrange(0, 400))
            size = chance.choice([len(body), chance.randrange(1 << 20), chance.randrange(1 << 64)])
            pieces.append(HERD.pack(chance.randrange(140), 0, 0, sequence, size) + body)
        with contextlib.suppress(PeerClosed):
            served.send(*pieces)
        time.sleep(0.002)
        result = served.end()
        assert isinstance(result, (str, RemoteProtocolError, PeerClosed)), (round_number, result)


def test_hostile_and_honest_clients_side_by_side():
    chance = random.Random(5)
    with Peer("127.0.0.1:0") as peer, ClientSession.connect(peer.address) as honest:
        for _ in range(20):
            with connect(peer.address) as stream:
                stream.sendall([HELLO, chance.randbytes(500)])
            assert honest.call(DeviceCountRequest()).count == 2


def test_dispatchers_for_tests_are_whole():
    for cls in (Store, Chooser):
        assert all(hasattr(cls, name) for name in ("handle", "sink", "received"))
