"""The supervisor's door: who is answered, who is handed on, who is shown out, and never a byte read too many."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import sys

import pytest
from raw_client import ALLOC_BUFFER, CAPS, DEVICE_COUNT, FREE_BUFFER, GET_ALIGNMENT, HELLO, HERD_HELLO, SET_TENSOR

from wireherd.errors import BadRequest, RemoteProtocolError
from wireherd.protocol.dialect import dialect_for
from wireherd.protocol.messages_herd import HerdHelloRequest, Purpose
from wireherd.protocol.version import NEWEST, Version
from wireherd.worker import WorkerSettings
from wireherd.worker.door import Door, _room
from wireherd.worker.listen import open_listener

NAME = b"0123456789abcdef"


def frame(opcode, payload=b"", size=None):
    return struct.pack("<BQ", opcode, len(payload) if size is None else size) + payload


def herd_hello(purpose=Purpose.STREAM, session=bytes(16), magic=None):
    request = HerdHelloRequest(purpose=purpose, session=session)
    payload = dialect_for(NEWEST).encode(request)
    return frame(HERD_HELLO, payload if magic is None else magic + payload[4:])


ALLOC = frame(ALLOC_BUFFER, struct.pack("<IQ", 0, 4096))


class House:
    """A door with rooms behind it that only take notes."""

    def __init__(self, **settings):
        self.settings = WorkerSettings(port=0, **settings)
        self.asked, self.begun, self.joined = [], [], []
        self.asking = asyncio.Event()
        self.asking.set()

    async def ask(self, opcode, payload):
        await self.asking.wait()
        self.asked.append((opcode, payload))
        if payload == b"\xff\xff\xff\xff":
            raise BadRequest("no such device")
        return struct.pack("<QI", 4, len(self.asked))

    async def begin(self, sock, peer, read):
        self.begun.append((sock, peer, read))

    def join(self, sock, peer, read, name, purpose):
        if name != NAME:
            raise RemoteProtocolError("there is no such session")
        self.joined.append((sock, peer, read, purpose))

    @contextlib.asynccontextmanager
    async def open(self):
        listener = open_listener(self.settings)
        self.port = listener.getsockname()[1]
        self.door = Door(self.settings, ask=self.ask, begin=self.begin, join=self.join)
        task = asyncio.create_task(self.door.accept(listener))
        self.writers = []
        try:
            yield self
        finally:
            task.cancel()
            await self.door.close()
            listener.close()
            for writer in self.writers:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
            for sock, *_ in self.begun + self.joined:
                sock.close()

    async def visit(self, data=b"", *, hello=True):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        writer.write((frame(HELLO, CAPS) if hello else b"") + data)
        if hello:
            await asyncio.wait_for(reader.readexactly(36), 5)
        return reader, writer


def scenario(**settings):
    """Run the coroutine below it in a house with these settings."""

    def wrap(function):
        def test(caplog):
            caplog.set_level(logging.DEBUG, "wireherd")
            logging.getLogger("wireherd").propagate = True

            async def run():
                async with House(**settings).open() as house:
                    await function(house, caplog)

            asyncio.run(run())

        return test

    return wrap


async def closed(reader):
    try:
        return await asyncio.wait_for(reader.read(), 5) == b""
    except ConnectionError:
        return True


async def wait_for(condition):
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen")


@pytest.mark.parametrize(
    ("protocol", "plain", "answer"),
    [
        (NEWEST, False, bytes([8, 0, 0, 1])),
        (NEWEST, True, bytes([8, 0, 0, 0])),
        (Version(5, 0), False, bytes([5, 0, 0, 1])),
        (Version(4, 0, 3), False, bytes([4, 0, 3, 1])),
    ],
)
def test_hello_is_answered_here(protocol, plain, answer):
    async def run():
        async with House(protocol=protocol, plain=plain).open() as house:
            reader, writer = await house.visit(hello=False)
            writer.write(frame(HELLO, CAPS))
            assert await reader.readexactly(36) == struct.pack("<Q", 28) + answer + CAPS

    asyncio.run(run())


@scenario()
async def test_hello_byte_by_byte(house, caplog):
    reader, writer = await house.visit(hello=False)
    for byte in frame(HELLO, CAPS) + frame(DEVICE_COUNT):
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0)
    assert len(await reader.readexactly(36 + 12)) == 48
    assert house.asked == [(DEVICE_COUNT, b"")]


@scenario()
async def test_stateless_commands_are_asked_in_order_and_the_rest_is_handed_on_untouched(house, caplog):
    later = b"these bytes belong to the session"
    reader, writer = await house.visit(frame(DEVICE_COUNT) + frame(GET_ALIGNMENT, bytes(4)) + ALLOC + later)
    assert await reader.readexactly(24) == struct.pack("<QIQI", 4, 1, 4, 2)
    await wait_for(lambda: house.begun)
    assert house.asked == [(DEVICE_COUNT, b""), (GET_ALIGNMENT, bytes(4))]
    sock, peer, read = house.begun[0]
    assert read == ALLOC
    assert peer == "127.0.0.1:{}".format(writer.get_extra_info("sockname")[1])
    sock.setblocking(True)
    assert sock.recv(100) == later
    writer.write(b"more")
    assert sock.recv(100) == b"more"
    sock.sendall(b"answer")
    assert await reader.readexactly(6) == b"answer"


@scenario()
async def test_a_refused_question_closes_the_connection_and_is_logged_once(house, caplog):
    reader, _ = await house.visit(frame(GET_ALIGNMENT, b"\xff\xff\xff\xff"))
    assert await closed(reader)
    lines = [record.message for record in caplog.records if record.levelno >= logging.INFO]
    assert len(lines) == 1
    assert "GET_ALIGNMENT: no such device" in lines[0]


@scenario()
async def test_herd_hello_is_handed_on_with_its_frame(house, caplog):
    await house.visit(herd_hello())
    await wait_for(lambda: house.begun)
    assert house.begun[0][2] == herd_hello()


@scenario()
async def test_a_control_connection_goes_to_the_session_it_names(house, caplog):
    await house.visit(herd_hello(Purpose.CONTROL, NAME))
    await wait_for(lambda: house.joined)
    assert house.joined[0][2] == herd_hello(Purpose.CONTROL, NAME)
    assert not house.begun
    stranger, _ = await house.visit(herd_hello(Purpose.CONTROL, b"x" * 16))
    assert await closed(stranger)
    assert "no such session" in caplog.text


@pytest.mark.parametrize(
    ("data", "hello", "word"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", False, "not HELLO"),
        (frame(DEVICE_COUNT), False, "not HELLO"),
        (frame(HELLO, bytes(3)), False, "HELLO has 3 bytes"),
        (frame(HELLO, b"", 1 << 62), False, "bytes where 24 belong"),
        (frame(HELLO, CAPS), True, "HELLO"),
        (frame(77), True, "no command 77"),
        (frame(131), True, "no command"),
        (frame(FREE_BUFFER, bytes(8)), True, "before any ALLOC_BUFFER"),
        (frame(SET_TENSOR, b"", 12 << 30), True, "before any ALLOC_BUFFER"),
        (frame(ALLOC_BUFFER, b"", 1 << 62), True, "bytes where 12 belong"),
        (frame(GET_ALIGNMENT, b"", 1 << 62), True, "bytes where 4 belong"),
        (herd_hello(magic=b"NERD"), True, "HERD_HELLO is none"),
        (herd_hello(Purpose.PEER), True, "no such session"),
        (herd_hello(3), True, "purpose 3"),
    ],
)
def test_nonsense_is_shown_out_with_one_line_and_costs_no_session(data, hello, word, caplog):
    caplog.set_level(logging.INFO, "wireherd")
    logging.getLogger("wireherd").propagate = True

    async def run():
        async with House().open() as house:
            reader, _ = await house.visit(data, hello=hello)
            assert await closed(reader)
            assert not house.begun
            assert not house.asked

    asyncio.run(run())
    assert len(caplog.records) == 1
    assert word in caplog.text


@scenario(plain=True)
async def test_a_plain_worker_has_no_herd_hello(house, caplog):
    reader, _ = await house.visit(herd_hello())
    assert await closed(reader)


@scenario(handshake_timeout_s=0.2)
async def test_a_hello_that_does_not_come_or_never_ends_is_not_waited_for(house, caplog):
    silent, _ = await house.visit(hello=False)
    half, _ = await house.visit(frame(HELLO, CAPS)[:20], hello=False)
    assert await closed(silent)
    assert await closed(half)
    assert caplog.text.count("in time") == 2


@scenario(handshake_timeout_s=0.2)
async def test_between_frames_a_client_may_wait_but_not_inside_one(house, caplog):
    idle, writer = await house.visit()
    slow, _ = await house.visit(ALLOC[:15])
    assert await closed(slow)
    await asyncio.sleep(0.3)
    writer.write(frame(DEVICE_COUNT))
    assert await idle.readexactly(12)


@scenario(max_connections=8)
async def test_too_many_connections_cost_the_one_idle_longest_its_place(house, caplog):
    visitors = [await house.visit() for _ in range(8)]
    visitors[0][1].write(frame(DEVICE_COUNT))
    await visitors[0][0].readexactly(12)
    await house.visit()
    assert await closed(visitors[1][0])
    visitors[0][1].write(frame(DEVICE_COUNT))
    assert await visitors[0][0].readexactly(12)
    assert "idle longest" in caplog.text


@scenario()
async def test_a_flood_of_connections_is_not_all_that_runs(house, caplog):
    """A waiting connection is accepted without a pause: without one of our own, nobody else would get a turn."""
    flood = [socket.create_connection(("127.0.0.1", house.port)) for _ in range(200)]
    try:
        for _ in range(5):
            await asyncio.sleep(0)
        assert caplog.text.count(" connected") < 50
    finally:
        for sock in flood:
            sock.close()


@scenario(max_connections=8)
async def test_clients_that_wait_for_a_session_are_counted(house, caplog):
    doorstep = asyncio.Event()

    async def begin(sock, peer, read):
        await doorstep.wait()
        house.begun.append((sock, peer, read))

    house.door._begin = begin
    waiting = [await house.visit(ALLOC) for _ in range(4)]
    turned_away, _ = await house.visit(ALLOC)
    assert await closed(turned_away)
    assert "too many clients wait" in caplog.text
    reader, _ = await house.visit(frame(DEVICE_COUNT))
    assert await reader.readexactly(12)
    doorstep.set()
    await wait_for(lambda: len(house.begun) == 4)
    assert len(waiting) == 4


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX has a limit on open files")
def test_few_files_mean_few_connections(monkeypatch):
    """Whoever holds connections must not hold the files that a new session needs."""
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    assert 64 <= _room(sessions=64) <= 256 - 2 * 64
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8192, 8192))
    assert _room(sessions=64) > 1024
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert _room(sessions=64) > 1024


@scenario()
async def test_a_client_that_leaves_between_frames_is_not_worth_a_line(house, caplog):
    reader, writer = await house.visit(frame(DEVICE_COUNT))
    await reader.readexactly(12)
    writer.close()
    await wait_for(lambda: "left" in caplog.text)
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]


@scenario()
async def test_a_slow_question_holds_up_nobody_else(house, caplog):
    house.asking.clear()
    slow, _ = await house.visit(frame(DEVICE_COUNT))
    other, _ = await house.visit(ALLOC)
    await wait_for(lambda: house.begun)
    house.asking.set()
    assert await slow.readexactly(12)
    assert not other.at_eof()


def test_the_door_closes_with_everyone_inside():
    async def run():
        async with House().open() as house:
            reader, _ = await house.visit()
            early, _ = await house.visit(hello=False)
            await house.door.close()
            assert await closed(reader)
            assert await closed(early)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("version", "greeting", "words"),
    [
        (NEWEST, frame(HELLO), ["older than 4.0", "answers as 8.0.0", "--protocol", "3.6", "8.0 (llama.cpp b11739)"]),
        (Version(3, 6, 1), frame(HELLO, CAPS), ["4.0 or newer", "answers as 3.6.1", "--protocol", "8.0"]),
        (NEWEST, frame(HELLO, CAPS), ["left", "ggml RPC 8.0.0", "--protocol", "llama.cpp b11739"]),
        (Version(5, 0), frame(HELLO, CAPS), ["left", "ggml RPC 5.0.0", "--protocol", "8.0", "llama.cpp b10434"]),
    ],
    ids=["old", "new", "other", "older"],
)
def test_a_client_of_another_version_is_told_of_in_the_log(version, greeting, words, caplog):
    """A stock client that hears another major version hangs up; its HELLO says only whether it is from 4.0 on."""

    @scenario(protocol=version)
    async def test(house, caplog):
        reader, writer = await house.visit(greeting, hello=False)
        if "left" in words:
            await reader.readexactly(36)
            writer.close()
        await wait_for(lambda: any(record.levelno >= logging.INFO for record in caplog.records))

    test(caplog)
    (text,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]
    assert all(word in text for word in words), text
    assert "\n" not in text
