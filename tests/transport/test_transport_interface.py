"""Connections through a named interface, or from a named address of this machine."""

from __future__ import annotations

import socket
import sys

import pytest

from wireherd.errors import ConnectError, UsageError
from wireherd.testing.streams import has_ipv6, read_exactly
from wireherd.transport import connect, interface, listen

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
named = pytest.mark.skipif(sys.platform == "win32", reason="no names of interfaces")
linux = pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.0/8 is all local on Linux only")


def works(near, far):
    far.settimeout(5)
    near.sendall([b"x"])
    return read_exactly(far, 1) == b"x"


@linux
def test_from_a_local_address():
    with listen("127.0.0.1:0") as listener, connect(f"{listener.address}@127.0.0.9") as near, listener.accept(5) as far:
        assert far.peer.startswith("127.0.0.9:")
        assert near.peer == f"{listener.address}@127.0.0.9"
        assert works(near, far)


@named
@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_through_an_interface(host):
    if ":" in host and not has_ipv6():
        pytest.skip("no IPv6 here")
    with listen(f"{host}:0") as listener, connect(f"{listener.address}@{LOOPBACK}") as near, listener.accept(5) as far:
        assert works(near, far)


@linux
@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_through_an_interface_where_the_system_denies_it(host, monkeypatch):
    """Then the interface's own address decides the route."""
    if ":" in host and not has_ipv6():
        pytest.skip("no IPv6 here")
    monkeypatch.setattr(interface, "_bind_to_device", lambda *_: False)
    with listen(f"{host}:0") as listener, connect(f"{listener.address}@lo") as near, listener.accept(5) as far:
        assert far.peer.startswith(host)
        assert works(near, far)


@linux
def test_the_interface_is_really_the_way():
    """A socket kept to an interface does not reach an address that only another one has."""
    with listen("127.0.0.1:0") as listener:
        other = next((name for _, name in socket.if_nameindex() if name != "lo"), None)
        if other is None:
            pytest.skip("this machine has one interface only")
        with pytest.raises(ConnectError):
            connect(f"{listener.address}@{other}", 0.3)


@named
@pytest.mark.parametrize(
    ("via", "sentence"),
    [
        ("nowhere7", "this machine has no network interface 'nowhere7'"),
        ("::1", "::1 and the peer are of different IP versions"),
        ("192.0.2.77", "it is not an address of this machine"),
    ],
)
def test_a_way_that_is_none_says_so(via, sentence):
    with listen("127.0.0.1:0") as listener, pytest.raises(ConnectError) as caught:
        connect(f"{listener.address}@{via}")
    assert str(caught.value) == sentence


@linux
def test_an_interface_without_such_an_address_says_so(monkeypatch):
    monkeypatch.setattr(interface, "_bind_to_device", lambda *_: False)
    monkeypatch.setattr(interface, "_address_v4", lambda *_: None)
    with listen("127.0.0.1:0") as listener, pytest.raises(ConnectError, match="lo has no IPv4 address"):
        connect(f"{listener.address}@lo")


def test_nobody_listens_through_an_interface():
    with pytest.raises((ConnectError, UsageError), match="without '@lo'"):
        listen("127.0.0.1:0@lo")


@linux
def test_addresses_by_the_system():
    with socket.socket() as sock:
        assert interface._address_v4(sock, "lo") == "127.0.0.1"
        assert interface._address_v4(sock, "nowhere7") is None
    if has_ipv6():
        assert [str(each) for each in interface._addresses_v6("lo")] == ["::1"]
    assert interface._addresses_v6("nowhere7") == []
