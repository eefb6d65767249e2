"""Several addresses of one worker: the quickest is kept, and nothing is left of the others."""

from __future__ import annotations

import socket
import time

import pytest

from wireherd.errors import ConnectError, UsageError, WorkerLost
from wireherd.protocol.messages_stock import DeviceCountRequest
from wireherd.session.racing import quickest
from wireherd.testing.faultproxy import FaultProxy
from wireherd.transport import Address

A, B, C = (Address("tcp", name, 1) for name in "abc")


def test_the_shortest_round_trip_wins_not_the_first_answer():
    def measure(address):
        if address is A:
            return 0.005
        time.sleep(0.02)
        return 0.001

    assert quickest([A, B], measure) is B


def test_one_that_never_answers_holds_nobody_up():
    def measure(address):
        if address is A:
            time.sleep(2)
        elif address is C:
            raise ConnectError("connection refused")
        return 0.001

    begun = time.monotonic()
    assert quickest([A, B, C], measure) is B
    assert time.monotonic() - begun < 1


def test_all_that_fail_are_named():
    def measure(address):
        if address is C:
            raise ZeroDivisionError("odd")
        raise WorkerLost("w", "connection refused")

    with pytest.raises(ConnectError) as caught:
        quickest([A, B, C], measure)
    assert str(caught.value) == (
        "none of its addresses leads there: a:1 (connection refused), b:1 (connection refused), "
        "c:1 (ZeroDivisionError: odd)"
    )


def test_a_session_goes_by_the_quickest_and_its_control_connection_too(workers, sessions):
    (worker,) = workers(1)
    with FaultProxy(worker.endpoint) as slow, socket.socket() as deaf:
        slow.delay(0.03)
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(1)
        silent = f"127.0.0.1:{deaf.getsockname()[1]}"
        endpoint = f"{slow.address}+{silent}+{worker.endpoint}+127.0.0.1:{free_port()}"
        begun = time.monotonic()
        session = sessions(endpoint)
        assert time.monotonic() - begun < 4
        assert session.endpoint == endpoint
        assert str(session.address) == worker.endpoint
        assert session._control is not None
        peer = session._control._frames.stream._sock.getpeername()
        assert peer[1] == worker.port
        assert session.call(DeviceCountRequest()).count >= 1
        assert worker.errors().count(" connected: session") == 1
        assert "of another version" not in worker.errors()


def test_when_none_answers_one_sentence_names_them_all(sessions):
    ports = [free_port(), free_port()]
    with pytest.raises(WorkerLost) as caught:
        sessions(f"127.0.0.1:{ports[0]}+127.0.0.1:{ports[1]}@nowhere7")
    assert str(caught.value) == (
        f"worker 127.0.0.1:{ports[0]}+127.0.0.1:{ports[1]}@nowhere7: none of its addresses leads there: "
        f"127.0.0.1:{ports[0]} (connection refused), "
        f"127.0.0.1:{ports[1]}@nowhere7 (this machine has no network interface 'nowhere7')"
    )
    with pytest.raises(UsageError):
        sessions("a:1++b:1")


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]
