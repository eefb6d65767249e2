"""The reader: any cutting of the stream gives the same frames and payloads."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wireherd.errors import LocalProtocolError
from wireherd.protocol.framing import HERD, REPLY, STOCK_REQUEST, STOCK_RESPONSE, Frame, FrameReader, write_frame

FORMATS = [STOCK_REQUEST, STOCK_RESPONSE, HERD]


def stream_of(header, payloads):
    return b"".join(write_frame(header, 6, len(p), sequence=n, flags=REPLY) + p for n, p in enumerate(payloads))


def receive(reader, data, pieces):
    """Feed `data` cut by `pieces`, never more than the reader offers; yield after each."""
    at = 0
    turn = 0
    while at < len(data):
        room = reader.get_buffer()
        assert len(room) > 0
        count = min(pieces[turn % len(pieces)], len(room), len(data) - at)
        room[:count] = data[at : at + count]
        reader.received(count)
        at += count
        turn += 1
        yield


def read_all(header, data, pieces, ways):
    """Read every frame of `data`; each payload by one of the ways."""
    reader = FrameReader(header)
    found = []
    frame = None
    plan = []
    got = b""
    target = None

    def progress():
        nonlocal frame, plan, got, target
        while True:
            if frame is None:
                frame = reader.next_frame()
                if frame is None:
                    return
                way = ways[len(found) % len(ways)]
                head = min(frame.size, 3)
                plan = [("take", head), (way, frame.size - head)] if way != "take" else [("take", frame.size)]
                got = b""
            while plan:
                way, count = plan[0]
                if way == "take":
                    view = reader.take(count)
                    if view is None:
                        return
                    got += bytes(view)
                elif target is None:
                    target = bytearray(count)
                    if way == "into":
                        reader.into(memoryview(target))
                    else:
                        reader.skip(count)
                if way != "take":
                    if reader.remaining:
                        return
                    got += bytes(target)
                    target = None
                plan.pop(0)
            assert reader.payload_left == 0
            found.append((frame, got))
            frame = None

    for _ in receive(reader, data, pieces):
        progress()
    progress()
    assert not reader.buffered
    return found


def skipped(payload, way):
    return payload[:3] + bytes(len(payload) - 3) if way == "skip" and len(payload) > 3 else payload


@pytest.mark.parametrize("header", FORMATS, ids=repr)
@pytest.mark.parametrize("pieces", [[1], [7], [1 << 20], [1, 300, 2]], ids=str)
@pytest.mark.parametrize("way", ["take", "into", "skip"])
def test_any_cutting(header, pieces, way):
    payloads = [b"", b"x", bytes(range(256)) * 3, b"", b"tail"]
    found = read_all(header, stream_of(header, payloads), pieces, [way])
    assert [frame.size for frame, _ in found] == [len(p) for p in payloads]
    assert [got for _, got in found] == [skipped(p, way) for p in payloads]
    if header is HERD:
        assert [frame.sequence for frame, _ in found] == list(range(5))
        assert found[0][0] == Frame(6, REPLY, 0, 0, 0)
    if header is STOCK_REQUEST:
        assert {frame.opcode for frame, _ in found} == {6}
    if header is STOCK_RESPONSE:
        assert {frame.opcode for frame, _ in found} == {-1}


@settings(max_examples=60, deadline=None)
@given(
    header=st.sampled_from(FORMATS),
    payloads=st.lists(
        st.one_of(st.binary(max_size=40), st.integers(0, 200_000).map(lambda n: bytes(range(251)) * (n // 251))),
        max_size=6,
    ),
    pieces=st.lists(st.integers(1, 100_000), min_size=1, max_size=5),
    ways=st.lists(st.sampled_from(["take", "into", "skip"]), min_size=1, max_size=4),
)
def test_any_cutting_at_random(header, payloads, pieces, ways):
    found = read_all(header, stream_of(header, payloads), pieces, ways)
    expected = [skipped(p, ways[n % len(ways)]) for n, p in enumerate(payloads)]
    assert [got for _, got in found] == expected


def test_bulk_lands_in_the_callers_memory_without_a_detour():
    reader = FrameReader(STOCK_REQUEST)
    target = bytearray(1 << 20)
    reader.feed(write_frame(STOCK_REQUEST, 6, len(target)) + b"abc")
    assert reader.next_frame().size == len(target)
    reader.into(memoryview(target))
    assert target[:3] == b"abc"
    assert reader.remaining == reader.needed == len(target) - 3
    room = reader.get_buffer()
    assert len(room) == len(target) - 3  # all that is left and not a byte more: nothing is over-read
    room[0] = 1
    assert target[3] == 1
    with pytest.raises(LocalProtocolError, match="not arrived"):
        reader.take(0)
    assert reader.next_frame() is None
    reader.received(len(room))
    assert reader.remaining == 0
    assert reader.next_frame() is None
    assert reader.needed == 9


def test_declared_sizes_reserve_nothing():
    for size in (12 << 30, 1 << 62, (1 << 64) - 1):
        reader = FrameReader(STOCK_REQUEST)
        reader.feed(write_frame(STOCK_REQUEST, 10, size))
        assert reader.next_frame().size == size
        assert reader.take(size) is None
        for _ in range(3):
            assert len(reader.get_buffer()) <= 1 << 16
            reader.received(1000)
        assert reader.take(size) is None
        assert reader.needed == size - 3000


def test_large_takes_grow_with_the_bytes_and_give_the_memory_back():
    reader = FrameReader(STOCK_REQUEST)
    payload = bytes(range(256)) * (20 << 12)
    reader.feed(write_frame(STOCK_REQUEST, 10, len(payload)))
    reader.next_frame()
    assert reader.take(len(payload)) is None
    reader.feed(payload)
    view = reader.take(len(payload))
    assert view == payload
    assert len(reader.get_buffer()) == 1 << 16
    assert view == payload  # the old memory lives as long as the view does


def test_views_stay_until_the_next_get_buffer():
    reader = FrameReader(STOCK_RESPONSE)
    reader.feed(stream_of(STOCK_RESPONSE, [b"first", b"second"]))
    views = []
    for _ in range(2):
        frame = reader.next_frame()
        views.append(reader.take(frame.size))
    assert [bytes(view) for view in views] == [b"first", b"second"]


def test_exact_reading_for_a_socket_that_will_be_handed_on():
    reader = FrameReader(STOCK_REQUEST)
    stream = stream_of(STOCK_REQUEST, [bytes(24), bytes(296)])
    at = 0
    frame = reader.next_frame()
    asked = []
    while frame is None or reader.payload_left:
        count = reader.needed
        asked.append(count)
        reader.get_buffer()[:count] = stream[at : at + count]
        reader.received(count)
        at += count
        if frame is None:
            frame = reader.next_frame()
        if frame is not None and reader.payload_left:
            reader.take(frame.size)
    assert asked == [9, 24]
    assert at == 33
    assert not reader.buffered


def test_switch_between_frames_only():
    reader = FrameReader(STOCK_RESPONSE)
    reader.feed(write_frame(STOCK_RESPONSE, 0, 2) + b"ok" + write_frame(HERD, 132, 0, sequence=5, flags=REPLY))
    reader.next_frame()
    with pytest.raises(LocalProtocolError, match="between frames"):
        reader.switch(HERD)
    reader.take(2)
    reader.switch(HERD)
    assert reader.next_frame() == Frame(132, REPLY, 0, 5, 0)


def test_misuse_is_our_fault():
    reader = FrameReader(STOCK_REQUEST)
    reader.feed(write_frame(STOCK_REQUEST, 6, 4) + b"data")
    reader.next_frame()
    with pytest.raises(LocalProtocolError, match="not asked for"):
        reader.next_frame()
    for call in (lambda: reader.take(5), lambda: reader.skip(5), lambda: reader.into(memoryview(bytearray(5)))):
        with pytest.raises(LocalProtocolError, match="are left of the payload"):
            call()
    with pytest.raises(LocalProtocolError, match="writable bytes"):
        reader.into(memoryview(b"1234"))
    with pytest.raises(LocalProtocolError, match="more bytes received"):
        reader.received(1 << 20)
    with pytest.raises(LocalProtocolError, match="cannot hold"):
        write_frame(STOCK_REQUEST, 6, 1 << 64)
    busy = FrameReader(STOCK_REQUEST)
    busy.feed(write_frame(STOCK_REQUEST, 6, 4))
    busy.next_frame()
    busy.into(memoryview(bytearray(4)))
    with pytest.raises(LocalProtocolError, match="more bytes received"):
        busy.received(5)
