"""Stock servers, strangers and liars: what is no worker of ours is told apart, in one sentence and in time."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest
from session_calls import within

from wireherd.errors import UsageError, VersionMismatch, WorkerLost, WorkerRefused
from wireherd.protocol.framing import STOCK_RESPONSE
from wireherd.protocol.messages_graph import GraphRecomputeRequest
from wireherd.protocol.messages_stock import (
    DeviceCountRequest,
)
from wireherd.session.client import ClientOptions, ClientSession

# ---- stock servers


def test_a_silent_stock_server_is_given_up_after_its_timeout(peers, sessions):
    peer = peers(herd=False)
    session = sessions(peer.address, stock_timeout_s=0.5)
    session.post(GraphRecomputeRequest(0, 5000), flush=True)
    with within(1.5, at_least=0.45), pytest.raises(WorkerLost, match=r"no answer for 0\.5 s"):
        session.call(DeviceCountRequest())


def test_a_slow_stock_server_is_waited_for(peers, sessions):
    peer = peers(herd=False)
    session = sessions(peer.address)
    session.post(GraphRecomputeRequest(0, 1500), flush=True)
    assert session.call(DeviceCountRequest()).count == 2


def test_a_peer_that_closes_at_herd_hello_is_taken_as_stock(peers, sessions, caplog):
    peer = peers(close_on_herd=True)
    session = sessions(peer.address)
    assert not session.herd
    assert session.call(DeviceCountRequest()).count == 2
    assert "going on with plain ggml RPC" in caplog.text


def test_our_extension_can_be_left_out(peers, sessions):
    session = sessions(peers().address, herd=False)
    assert not session.herd
    assert session.call(DeviceCountRequest()).count == 2


def test_a_refused_control_connection_is_said(peers):
    peer = peers(control=False)
    with pytest.raises(WorkerRefused, match=f"worker {peer.address}: HERD_HELLO|no such session"):
        ClientSession.connect(peer.address)


# ---- what is no server of ours


@contextlib.contextmanager
def speaking(answer, *, close=True):
    """A server that reads a little, says `answer` and closes or keeps silent."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = threading.Event()

        def work():
            with contextlib.suppress(OSError):
                while True:
                    sock, _ = listener.accept()
                    with sock:
                        sock.recv(1000)
                        sock.sendall(answer)
                        if not close:
                            done.wait(20)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        done.set()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def failure(endpoint, kind, **options):
    with pytest.raises(kind) as caught:
        ClientSession.connect(endpoint, ClientOptions(**options))
    text = str(caught.value)
    assert endpoint in text
    assert "\n" not in text
    return text


def test_refused_connection():
    with socket.create_server(("127.0.0.1", 0)) as gone:
        endpoint = f"127.0.0.1:{gone.getsockname()[1]}"
    assert failure(endpoint, WorkerLost) == f"worker {endpoint}: connection refused"


def test_nonsense_address():
    with pytest.raises(UsageError):
        ClientSession.connect("http://b:1")


def test_unknown_name():
    assert "is not known" in failure("no-such-host.invalid:1", WorkerLost)


def test_an_http_server():
    with speaking(b"HTTP/1.1 400 Bad Request\r\n\r\n") as endpoint:
        assert "is no ggml-rpc server: its answer to HELLO makes no sense" in failure(endpoint, WorkerRefused)


def test_a_server_that_says_nothing():
    with speaking(b"", close=False) as endpoint, within(2, at_least=0.4):
        assert "did not answer HELLO within 0.5 s" in failure(endpoint, WorkerLost, connect_timeout_s=0.5)


def test_a_server_that_says_half_of_it():
    with speaking(STOCK_RESPONSE.pack(0, 0, 0, 0, 28) + b"\5", close=False) as endpoint, within(2, at_least=0.4):
        assert "did not answer HELLO" in failure(endpoint, WorkerLost, connect_timeout_s=0.5)


def test_a_server_that_closes():
    with speaking(b"") as endpoint:
        assert "no ggml-rpc server" in failure(endpoint, WorkerRefused)


def test_a_server_of_an_unknown_version():
    answer = STOCK_RESPONSE.pack(0, 0, 0, 0, 28) + bytes([10, 0, 0, 0]) + bytes(24)
    with speaking(answer) as endpoint:
        text = failure(endpoint, VersionMismatch)
        assert "10.0.0" in text
        assert "8.0" in text


def test_retrying_waits_for_a_worker_that_is_starting(peers, sessions):
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    import store_peer

    started = []
    timer = threading.Timer(0.4, lambda: started.append(store_peer.Peer(f"127.0.0.1:{port}")))
    timer.start()
    try:
        with ClientSession.connect(f"127.0.0.1:{port}", ClientOptions(retry_s=10)) as session:
            assert session.call(DeviceCountRequest()).count == 2
    finally:
        timer.join()
        started[0].close()
    with within(2), pytest.raises(WorkerLost):
        ClientSession.connect(f"127.0.0.1:{port}", ClientOptions(retry_s=0.3))


# ---- nonsense from a worker, once the session runs


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (b"\x0f\x01\x00\x00\x63\x00\x00\x00" + (4).to_bytes(8, "little") + b"\0\0\0\0", "number 99"),
        (b"\x0f\x01\x00\x00\x01\x00\x00\x00" + (1 << 62).to_bytes(8, "little"), "broke the protocol"),
        (b"\x86\x00\x00\x00\x01\x00\x00\x00" + (1 << 62).to_bytes(8, "little"), "broke the protocol"),
        (b"\xff\x00\x00\x00\x01\x00\x00\x00" + bytes(8), "unasked"),
        (b"\x0f\x07\x00\x00\x01\x00\x00\x00" + bytes(8), "flags"),
    ],
)
def test_nonsense_from_the_worker(peers, sessions, raw, sentence):
    peer = peers("memory")
    session = sessions(peer.address)
    peer.streams[0].sendall([raw])
    with pytest.raises(WorkerLost, match=sentence) as caught:
        session.call(DeviceCountRequest())
    assert str(caught.value).startswith(f"worker {peer.address}: lost")
