"""Connections over byte-stream devices: how they begin, end, share one stream, and outlive whatever is on it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import termios
import textwrap
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.cable import Cable
from wireherd.errors import ConnectError, ConnectTimeout, PeerClosed, ReadTimeout
from wireherd.testing.streams import device_ends, read_exactly, read_to_end
from wireherd.transport import connect, device, link, link_ends, listen
from wireherd.transport.device_file import open_device
from wireherd.transport.link_channel import MAX_CHANNELS, WINDOW
from wireherd.transport.link_frames import FILLER, GREETING, HEADER, MAGIC, MAX_PAYLOAD, Frame, Kind, Scanner, encode

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX only")

NONCE = b"n" * 16
HELLO = encode(Kind.HELLO, 0, payload=GREETING.pack(1, WINDOW, NONCE))


@pytest.fixture(autouse=True)
def given_back():
    """Names of devices come back as those of others in the next test."""
    yield
    device.close_links()


@pytest.fixture(params=["pty", "socketpair"])
def ends(request):
    """A listener at one end of a device, and the address of the other."""
    with device_ends(request.param) as (near, far), listen(f"device:{far}") as listener:
        yield listener, f"device:{near}"


@pytest.fixture
def wire():
    """A listener at one end of a device whose other end the test itself speaks on."""
    ours, theirs = socket.socketpair()
    with ours, theirs, listen(f"device:/dev/fd/{theirs.fileno()}") as listener:
        ours.settimeout(10)
        yield listener, ours


def works(near, far):
    for stream in (near, far):
        stream.settimeout(10)
    near.sendall([b"ping"])
    assert read_exactly(far, 4) == b"ping"
    far.sendall([b"pong"])
    return read_exactly(near, 4) == b"pong"


def frames_from(sock, until):
    """Frames that came, up to the first of a kind."""
    scanner, found = Scanner(), []
    while not any(frame.kind is until for frame in found):
        data = sock.recv(1 << 16)
        assert data
        found += scanner.feed(data)
    return found


def greet(sock):
    """Greet as a client; the epoch of the link."""
    sock.sendall(FILLER + HELLO)
    return frames_from(sock, Kind.WELCOME)[-1].epoch


def test_one_client_after_the_other(ends):
    listener, address = ends
    for _ in range(3):
        with connect(address) as near, listener.accept(5) as far:
            assert works(near, far)
            assert near.peer == address
            assert far.peer == str(listener.address)
    time.sleep(2 * link_ends.ClientLink.IDLE_S)  # the device is given back, and greeted anew
    with connect(address) as near, listener.accept(5) as far:
        assert works(near, far)


def test_connections_share_a_device_and_a_full_one_holds_up_no_other(ends):
    listener, address = ends
    with connect(address) as one, listener.accept(5) as one_far, connect(address) as two, listener.accept(5) as two_far:
        sent = 0
        while n := one.send_nowait((bytes(1 << 16),)) or one.wait(read=False, write=True, timeout_s=0.3)[1]:
            sent += n if n is not True else 0
        assert sent > WINDOW
        begun = time.monotonic()
        for _ in range(20):
            assert works(two, two_far)
        assert time.monotonic() - begun < 2
        one.shutdown()
        one_far.settimeout(10)
        assert len(read_to_end(one_far)) == sent
        assert works(two, two_far)


def test_the_end_of_one_connection_is_not_that_of_the_link(ends):
    listener, address = ends
    with connect(address) as stays, listener.accept(5) as stays_far:
        for _ in range(2 * MAX_CHANNELS):
            with connect(address) as near, listener.accept(5) as far:
                far.settimeout(5)
                near.sendall([b"x"])
                near.close()
                assert read_to_end(far) == b"x"
        assert works(stays, stays_far)


def test_a_listener_that_closes_ends_its_connections_at_once(ends):
    listener, address = ends
    with connect(address) as near, listener.accept(5) as far:
        assert works(near, far)
        near.settimeout(5)
        begun = time.monotonic()
        listener.close()
        assert near.recv_into(memoryview(bytearray(1))) == 0
        assert time.monotonic() - begun < 2
    with pytest.raises(PeerClosed):
        listener.accept(1)
    with pytest.raises(ConnectError):
        connect(address, 0.5)


def test_nobody_at_the_other_end_is_one_sentence():
    with device_ends("socketpair") as (near, _):
        begun = time.monotonic()
        with pytest.raises(ConnectTimeout, match=r"^no worker answered at the other end for 0\.\d+ s$"):
            connect(f"device:{near}", 0.4)
        assert time.monotonic() - begun < 2
    with device_ends("pty") as (_, far), listen(f"device:{far}") as listener, pytest.raises(ReadTimeout):
        listener.accept(0.1)


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/dev/no-such-device", "there is no such device"),
        ("/dev/fd/987", "there is no such device"),
        ("/dev/null", "it is no byte-stream device"),
        ("/", "is a directory"),
        (__file__, "it is no byte-stream device"),
    ],
)
def test_what_is_no_device_says_so(path, sentence):
    for attempt in (connect, listen):
        with pytest.raises(ConnectError, match=sentence):
            attempt(f"device:{path}")


def test_a_device_has_one_owner_and_gets_its_modes_back():
    with device_ends("pty") as (near, _):
        descriptor = os.open(near, os.O_RDWR | os.O_NOCTTY)
        try:
            before = termios.tcgetattr(descriptor)
            taken = open_device(near)
            assert termios.tcgetattr(descriptor) != before
            with pytest.raises(ConnectError, match="in use by another process"):
                open_device(near)
            taken.close()
            taken.close()
            assert termios.tcgetattr(descriptor) == before
        finally:
            os.close(descriptor)


def test_all_256_bytes_pass_a_terminal():
    with (
        Cable() as cable,
        listen(f"device:{cable.far}") as listener,
        connect(f"device:{cable.near}") as near,
        listener.accept(5) as far,
    ):
        far.settimeout(10)
        data = bytes(range(256)) * 300
        near.sendall([data])
        assert read_exactly(far, len(data)) == data


def test_a_client_that_dies_in_the_middle_of_a_frame_is_followed_by_the_next(wire):
    listener, dead = wire
    epoch = greet(dead)
    dead.sendall(encode(Kind.OPEN, epoch, 1) + encode(Kind.DATA, epoch, 1, b"early"))
    with listener.accept(5) as old:
        old.settimeout(5)
        assert read_exactly(old, 5) == b"early"
        dead.sendall(encode(Kind.DATA, epoch, 1, b"x" * MAX_PAYLOAD)[:-1])  # and no more: it was killed
        with connect(f"device:/dev/fd/{dead.fileno()}") as near, listener.accept(5) as far:
            assert works(near, far)
            assert read_to_end(old) == b""


def test_a_greeting_that_is_said_again_changes_nothing(wire):
    listener, client = wire
    epoch = greet(client)
    client.sendall(encode(Kind.OPEN, epoch, 7))
    with listener.accept(5) as far:
        client.sendall(HELLO)
        assert frames_from(client, Kind.WELCOME)[-1].epoch == epoch
        client.sendall(encode(Kind.DATA, epoch ^ 2, 7, b"stale") + encode(Kind.DATA, epoch, 7, b"fresh"))
        far.settimeout(5)
        assert read_exactly(far, 5) == b"fresh"


@pytest.mark.parametrize(
    "breach",
    [
        lambda epoch: [encode(Kind.DATA, epoch, 1, bytes(MAX_PAYLOAD))] * (WINDOW // MAX_PAYLOAD * 2 + 20),
        lambda epoch: [encode(Kind.CREDIT, epoch, 1, (1).to_bytes(4, "little"))],
        lambda epoch: [encode(Kind.END, epoch, 1), encode(Kind.DATA, epoch, 1, b"late")],
        lambda epoch: [encode(Kind.RESET, epoch, 1)],
    ],
    ids=["window", "credit", "data-after-end", "reset"],
)
def test_a_channel_that_breaks_the_rules_is_reset_and_no_other(wire, breach):
    listener, client = wire
    epoch = greet(client)
    client.sendall(encode(Kind.OPEN, epoch, 2) + encode(Kind.OPEN, epoch, 1))
    with listener.accept(5) as other, listener.accept(5) as broken:
        for frame in breach(epoch):
            client.sendall(frame)
        frames_from(client, Kind.RESET)
        broken.settimeout(5)
        read_to_end(broken)
        client.sendall(encode(Kind.DATA, epoch, 2, b"fine"))
        other.settimeout(5)
        assert read_exactly(other, 4) == b"fine"


def test_more_channels_than_a_link_has_are_refused(wire):
    listener, client = wire
    epoch = greet(client)
    client.sendall(b"".join(encode(Kind.OPEN, epoch, number) for number in range(1, MAX_CHANNELS + 2)))
    assert frames_from(client, Kind.RESET)[-1].channel == MAX_CHANNELS + 1
    client.sendall(encode(Kind.BYE, epoch))
    for _ in range(MAX_CHANNELS):
        with listener.accept(5) as far:
            far.settimeout(5)
            assert read_to_end(far) == b""


def test_noise_within_a_link_ends_it(wire):
    listener, client = wire
    epoch = greet(client)
    client.sendall(encode(Kind.OPEN, epoch, 1))
    with listener.accept(5) as far:
        far.settimeout(5)
        client.sendall(b"bytes from nowhere")
        assert read_to_end(far) == b""


def test_a_silent_end_is_given_up_and_an_idle_one_is_not(monkeypatch):
    monkeypatch.setattr(link, "SILENCE_S", 1.5)
    monkeypatch.setattr(link, "BEAT_S", 0.1)
    with Cable() as cable, listen(f"device:{cable.far}") as listener, connect(f"device:{cable.near}") as near:
        with listener.accept(5) as far:
            time.sleep(2.5)
            assert works(near, far)
            cable.plugged = False
            assert read_to_end(far) == b""
            assert read_to_end(near) == b""
            cable.plugged = True
        with connect(f"device:{cable.near}") as again, listener.accept(5) as again_far:
            assert works(again, again_far)


def test_two_clients_on_one_wire_and_a_wrong_release_say_so():
    ours, theirs = socket.socketpair()

    def answer(reply):
        scanner = Scanner()
        while not (found := scanner.feed(ours.recv(1 << 16))):
            pass
        ours.sendall(reply(found[0].payload[-16:]))

    with ours, theirs:
        for reply, sentence in (
            (lambda _: HELLO, "another client is at the other end"),
            (
                lambda nonce: encode(Kind.WELCOME, 5, payload=GREETING.pack(9, WINDOW, nonce)),
                "version 9 of the link",
            ),
        ):
            thread = threading.Thread(target=answer, args=(reply,))
            thread.start()
            with pytest.raises(ConnectError, match=sentence):
                connect(f"device:/dev/fd/{theirs.fileno()}", 5)
            thread.join()


def test_a_device_that_ends_is_told():
    ours, theirs = socket.socketpair()
    with theirs, listen(f"device:/dev/fd/{theirs.fileno()}") as listener:
        ours.close()
        with pytest.raises(PeerClosed, match="the device ended"):
            listener.accept(5)


def test_another_process_waits_until_the_device_is_given_back():
    code = """
    import sys
    from wireherd.transport import connect
    with connect(sys.argv[1], 10) as stream:
        stream.settimeout(10)
        stream.sendall([sys.argv[2].encode()])
        stream.recv_into(memoryview(bytearray(1)))
    """
    with Cable() as cable, listen(f"device:{cable.far}") as listener:
        command = [sys.executable, "-c", textwrap.dedent(code), f"device:{cable.near}"]
        first = subprocess.Popen([*command, "a"])
        with listener.accept(20) as far:
            far.settimeout(10)
            assert read_exactly(far, 1) == b"a"
            second = subprocess.Popen([*command, "b"])
            time.sleep(0.5)
            far.sendall([b"!"])
            assert first.wait(10) == 0
        with listener.accept(20) as far:
            far.settimeout(10)
            assert read_exactly(far, 1) == b"b"
            far.sendall([b"!"])
        assert second.wait(10) == 0


FRAMES = st.builds(
    lambda kind, epoch, channel, payload: Frame(
        kind,
        channel,
        epoch,
        GREETING.pack(1, 5, NONCE)
        if kind in (Kind.HELLO, Kind.WELCOME)
        else payload[:1] * 4
        if kind is Kind.CREDIT
        else payload
        if kind is Kind.DATA
        else b"",
    ),
    st.sampled_from(Kind),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**16 - 1),
    st.binary(min_size=1, max_size=200),
)
NOISE = st.binary(max_size=60) | st.sampled_from([MAGIC, MAGIC * 3, b"\xa7", FILLER, HELLO[:-1][:30]])


def bytes_of(frame):
    return encode(frame.kind, frame.epoch, frame.channel, frame.payload)


@given(st.lists(FRAMES, max_size=6))
def test_frames_are_found_whole_and_byte_by_byte(frames):
    data = b"".join(map(bytes_of, frames))
    assert Scanner().feed(data) == frames
    slow, found = Scanner(), []
    for at in range(len(data)):
        found += slow.feed(data[at : at + 1])
    assert found == frames
    assert slow.skipped == 0


@given(st.lists(NOISE | FRAMES, max_size=8), FRAMES, st.integers(1, 50))
def test_behind_any_noise_and_a_filler_the_next_frame_is_found(pieces, last, step):
    data = b"".join(piece if isinstance(piece, bytes) else bytes_of(piece) for piece in pieces)
    scanner, found = Scanner(), []
    stream = data + FILLER + bytes_of(last)
    for at in range(0, len(stream), step * 97):
        found += scanner.feed(stream[at : at + step * 97])
    assert found[-1:] == [last]
    assert scanner.skipped + sum(len(bytes_of(frame)) for frame in found) == len(stream)


@given(st.binary(max_size=2000))
def test_bytes_alone_never_make_a_frame(data):
    scanner = Scanner()
    assert scanner.feed(data) == []
    assert scanner.skipped <= len(data)
    assert len(data) - scanner.skipped <= MAX_PAYLOAD + HEADER.size


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(NOISE | FRAMES | st.just("mine"), max_size=12))
def test_whatever_comes_the_next_client_is_served(wire, pieces):
    """Hostile bytes and frames, of no link and of the one that is up: then a client greets and works."""
    listener, hostile = wire
    epoch = greet(hostile)
    for piece in pieces:
        if piece == "mine":
            hostile.sendall(encode(Kind.OPEN, epoch, 3) + encode(Kind.DATA, epoch, 3, b"x" * 99))
        else:
            frame = piece if isinstance(piece, bytes) else bytes_of(piece._replace(epoch=epoch))
            hostile.sendall(frame)
    with connect(f"device:/dev/fd/{hostile.fileno()}") as near:
        near.settimeout(10)
        near.sendall([b"marker"])
        while True:
            with listener.accept(10) as far:
                far.settimeout(10)
                try:
                    if read_exactly(far, 6) == b"marker":
                        break
                except PeerClosed:
                    continue
    device.close_links()  # the wire is the hostile one's again
