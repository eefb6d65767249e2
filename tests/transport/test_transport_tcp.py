from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest

from wireherd.errors import ConnectError, ConnectTimeout, PeerClosed
from wireherd.testing.streams import linked, read_exactly
from wireherd.transport import Address, connect, listen, sockets, tcp


def test_refused_says_so():
    with listen("127.0.0.1:0") as listener:
        address = listener.address
    with pytest.raises(ConnectError, match=r"^connection refused$"):
        connect(address)


def test_unknown_name_says_so():
    with pytest.raises(ConnectError, match=r"name 'no-such-host\.invalid' is not known"):
        connect("no-such-host.invalid:1")


def test_a_name_that_is_no_name_says_so():
    with pytest.raises(ConnectError, match="is not known"):
        connect(Address("tcp", "x" * 300, 1))


def test_silent_name_service_is_bounded(monkeypatch):
    real = socket.getaddrinfo

    def slow(host, *args, flags=0, **rest):
        if flags & socket.AI_NUMERICHOST:
            return real(host, *args, flags=flags, **rest)
        time.sleep(1)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with pytest.raises(ConnectTimeout, match="name service"):
        connect("somewhere:1", 0.1)
    time.sleep(1)


def test_an_address_that_swallows_everything_times_out():
    """A full backlog on Linux drops further attempts, as a black hole does."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        held = []
        for _ in range(8):
            s = socket.socket()
            s.setblocking(False)
            s.connect_ex(full.getsockname())
            held.append(s)
        begun = time.monotonic()
        try:
            with pytest.raises(ConnectTimeout, match=r"for 0\.3 s"):
                connect(Address("tcp", *full.getsockname()), 0.3)
        finally:
            for s in held:
                s.close()
        assert time.monotonic() - begun < 2


def test_every_address_of_a_name_is_tried(monkeypatch):
    with listen("127.0.0.1:0") as good, listen("127.0.0.1:0") as gone:
        gone.close()
        rows = [tcp._lookup(Address("tcp", "127.0.0.1", x.address.port), 0)[0] for x in (gone, good)]
        monkeypatch.setattr(tcp, "_resolve", lambda *_: rows)
        with connect("somewhere:1") as near, good.accept(5) as far:
            far.sendall([b"x"])
            assert read_exactly(near, 1) == b"x"


def test_a_swallowing_address_does_not_hold_up_the_next(monkeypatch):
    with socket.socket() as full, listen("127.0.0.1:0") as good:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        held = []
        for _ in range(8):
            s = socket.socket()
            s.setblocking(False)
            s.connect_ex(full.getsockname())
            held.append(s)
        rows = [
            tcp._lookup(Address("tcp", "127.0.0.1", port), 0)[0] for port in (full.getsockname()[1], good.address.port)
        ]
        monkeypatch.setattr(tcp, "_resolve", lambda *_: rows)
        begun = time.monotonic()
        with connect("somewhere:1", 5), good.accept(5):
            assert time.monotonic() - begun < 2
        for s in held:
            s.close()


def test_options_on_both_ends():
    with linked("tcp") as (near, far):
        for stream in (near, far):
            sock = stream._sock
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            if sys.platform == "linux":
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 2
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 3
        if sys.platform == "linux":
            assert far._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
            assert near._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0


def test_reset_is_a_closed_peer():
    with linked("tcp") as (near, far):
        near.settimeout(5)
        far._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        far.close()
        with pytest.raises(PeerClosed, match="reset"):
            near.recv_into(memoryview(bytearray(1)))


def test_from_socket_of_a_dead_connection():
    sock = socket.socket()
    with pytest.raises(ConnectError):
        tcp.from_socket(sock)
    assert sock.fileno() == -1


def test_use_after_close_is_an_error_of_ours():
    with linked("tcp") as (near, _):
        near.close()
        with pytest.raises(PeerClosed, match="closed on this side"):
            near.recv_into(memoryview(bytearray(1)))
        with pytest.raises(PeerClosed, match="closed on this side"):
            near.sendall([b"x"])
        near.settimeout(1)
        near.shutdown()
        assert near.unsent() == 0
        assert near.wait(read=True, write=False, timeout_s=0) == (True, False)


def test_a_connection_that_met_itself_is_refused():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        if sock.connect_ex(sock.getsockname()) == 0:
            assert tcp._met_itself(sock)


def test_one_call_is_bounded():
    views = [bytes(10), memoryview(bytearray(100)), bytes(5)]
    assert sockets._bounded(views) is views
    assert len(sockets._bounded([b"x"] * 2000)) == 512


def test_a_call_carries_at_most_its_limit(monkeypatch):
    monkeypatch.setattr(sockets, "_MAX_CALL", 7)
    with linked("tcp") as (near, far):
        far.settimeout(5)
        assert near.send_nowait([b"0123456789"]) == 7
        assert near.send_nowait([b"abcd", b"efgh", b"i"]) == 7
        assert read_exactly(far, 14) == b"0123456abcdefg"
        near.sendall([b"0123456789", b"abcd"])
        assert read_exactly(far, 14) == b"0123456789abcd"


def test_sentences_have_no_numbers():
    assert sockets.sentence(OSError(errno.ECONNRESET, "x")) == "connection reset by the peer"
    assert sockets.sentence(OSError(errno.EXDEV, "Invalid cross-device link")) == "invalid cross-device link"
    assert sockets.sentence(OSError("odd")) == "odd"
    assert isinstance(sockets.connect_error(OSError(errno.ETIMEDOUT, "x")), ConnectTimeout)


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_ctrl_c_interrupts_a_receive():
    code = """
    import socket, time
    from wireherd.testing.streams import linked
    with linked("tcp") as (near, far):
        near.settimeout(60)
        print("ready", flush=True)
        try:
            near.recv_into(memoryview(bytearray(1)))
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.1)
        begun = time.monotonic()
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "interrupted\n"
        assert time.monotonic() - begun < 1
        assert child.wait(10) == 0


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no unix sockets")
def test_unix_socket_left_by_a_dead_process_is_replaced(tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with listen(f"unix:{path}") as listener, connect(listener.address), listener.accept(5):
        pass
    assert not path.exists()


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no unix sockets")
def test_unix_path_that_is_no_socket_is_left_alone(tmp_path):
    path = tmp_path / "file"
    path.write_text("keep")
    with pytest.raises(ConnectError, match="already in use"):
        listen(f"unix:{path}")
    assert path.read_text() == "keep"
    with pytest.raises(ConnectError, match="there is no such socket"):
        connect(f"unix:{tmp_path / 'none'}")
