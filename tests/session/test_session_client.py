"""What a session promises, over every transport, with a real server at the other end."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from session_calls import alloc, get, put
from store_peer import record

from wireherd.errors import (
    InternalError,
    LocalProtocolError,
    NoSuchBuffer,
    OutOfMemory,
    WorkerLost,
    WorkerRefused,
)
from wireherd.protocol.messages_graph import GraphRecomputeRequest
from wireherd.protocol.messages_stock import (
    AllocBufferRequest,
    BufferClearRequest,
    DeviceCountRequest,
    FreeBufferRequest,
    GetTensorRequest,
    MemsetTensorRequest,
    SetTensorRequest,
)
from wireherd.protocol.version import Version

MIB = 1 << 20


def later(session, handle, size, offset=0):
    into = bytearray(size)
    session.request(GetTensorRequest(record(session.dialect, handle, size), offset, size), into=into)
    return into


def test_call_and_record_reply(linked):
    _, session = linked
    assert session.herd
    assert session.dialect.herd
    assert session.version == Version(8, 0, 0)
    assert session.call(DeviceCountRequest()).count == 2
    assert session.stats.round_trips == 1
    assert session.stats.frames_sent == 1


@pytest.mark.parametrize("size", [0, 1, 1000, 65535, 65536, 3 * MIB + 1])
def test_what_is_set_is_read_back(linked, size):
    _, session = linked
    data = np.random.default_rng(1).integers(0, 256, size, np.uint8)
    handle = alloc(session, max(size, 1))
    put(session, handle, data)
    assert get(session, handle, size) == data.tobytes()


def test_the_callers_memory_may_be_reused_at_once(linked):
    _, session = linked
    handle = alloc(session, 4 * MIB)
    for size in (100, 200_000):
        data = bytearray(b"a" * size)
        put(session, handle, data)
        data[:] = b"b" * size
        assert get(session, handle, size) == b"a" * size


def test_pipelined_gets_land_each_in_its_memory(linked):
    _, session = linked
    handle = alloc(session, MIB)
    data = np.random.default_rng(2).integers(0, 256, MIB, np.uint8).tobytes()
    put(session, handle, data)
    trips = session.stats.round_trips
    sizes = [1, 70_000, 0, 5, 300_000, 16, 65_536]
    into = [later(session, handle, size, offset=n * 1000) for n, size in enumerate(sizes)]
    session.post(MemsetTensorRequest(record(session.dialect, handle, MIB), 0, MIB, 7))
    assert session.outstanding > 0
    session.drain()
    assert session.outstanding == 0
    assert session.stats.round_trips <= trips + 1
    for n, size in enumerate(sizes):
        assert into[n] == data[n * 1000 : n * 1000 + size]
    assert get(session, handle, 3) == b"\7\7\7"
    session.drain()


def test_a_call_among_requests_waits_only_for_its_own(linked):
    _, session = linked
    handle = alloc(session, 10)
    put(session, handle, b"0123456789")
    first = later(session, handle, 10)
    assert session.call(DeviceCountRequest()).count == 2
    assert first == b"0123456789"
    assert session.outstanding == 0


def test_a_refused_call_is_an_exception_and_life_goes_on(linked):
    _, session = linked
    with pytest.raises(OutOfMemory, match="ALLOC_BUFFER: 1099511627776 bytes are more"):
        session.call(AllocBufferRequest(0, 1 << 40))
    with pytest.raises(NoSuchBuffer):
        get(session, 99, 5)
    assert session.failure is None
    assert session.call(DeviceCountRequest()).count == 2


def test_a_failed_post_is_sticky_and_names_command_and_reason(linked):
    peer, session = linked
    session.post(GraphRecomputeRequest(7, 0), flush=True)
    with pytest.raises(WorkerRefused) as caught:
        session.call(DeviceCountRequest())
    assert str(caught.value) == f"worker {peer.address}: GRAPH_RECOMPUTE: no kernel"
    for again in (
        lambda: session.post(DeviceCountRequest()),
        lambda: session.call(DeviceCountRequest()),
        session.drain,
        session.flush,
        session.check,
    ):
        with pytest.raises(WorkerRefused, match="no kernel"):
            again()
    assert isinstance(session.failure, WorkerRefused)
    session.cancel()
    assert isinstance(session.failure, WorkerRefused)


def test_after_a_failed_post_nothing_more_is_run(linked):
    peer, session = linked
    handle = alloc(session, 10)
    session.post(GraphRecomputeRequest(7, 0))
    session.post(MemsetTensorRequest(record(session.dialect, handle, 10), 0, 10, 1))
    with pytest.raises(WorkerRefused):
        get(session, handle, 10)
    assert peer.store.buffers[handle] == bytes(10)


def test_a_refused_request_fails_the_session(linked):
    _, session = linked
    later(session, 99, 5)
    with pytest.raises(WorkerRefused, match="GET_TENSOR: no buffer 99"):
        session.drain()


def test_data_that_nobody_vouches_for_is_not_read(linked):
    _, session = linked
    handle = alloc(session, 10)

    def keep_writing():
        for _ in range(20):
            put(session, handle, bytes(4 * MIB))

    with pytest.raises(WorkerRefused, match="SET_TENSOR: 4194304 bytes at 0"):
        keep_writing()


def test_a_fault_of_the_worker_becomes_a_status(linked):
    _, session = linked
    session.post(BufferClearRequest(1, 0))
    with pytest.raises(WorkerRefused, match="a fault of its own \\(ZeroDivisionError\\)"):
        session.call(DeviceCountRequest())


def test_senseless_use_is_refused_before_anything_is_sent(linked):
    _, session = linked
    tensor = record(session.dialect, 1, 10)
    for wrong in (
        lambda: session.call(GetTensorRequest(tensor, 0, 10)),
        lambda: session.call(GetTensorRequest(tensor, 0, 10), into=bytearray(9)),
        lambda: session.call(GetTensorRequest(tensor, 0, 10), into=bytes(10)),
        lambda: session.call(DeviceCountRequest(), into=bytearray(4)),
        lambda: session.request(DeviceCountRequest(), into=bytearray(4)),
        lambda: session.post(DeviceCountRequest(), b"data"),
        lambda: session.post(SetTensorRequest(tensor[:-1], 0, 0), b"x"),
        lambda: session.post(SetTensorRequest(tensor[:-1], 0, 0), bytes(MIB)),
        lambda: session.post(AllocBufferRequest(-1, 0)),
    ):
        with pytest.raises(LocalProtocolError):
            wrong()
    assert session.call(DeviceCountRequest()).count == 2


def test_opposite_full_buffers_do_not_deadlock(linked):
    """64 MiB come back while 64 MiB go out: a writer that never reads would wait for ever."""
    _, session = linked
    size, piece = 64 * MIB, 8 * MIB
    handle = alloc(session, size)
    data = np.random.default_rng(3).integers(0, 256, piece, np.uint8).tobytes()
    put(session, handle, data)
    answers = [later(session, handle, piece) for _ in range(size // piece)]
    for n in range(size // piece - 1):
        put(session, handle, data, offset=(n + 1) * piece)
    session.drain()
    assert all(answer == data for answer in answers)
    assert get(session, handle, 100, offset=7 * piece) == data[:100]


def test_many_small_posts_beyond_the_window(linked):
    _, session = linked
    session._window = 1 * MIB
    handle = alloc(session, 32 * 1024)
    session.post(GraphRecomputeRequest(0, 300), flush=True)
    for n in range(400):
        put(session, handle, bytes([n % 251]) * 32 * 1024)
        assert len(session._pipe.out) <= session._window + 33 * 1024
    assert get(session, handle, 10) == bytes([399 % 251]) * 10


def test_small_commands_keep_company(linked):
    _, session = linked
    handle = alloc(session, 1000)
    calls = []
    real = session._pipe.stream.send_nowait
    session._pipe.stream.send_nowait = lambda views: calls.append(1) or real(views)
    for n in range(50):
        put(session, handle, bytes(10), offset=n)
    assert not calls
    session.post(GraphRecomputeRequest(0, 0), flush=True)
    assert len(calls) == 1
    assert not session.holding
    session._pipe.last_flush = time.perf_counter() + 1
    session.post(GraphRecomputeRequest(0, 0), flush=True)
    assert len(calls) == 1
    assert session.holding
    get(session, handle, 10)
    assert len(calls) == 2
    put(session, handle, bytes(700), offset=0)
    session.flush()
    assert len(calls) == 3


def test_what_is_held_back_leaves_although_nobody_waits(linked):
    peer, session = linked
    session.call(DeviceCountRequest())
    session._pipe.last_flush = time.perf_counter()
    session.post(FreeBufferRequest(5))
    assert session.holding
    end = time.monotonic() + 5
    while not peer.store.frees and time.monotonic() < end:
        time.sleep(0.01)
    assert peer.store.frees == [5]


def test_a_small_post_costs_little(linked):
    _, session = linked
    message = GraphRecomputeRequest(0, 0)
    best = 1.0
    for _ in range(20):
        begun = time.perf_counter()
        for _ in range(50):
            session.post(message)
        best = min(best, (time.perf_counter() - begun) / 50)
        session.flush()
    assert best < 50e-6  # a few microseconds; the bound is for slow shared machines


def test_requests_from_many_threads(linked):
    _, session = linked
    handle = alloc(session, 8 * 1000)
    failures = []

    def work(n):
        try:
            for round_number in range(30):
                put(session, handle, bytes([n]) * 1000, offset=n * 1000)
                assert get(session, handle, 1000, offset=n * 1000) == bytes([n]) * 1000, round_number
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures


def test_close_wakes_and_is_final(linked):
    peer, session = linked
    assert repr(session) == f"<ClientSession {peer.address} <Dialect 8.0 herd>, open>"
    session.close()
    session.close()
    with pytest.raises(WorkerLost, match="the session is closed"):
        session.call(DeviceCountRequest())
    assert peer.wait_for_ends(2) == ["the peer left", "the peer left"]
    assert "closed" in repr(session)


def test_close_sends_what_is_held_back(linked):
    peer, session = linked
    session._pipe.last_flush = time.perf_counter() + 1
    session.post(FreeBufferRequest(9))
    session.close()
    peer.wait_for_ends(2)
    assert peer.store.frees == [9]


@pytest.mark.parametrize("version", [Version(3, 6), Version(4, 0), Version(5, 0), Version(5, 1), Version(8, 0)])
def test_stock_servers_of_every_version(peers, sessions, version):
    peer = peers(version=version, herd=False)
    session = sessions(peer.address)
    assert not session.herd
    assert session.hello is None
    assert session.dialect.version.line == version.line
    handle = alloc(session, 100)
    put(session, handle, b"x" * 100)
    if version >= (5, 0):
        session.post(MemsetTensorRequest(record(session.dialect, handle, 100), 0, 50, 7))
    session.post(FreeBufferRequest(44), flush=True)
    into = later(session, handle, 100)
    session.drain()
    assert into == (b"\7" * 50 if version >= (5, 0) else b"x" * 50) + b"x" * 50
    session.call(FreeBufferRequest(45))
    session.flush()
    end = time.monotonic() + 5
    while len(peer.store.frees) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    assert peer.store.frees == [44, 45]


def test_what_the_stock_kernel_does_not_take_waits_within_post(peers, sessions):
    session = sessions(peers(herd=False).address)
    handle = alloc(session, 32 * 1024)
    session.post(GraphRecomputeRequest(0, 300), flush=True)
    for n in range(1000):
        put(session, handle, bytes([n % 251]) * 32 * 1024)
        assert len(session._pipe.out) < 40 * 1024
    assert get(session, handle, 10) == bytes([999 % 251]) * 10


def test_failures_of_a_stock_server_are_a_closed_connection(peers, sessions, caplog):
    peer = peers(herd=False)
    session = sessions(peer.address)
    with pytest.raises(WorkerLost, match="lost while GET_TENSOR was pending: it closed the connection"):
        get(session, 99, 10)
    assert peer.wait_for_ends(1) == ["GET_TENSOR failed: no buffer 99"]
    assert "GET_TENSOR failed, closing the connection: no buffer 99" in caplog.text


def test_internal_faults_of_calls_do_not_end_the_session(linked):
    peer, session = linked
    peer.store.span = lambda *_: b"short"
    with pytest.raises(InternalError):
        get(session, 1, 10)
    assert session.call(DeviceCountRequest()).count == 2
