"""One suite that every transport passes."""

from __future__ import annotations

import hashlib
import threading
import time

import pytest

from wireherd.errors import ConnectError, PeerClosed, ReadTimeout, WireherdError
from wireherd.testing.streams import KINDS, has_ipv6, linked, listening, read_exactly, read_to_end
from wireherd.transport import connect

SCHEMES = [k for k in KINDS if k in {"memory", "tcp", "unix"}]


@pytest.fixture(params=KINDS)
def ends(request):
    if request.param == "tcp6" and not has_ipv6():
        pytest.skip("no IPv6 here")
    with linked(request.param) as pair:
        for stream in pair:
            stream.settimeout(10)
        yield pair


def background(function, *args):
    result = []

    def work():
        try:
            result.append(function(*args))
        except WireherdError as error:
            result.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def join():
        thread.join(30)
        assert not thread.is_alive()
        return result[0]

    return join


def send_again(stream, chunk):
    """A link's thread moves bytes out of a socket that was full: such a stream is full when it stays so."""
    if not stream.peer.startswith("device:"):
        return 0
    time.sleep(0.2)
    return stream.send_nowait((chunk, chunk))


def test_bytes_arrive_in_order_both_ways(ends):
    left, right = ends
    left.sendall([b"one", b"", memoryview(b"two"), bytearray(b"three")])
    assert read_exactly(right, 11) == b"onetwothree"
    right.sendall([b"back"])
    assert read_exactly(left, 4) == b"back"


def test_large_gathered_write_arrives_whole(ends):
    left, right = ends
    parts = [bytes([i % 251]) * (i * 37 % 9000) for i in range(2000)]
    expected = hashlib.sha256(b"".join(parts)).digest()
    size = sum(map(len, parts))
    join = background(left.sendall, parts)
    assert hashlib.sha256(read_exactly(right, size)).digest() == expected
    assert join() is None


def test_both_directions_at_once(ends):
    left, right = ends
    data = bytes(range(256)) * 20000
    joins = [background(left.sendall, [data]), background(right.sendall, [data])]
    reads = [background(read_exactly, left, len(data)), background(read_exactly, right, len(data))]
    assert [join() for join in joins] == [None, None]
    assert [join() == data for join in reads] == [True, True]


def test_send_takes_some_and_recv_gives_some(ends):
    left, right = ends
    assert left.send(b"") == 0
    assert 1 <= left.send(memoryview(b"abcdef")) <= 6
    buffer = bytearray(3)
    assert 1 <= right.recv_into(memoryview(buffer)) <= 3
    assert buffer.startswith(b"a")


def test_send_nowait_fills_up_and_says_zero(ends):
    left, right = ends
    chunk = bytes(1 << 16)
    sent = 0
    while n := left.send_nowait((chunk, chunk)) or send_again(left, chunk):
        sent += n
        assert sent < 1 << 30
    assert left.wait(read=False, write=True, timeout_s=0.02) == (False, False)
    left.settimeout(0.05)
    begun = time.monotonic()
    with pytest.raises(ReadTimeout, match=r"took nothing for 0\.05 s"):
        left.sendall([chunk])
    assert time.monotonic() - begun < 2
    assert read_exactly(right, sent) == bytes(sent)
    assert left.wait(read=True, write=True, timeout_s=5) == (False, True)
    assert left.send_nowait([b"x"]) == 1


def test_recv_times_out_and_stays_usable(ends):
    left, right = ends
    left.settimeout(0.05)
    assert left.gettimeout() == pytest.approx(0.05)
    begun = time.monotonic()
    with pytest.raises(ReadTimeout, match="sent nothing"):
        left.recv_into(memoryview(bytearray(1)))
    assert 0.03 < time.monotonic() - begun < 2
    right.sendall([b"late"])
    assert read_exactly(left, 4) == b"late"


def test_wait_tells_readable(ends):
    left, right = ends
    assert left.wait(read=True, write=False, timeout_s=0.01) == (False, False)
    assert left.wait(read=True, write=True, timeout_s=1) == (False, True)
    right.sendall([b"x"])
    assert left.wait(read=True, write=False, timeout_s=5) == (True, False)


def test_end_of_stream_after_the_last_byte(ends):
    left, right = ends
    right.sendall([b"last words"])
    right.close()
    right.close()
    assert left.wait(read=True, write=False, timeout_s=5)[0]
    assert read_to_end(left) == b"last words"
    assert left.recv_into(memoryview(bytearray(1))) == 0


def test_writing_to_a_closed_peer_raises(ends):
    left, right = ends
    right.close()

    def keep_writing():
        for _ in range(200):
            left.sendall([bytes(1 << 16)])
            time.sleep(0.005)

    with pytest.raises(PeerClosed):
        keep_writing()


def test_shutdown_from_another_thread_wakes_a_reader(ends):
    left, _ = ends
    left.settimeout(None)
    threading.Timer(0.1, left.shutdown).start()
    begun = time.monotonic()
    assert left.recv_into(memoryview(bytearray(1))) == 0
    assert time.monotonic() - begun < 5
    with pytest.raises(PeerClosed):
        left.sendall([b"x"])


def test_shutdown_from_another_thread_wakes_a_writer(ends):
    left, _ = ends
    left.settimeout(None)
    while left.send_nowait((bytes(1 << 16),)):
        pass
    threading.Timer(0.1, left.shutdown).start()
    with pytest.raises(PeerClosed):
        left.sendall([bytes(1 << 22)])


def test_peer_is_named_and_nothing_unsent_when_idle(ends):
    left, right = ends
    assert left.peer
    assert right.peer
    left.sendall([b"x"])
    read_exactly(right, 1)
    end = time.monotonic() + 5
    while left.unsent() and time.monotonic() < end:
        time.sleep(0.01)
    assert left.unsent() == 0
    assert (left.fileno() >= 0) == (right.fileno() >= 0)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_listener_tells_its_address_and_accepts_many(scheme):
    with listening(scheme) as listener:
        with pytest.raises(ReadTimeout):
            listener.accept(0.05)
        for number in range(3):
            with connect(str(listener.address)) as near, listener.accept(5) as far:
                far.settimeout(5)
                near.sendall([bytes([number])])
                assert read_exactly(far, 1) == bytes([number])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_closing_a_listener_wakes_who_accepts_and_refuses_who_connects(scheme):
    with listening(scheme) as listener:
        threading.Timer(0.1, listener.close).start()
        with pytest.raises(PeerClosed):
            listener.accept(30)
        with pytest.raises(ConnectError):
            connect(listener.address)
        listener.close()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_address_in_use_is_refused(scheme):
    with listening(scheme) as listener:
        from wireherd.transport import listen

        with pytest.raises(ConnectError, match="already in use"):
            listen(listener.address)
        with connect(listener.address) as near, listener.accept(5):
            assert near.peer == str(listener.address)
