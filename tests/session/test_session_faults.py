"""Workers that die, hang or are cut off, and clients that cancel: one sentence, and in time."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from session_calls import alloc, get, put, within
from store_peer import record

from wireherd.errors import WorkerLost, WorkerRefused
from wireherd.protocol.messages_graph import GraphRecomputeRequest
from wireherd.protocol.messages_stock import (
    DeviceCountRequest,
    GetTensorRequest,
)
from wireherd.session.client import ClientSession
from wireherd.session.group import SessionGroup
from wireherd.testing.faultproxy import FaultProxy
from wireherd.testing.streams import read_exactly
from wireherd.transport import connect

posix = pytest.mark.skipif(os.name == "nt", reason="POSIX signals")


def stop(child):
    """Stop a process, and wait until it has."""
    child.send_signal(signal.SIGSTOP)
    _, status = os.waitpid(child.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)


# ---- a worker that stops, dies or is cut off


@posix
def test_a_stopped_worker_is_noticed_within_a_second_of_waiting(process, sessions):
    endpoint, child = process()
    session = sessions(endpoint)
    handle = alloc(session, 10)
    stop(child)
    with within(1.2, at_least=0.7), pytest.raises(WorkerLost) as caught:
        get(session, handle, 10)
    assert str(caught.value).startswith(f"worker {endpoint}: lost while GET_TENSOR was pending: no sign of life for 0.")


@posix
def test_a_stopped_worker_is_noticed_while_writing_to_it(process, sessions):
    endpoint, child = process()
    session = sessions(endpoint)
    handle = alloc(session, 64 << 20)
    stop(child)
    with within(2.5), pytest.raises(WorkerLost, match="lost: no sign of life"):
        put(session, handle, bytes(64 << 20))


@posix
def test_a_worker_stopped_for_a_moment_is_forgiven(process, sessions):
    endpoint, child = process()
    session = sessions(endpoint)
    stop(child)
    threading.Timer(0.4, child.send_signal, [signal.SIGCONT]).start()
    assert session.call(DeviceCountRequest()).count == 2
    time.sleep(1)
    assert session.call(DeviceCountRequest()).count == 2


def test_a_long_computation_is_no_error(process, sessions):
    endpoint, _ = process()
    session = sessions(endpoint)
    session.post(GraphRecomputeRequest(0, 2500), flush=True)
    with within(6, at_least=2.4):
        assert session.call(DeviceCountRequest()).count == 2
    assert session.stats.wait_s > 2.4


@posix
def test_a_killed_worker_is_noticed_at_once(process, sessions):
    endpoint, child = process()
    session = sessions(endpoint)
    handle = alloc(session, 10)
    session.post(GraphRecomputeRequest(0, 20_000), flush=True)
    threading.Timer(0.2, child.kill).start()
    with within(1), pytest.raises(WorkerLost, match=f"worker {endpoint}: lost while GET_TENSOR was pending: "):
        get(session, handle, 10)


@posix
def test_a_worker_that_dies_while_nobody_waits_is_marked(process, sessions):
    endpoint, child = process()
    session = sessions(endpoint)
    child.kill()
    end = time.monotonic() + 3
    while session.failure is None and time.monotonic() < end:
        time.sleep(0.01)
    assert isinstance(session.failure, WorkerLost)
    with pytest.raises(WorkerLost, match=f"worker {endpoint}: lost"):
        session.post(DeviceCountRequest())


@posix
def test_a_worker_that_dies_while_data_is_sent(process, sessions):
    endpoint, child = process()
    session = sessions(endpoint)
    handle = alloc(session, 64 << 20)
    threading.Timer(0.1, child.kill).start()

    def keep_writing():
        for _ in range(10_000):
            put(session, handle, bytes(8 << 20))

    with within(10), pytest.raises(WorkerLost):
        keep_writing()


@pytest.mark.parametrize("reset", [False, True])
def test_a_cut_connection(peers, sessions, reset):
    peer = peers()
    with FaultProxy(peer.address) as proxy:
        session = sessions(proxy.address)
        assert proxy.accepted == 2
        session.post(GraphRecomputeRequest(0, 1000), flush=True)
        timer = threading.Timer(0.1, lambda: proxy.cut(reset=reset))
        timer.start()
        with within(1), pytest.raises(WorkerLost, match="lost while DEVICE_COUNT was pending"):
            session.call(DeviceCountRequest())


def test_a_stalled_network_is_a_dead_worker(peers, sessions):
    peer = peers()
    with FaultProxy(peer.address) as proxy:
        session = sessions(proxy.address)
        proxy.stall()
        with within(1.2, at_least=0.7), pytest.raises(WorkerLost, match="no sign of life"):
            session.call(DeviceCountRequest())
        proxy.resume()


def test_a_slow_network_is_no_error(peers, sessions):
    peer = peers()
    with FaultProxy(peer.address) as proxy:
        session = sessions(proxy.address)
        handle = alloc(session, 1 << 20)
        proxy.slow(1 << 20)
        proxy.delay(0.05)
        data = os.urandom(1 << 20)
        with within(10, at_least=1.5):
            put(session, handle, data)
            assert get(session, handle, len(data)) == data


def test_a_cut_in_the_middle_of_the_data(peers, sessions):
    peer = peers()
    with FaultProxy(peer.address) as proxy:
        session = sessions(proxy.address)
        handle = alloc(session, 8 << 20)
        proxy.cut_after(1 << 20)

        def write():
            put(session, handle, bytes(8 << 20))
            session.call(DeviceCountRequest())

        with pytest.raises(WorkerLost, match="lost"):
            write()
        assert 1 << 20 <= proxy.forwarded < 2 << 20
        ends = peer.wait_for_ends(2)
        assert any("in the middle of a frame" in end or "reset" in end for end in ends)


def test_only_the_control_connection_ends(peers, sessions):
    """What the stream still says wins; else its end does."""
    peer = peers()
    session = sessions(peer.address)
    peer.streams[1].shutdown()
    end = time.monotonic() + 3
    while session.failure is None and time.monotonic() < end:
        time.sleep(0.01)
    assert "its control connection ended" in str(session.failure)
    with pytest.raises(WorkerLost):
        session.drain()


def test_the_reason_wins_over_the_end_of_the_connection(peers, sessions):
    peer = peers()
    session = sessions(peer.address)
    session.post(GraphRecomputeRequest(7, 0), flush=True)
    time.sleep(0.1)
    peer.streams[1].shutdown()
    end = time.monotonic() + 3
    while session.failure is None and time.monotonic() < end:
        time.sleep(0.01)
    assert isinstance(session.failure, WorkerRefused)
    assert "GRAPH_RECOMPUTE: no kernel" in str(session.failure)


# ---- other threads, signals


def test_cancel_from_another_thread_wakes_who_waits(peers, sessions):
    peer = peers()
    session = sessions(peer.address)
    session.post(GraphRecomputeRequest(0, 20_000), flush=True)
    threading.Timer(0.1, session.cancel).start()
    with within(1), pytest.raises(WorkerLost, match="cancelled by this client"):
        session.call(DeviceCountRequest())
    assert peer.store.cancelled.wait(5)


def test_close_from_another_thread_wakes_who_waits(peers, sessions):
    session = sessions(peers().address)
    session.post(GraphRecomputeRequest(0, 1000), flush=True)
    threading.Timer(0.1, session.close).start()
    with within(1), pytest.raises(WorkerLost, match="the session is closed"):
        session.call(DeviceCountRequest())


@posix
@pytest.mark.parametrize("flags", [[], ["stock"]])
def test_ctrl_c_surfaces_at_once_and_fails_the_session(process, flags):
    endpoint, _ = process(*flags)
    code = f"""
    import time
    from wireherd.protocol.messages_graph import GraphRecomputeRequest
    from wireherd.protocol.messages_stock import DeviceCountRequest
    from wireherd.session.client import ClientSession
    session = ClientSession.connect({endpoint!r})
    session.post(GraphRecomputeRequest(0, 20000), flush=True)
    print("ready", flush=True)
    try:
        session.call(DeviceCountRequest())
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    print(session.failure, flush=True)
    session.close()
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True, env=env
    ) as child:
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.3)
        begun = time.monotonic()
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "interrupted\n"
        assert time.monotonic() - begun < 0.5
        assert child.stdout.readline() == f"worker {endpoint}: interrupted by this client\n"
        assert child.wait(5) == 0


# ---- groups


def test_before_one_waits_all_are_flushed(peers, sessions):
    group = SessionGroup()
    one, other = peers(herd=False), peers(herd=False)  # without a control thread, which flushes too
    first, second = sessions(one.address, group), sessions(other.address, group)
    assert group.sessions == (first, second)
    second.post(GraphRecomputeRequest(0, 0))
    assert second.holding
    first.call(DeviceCountRequest())
    assert not second.holding
    second.post(GraphRecomputeRequest(0, 0))
    assert second.holding
    group.nudge()
    assert not second.holding
    second.close()
    assert group.sessions == (first,)


def test_a_member_that_failed_does_not_disturb_the_others(peers, sessions):
    group = SessionGroup()
    one, other = peers(), peers()
    first, second = sessions(one.address, group), sessions(other.address, group)
    second._pipe.last_flush = time.perf_counter() + 60
    second.post(GraphRecomputeRequest(0, 0), flush=True)
    second._pipe.stream.shutdown()
    assert first.call(DeviceCountRequest()).count == 2
    end = time.monotonic() + 5
    while second.failure is None and time.monotonic() < end:
        time.sleep(0.01)  # where the control connection's thread flushes just now, it is the one to find out
    assert isinstance(second.failure, WorkerLost)
    assert first.failure is None


def test_a_member_that_is_stuck_does_not_hold_up_the_answers_of_another(peers, sessions):
    """The second worker reads on only after a while; until then the first one's answers must be taken."""
    group = SessionGroup()
    one, other = peers(), peers()
    first, second = sessions(one.address, group), sessions(other.address, group)
    handle = alloc(first, 16 << 20)
    second.post(GraphRecomputeRequest(0, 500), flush=True)
    second_handle_data = bytes(30 * 1024)
    for _ in range(400):
        put(second, 1, second_handle_data)
    assert second.holding
    into = bytearray(16 << 20)
    first.request(GetTensorRequest(record(first.dialect, handle, len(into)), 0, len(into)), into=into)
    with within(10):
        first.drain()


def test_the_proxy_itself(peers):
    peer = peers()
    with FaultProxy(peer.address) as proxy:
        proxy.refuse()
        with pytest.raises(WorkerLost, match="connection refused"):
            ClientSession.connect(proxy.address)
        proxy.close()
    with FaultProxy("127.0.0.1:1") as nowhere, connect(nowhere.address) as stream:
        stream.settimeout(5)
        assert stream.recv_into(memoryview(bytearray(1))) == 0


def test_the_proxy_delays(peers):
    with socket.create_server(("127.0.0.1", 0)) as echo:

        def work():
            sock, _ = echo.accept()
            with sock:
                while data := sock.recv(100):
                    sock.sendall(data)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        with (
            FaultProxy(f"127.0.0.1:{echo.getsockname()[1]}") as proxy,
            connect(proxy.address) as stream,
        ):
            stream.settimeout(5)
            proxy.delay(0.1)
            with within(1, at_least=0.19):
                stream.sendall([b"there and back"])
                assert read_exactly(stream, 14) == b"there and back"
            stream.close()
            thread.join(10)
            assert not thread.is_alive()
