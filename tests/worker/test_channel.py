"""The channel between the supervisor and its processes: framing, sockets that change hands, ends that vanish."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wireherd.errors import PeerClosed, TransportError
from wireherd.worker import channel
from wireherd.worker.channel import Channel, Decoder, Kind, Message, pair
from wireherd.worker.loop_channel import AsyncChannel

MESSAGES = st.builds(
    Message,
    kind=st.sampled_from(Kind),
    number=st.integers(0, 2**64 - 1),
    text=st.text(max_size=50),
    data=st.binary(max_size=200),
)


@given(st.lists(MESSAGES, max_size=5), st.integers(1, 64))
def test_messages_survive_any_cutting(messages, step):
    raw = b"".join(channel.encode(message, 0) for message in messages)
    decoder = Decoder()
    found = []
    for start in range(0, len(raw), step):
        found += decoder.feed(raw[start : start + step], [])
    assert found == messages


def test_garbage_is_refused():
    with pytest.raises(TransportError):
        Decoder().feed(bytes(range(200, 240)), [])


def test_a_size_beyond_reason_is_refused_before_it_is_waited_for():
    raw = channel._HEADER.pack(Kind.TAKE, 0, 0, 1 << 31, 0, 0)
    with pytest.raises(TransportError):
        Decoder().feed(raw, [])


def test_an_announced_socket_that_does_not_come_is_refused():
    raw = channel._HEADER.pack(Kind.TAKE, channel._HAS_SOCKET, 0, 0, 0, 0)
    with pytest.raises(TransportError):
        Decoder().feed(raw, [])


def test_a_socket_changes_hands():
    left, right = pair()
    sender, receiver = Channel(left), Channel(right)
    ours, passed = socket.socketpair()
    sender.send(Message(Kind.PROBE, 1))
    sender.send(Message(Kind.TAKE, text="to you", data=b"read already", sock=passed))
    sender.send(Message(Kind.PROBE, 2))
    assert passed.fileno() == -1, "the sender kept a copy"
    got = [receiver.receive() for _ in range(3)]
    assert [(message.kind, message.number) for message in got] == [(Kind.PROBE, 1), (Kind.TAKE, 0), (Kind.PROBE, 2)]
    assert (got[1].text, got[1].data) == ("to you", b"read already")
    with ours, got[1].sock as taken:
        assert not os.get_inheritable(taken.fileno())
        ours.sendall(b"hello")
        assert taken.recv(10) == b"hello"
    sender.close()
    assert receiver.receive() is None
    receiver.close()


def test_sending_to_a_dead_end_is_an_error():
    left, right = pair()
    right.close()
    sender = Channel(left)
    with pytest.raises(PeerClosed):
        sender.send(Message(Kind.READY))
    sender.close()


def test_the_supervisors_end_never_blocks_and_keeps_order():
    async def scenario():
        left, right = pair()
        received, ended = [], asyncio.Event()
        came = asyncio.Event()

        def on_message(message):
            received.append(message)
            came.set()

        near = AsyncChannel(left, on_message, ended.set)
        far = Channel(right)
        passed = []
        for number in range(300):
            ours, theirs = socket.socketpair() if number % 100 == 7 else (None, None)
            passed.append(ours)
            near.send(Message(Kind.TAKE, number, data=bytes(8000), sock=theirs))
        far.send(Message(Kind.READY, text="{}"))

        def drain():
            return [far.receive() for _ in range(300)]

        got = await asyncio.get_running_loop().run_in_executor(None, drain)
        assert [message.number for message in got] == list(range(300))
        for message, ours in zip(got, passed, strict=True):
            assert (message.sock is None) == (ours is None)
            if ours is not None:
                ours.sendall(b"x")
                assert message.sock.recv(1) == b"x"
                ours.close()
                message.sock.close()
        await asyncio.wait_for(came.wait(), 2)
        assert received[0].kind is Kind.READY
        far.close()
        await asyncio.wait_for(ended.wait(), 2)

    asyncio.run(scenario())


def test_closing_with_a_socket_still_queued_closes_it():
    async def scenario():
        left, right = pair()
        near = AsyncChannel(left, lambda message: None, lambda: None)
        for _ in range(200):
            near.send(Message(Kind.TAKE, data=bytes(60000)))
        ours, theirs = socket.socketpair()
        near.send(Message(Kind.TAKE, sock=theirs))
        assert theirs.fileno() != -1
        near.close()
        assert theirs.fileno() == -1
        mine, late = socket.socketpair()
        near.send(Message(Kind.TAKE, sock=late))
        assert late.fileno() == -1
        mine.close()
        ours.close()
        right.close()

    asyncio.run(scenario())
