"""Pairs as stock 8.0 forms them, against the bytes that a stock server sends."""

from __future__ import annotations

import socket
import threading
import time

import numpy as np
import pytest

from wireherd.collective import pair
from wireherd.collective.pair import BF16_ELEMENTS, await_pair, dial_pair, from_bf16, to_bf16
from wireherd.errors import ConnectError, PeerLost, ReadTimeout, TransportError
from wireherd.transport import Address


def free_address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return Address("tcp", "127.0.0.1", server.getsockname()[1])


def anyone(_address):
    return None


class Rank(threading.Thread):
    """Calls something in a thread."""

    def __init__(self, call):
        super().__init__(daemon=True)
        self.call, self.result, self.error = call, None, None
        self.start()

    def run(self):
        try:
            self.result = self.call()
        except Exception as error:  # noqa: BLE001 - looked at by the test
            self.error = error

    def wait(self):
        self.join(20)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return self.result


@pytest.fixture
def both():
    address = free_address()
    zero = Rank(lambda: await_pair(address, anyone))
    one = dial_pair(address)
    first = zero.wait()
    yield first, one
    first.close()
    one.close()


@pytest.mark.parametrize("count", [1, 576, BF16_ELEMENTS - 1, BF16_ELEMENTS, 500_000])
def test_two_of_ours_add_as_stock_does(both, count):
    random = np.random.default_rng(count)
    parts = [random.standard_normal(count, np.float32) for _ in range(2)]
    own = [part.copy() for part in parts]
    other = Rank(lambda: both[1].reduce(own[1].data.cast("B")))
    both[0].reduce(own[0].data.cast("B"))
    other.wait()
    sent = [from_bf16(to_bf16(part)) for part in parts] if count >= BF16_ELEMENTS else parts
    assert own[0].tobytes() == (parts[0] + sent[1]).tobytes()
    assert own[1].tobytes() == (parts[1] + sent[0]).tobytes()


@pytest.mark.parametrize("rank", [0, 1])
def test_the_bytes_are_those_of_stock(rank):
    """Rank 1's capabilities come first; rank 0's data comes first."""
    address = free_address()
    mine = np.arange(4, dtype=np.float32)
    theirs = np.full(4, 0.5, np.float32)
    if rank:
        with socket.create_server((address.host, address.port)) as server:
            ours = Rank(lambda: dial_pair(address))
            stock, _ = server.accept()
        assert stock.recv(100) == bytes(24)
        stock.sendall(bytes(24))
    else:
        ours = Rank(lambda: await_pair(address, anyone))
        stock = connect_soon(address)
        stock.setblocking(False)
        time.sleep(0.1)
        with pytest.raises(BlockingIOError):
            stock.recv(1)
        stock.setblocking(True)
        stock.sendall(bytes(24))
        assert stock.recv(100) == bytes(24)
    link = ours.wait()
    adding = Rank(lambda: link.reduce(mine.data.cast("B")))
    if rank:
        stock.setblocking(False)
        time.sleep(0.1)
        with pytest.raises(BlockingIOError):
            stock.recv(1)
        stock.setblocking(True)
        stock.sendall(theirs.tobytes())
        assert stock.recv(100) == np.arange(4, dtype=np.float32).tobytes()
    else:
        assert stock.recv(100) == np.arange(4, dtype=np.float32).tobytes()
        stock.sendall(theirs.tobytes())
    adding.wait()
    assert mine.tolist() == [0.5, 1.5, 2.5, 3.5]
    stock.close()
    link.close()


def connect_soon(address):
    end = time.monotonic() + 5
    while True:
        try:
            return socket.create_connection((address.host, address.port))
        except ConnectionRefusedError:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_bf16_is_ggmls():
    values = np.array([0.0, -0.0, 1.0, 1.00390625, 1.01171875, np.inf, -np.inf, 3.4e38, 1e-40, -1.5], np.float32)
    assert to_bf16(values).tolist() == [
        0x0000, 0x8000, 0x3F80, 0x3F80, 0x3F82, 0x7F80, 0xFF80, 0x7F80, 0x0001, 0xBFC0,
    ]  # fmt: skip
    nan = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(from_bf16(to_bf16(nan))).all()
    random = np.random.default_rng(1).standard_normal(10_000, np.float32)
    assert np.abs(from_bf16(to_bf16(random)) - random).max() <= np.abs(random).max() / 256


def test_nobody_comes_and_nobody_is_there(monkeypatch):
    monkeypatch.setattr(pair, "JOIN_S", 0.3)
    with pytest.raises(ReadTimeout):
        await_pair(free_address(), anyone)
    with pytest.raises(ConnectError):
        dial_pair(free_address())


def test_a_stranger_is_turned_away_and_the_wait_goes_on():
    address = free_address()
    turned = []

    def permitted(other):
        turned.append(other)
        return "is a stranger" if len(turned) == 1 else None

    zero = Rank(lambda: await_pair(address, permitted))
    stranger = connect_soon(address)
    assert stranger.recv(1) == b""
    one = dial_pair(address)
    first = zero.wait()
    assert [other.host for other in turned] == ["127.0.0.1"] * 2
    for each in (stranger, one, first):
        each.close()


def test_a_server_that_leaves_or_is_silent_ends_the_sum(both, monkeypatch):
    first, one = both
    part = memoryview(bytearray(64))
    one.close()
    with pytest.raises(PeerLost, match=r"^rank 1 \(127.0.0.1:\d+\) left the pair"):
        first.reduce(part)
    monkeypatch.setattr(pair, "IO_S", 0.3)
    address = free_address()
    zero = Rank(lambda: await_pair(address, anyone))
    silent = dial_pair(address)
    begun = time.monotonic()
    with pytest.raises(PeerLost):
        silent.reduce(part)
    assert time.monotonic() - begun < 2
    silent.close()
    zero.wait().close()


def test_silence_at_the_greeting_ends_too(monkeypatch):
    monkeypatch.setattr(pair, "JOIN_S", 0.3)
    address = free_address()
    zero = Rank(lambda: await_pair(address, anyone))
    mute = connect_soon(address)
    with pytest.raises(TransportError):
        zero.wait()
    mute.close()
