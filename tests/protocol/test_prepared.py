"""A prepared command gives the bytes that the message gives, with the next number, in every dialect."""

from __future__ import annotations

import pytest

from wireherd.errors import LocalProtocolError
from wireherd.protocol.connection import ClientConnection, State
from wireherd.protocol.dialect import dialect_for
from wireherd.protocol.framing import HERD
from wireherd.protocol.messages_graph import GraphRecomputeRequest
from wireherd.protocol.messages_herd import HerdHelloResponse, PingRequest
from wireherd.protocol.messages_stock import DeviceCountRequest, HelloRequest
from wireherd.protocol.version import NEWEST, Version


def connected(version: Version, *, herd: bool = False) -> ClientConnection:
    client = ClientConnection()
    client.state = State.STREAM
    client.dialect = dialect_for(version, herd=herd)
    if herd:
        client.hello = HerdHelloResponse(features=0)
        client.outgoing = client.incoming = HERD
    return client


@pytest.mark.parametrize(
    ("version", "herd"), [(Version(5, 0), False), (Version(7, 0), False), (NEWEST, False), (NEWEST, True)], ids=str
)
def test_the_same_bytes(version: Version, herd: bool) -> None:
    one, two = connected(version, herd=herd), connected(version, herd=herd)
    one.sequence = two.sequence = (1 << 32) - 2
    message = GraphRecomputeRequest(3, 77 if version >= Version(8, 0) else 0)
    prepared = one.prepare(message)
    for _ in range(4):
        assert one.repeat(prepared) + prepared.body == two.request(message)
    assert one.sequence == two.sequence
    assert one.pending == 0


def test_only_what_is_not_answered_and_carries_nothing() -> None:
    client = connected(NEWEST, herd=True)
    for message in (PingRequest(1), DeviceCountRequest(), HelloRequest()):
        with pytest.raises(LocalProtocolError):
            client.prepare(message)
    with pytest.raises(LocalProtocolError, match="is no request"):
        connected(NEWEST).prepare(HerdHelloResponse())


def test_not_after_the_end() -> None:
    client = connected(NEWEST)
    prepared = client.prepare(GraphRecomputeRequest(0, 1))
    client.close()
    with pytest.raises(LocalProtocolError, match="state closed"):
        client.repeat(prepared)
