"""Members that die, fall silent or break the rules: the others end soon, and name the right one."""

from __future__ import annotations

import contextlib
import time

import numpy as np
import pytest
from linked import NAME, Member, form, pair, randoms, stand

from wireherd.collective import Group, Groups, allreduce, group
from wireherd.collective.links import HEAD, HEAD_SIZE, Link
from wireherd.errors import BadRequest, GraphFailed, LimitExceeded, PeerLost, RemoteProtocolError, TransportError
from wireherd.protocol.dialect import dialect_for
from wireherd.protocol.framing import HERD
from wireherd.protocol.messages_herd import ErrorNotice
from wireherd.protocol.version import NEWEST

PART, ERROR = 141, 134
COUNT = 100


@pytest.fixture
def alone():
    """Rank 0 of two, and the raw stream on which its peer would speak."""
    member = Group(NAME, 0, 2)
    ours, theirs = pair()
    member.put(Link(1, "addr1", ours))
    stand(member)
    yield member, theirs
    member.close()
    theirs.close()


def head(*, opcode=PART, flags=0, status=0, number=1, sequence=0, step=0, kind=0, size=4 * COUNT, length=None):
    return HEAD.pack(opcode, flags, status, number, 16 + size if length is None else length, sequence, step, kind, size)


def reduce(member, count=COUNT, mask=3):
    part = np.ones(count, np.float32)
    member.run(member.bind(b"", mask, part.data.cast("B"), keep=False))
    return part


DATA = np.full(COUNT, 2, np.float32).tobytes()


def test_the_right_bytes_are_taken(alone):
    member, peer = alone
    peer.sendall([head(), DATA])
    assert (reduce(member) == 3).all()
    peer.sendall([head(number=2, sequence=1)])
    peer.sendall([DATA[:7]])
    peer.sendall([DATA[7:]])
    assert (reduce(member) == 3).all()


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (head(size=4 * COUNT - 4), "size 396 where 400 is due"),
        (head(size=1 << 60), "size"),
        (head(sequence=1), "reduction 1 where 0 is due"),
        (head(step=1), "step 1 where 0 is due"),
        (head(kind=30), "type 30 where 0 is due"),
        (head(number=2), "frame 2 where 1 is due"),
        (head(length=5), "length 5 where 416 is due"),
        (head(flags=1), "sent GROUP_PART where part of a tensor is due"),
        (head(opcode=10), "GRAPH_COMPUTE"),
        (b"\x00" * HEAD_SIZE, "ALLOC_BUFFER"),
        (b"\xff" * 500, "255"),
        (b"GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n", "71"),
    ],
)
def test_what_is_not_due_is_refused_by_name_before_its_data_comes(alone, sent, words):
    member, peer = alone
    peer.sendall([sent])
    begun = time.monotonic()
    with pytest.raises(PeerLost, match=r"rank 1 \(addr1\)") as caught:
        reduce(member)
    assert words in str(caught.value)
    assert caught.value.rank == 1
    assert time.monotonic() - begun < 1
    with pytest.raises(PeerLost):  # the group is no more
        reduce(member)


@pytest.mark.parametrize("sent", [b"", head()[:10], head(), head() + DATA[:50]])
def test_the_end_of_a_link_is_noticed_at_once(alone, sent):
    member, peer = alone
    if sent:
        peer.sendall([sent])
    peer.close()
    begun = time.monotonic()
    with pytest.raises(PeerLost, match=r"rank 1 \(addr1\) closed its link"):
        reduce(member)
    assert time.monotonic() - begun < 1


@pytest.mark.parametrize("sent", [b"", head()[:10], head() + DATA[:50]])
def test_silence_ends_in_time(alone, monkeypatch, sent):
    monkeypatch.setattr(group, "SILENCE_S", 0.6)
    member, peer = alone
    if sent:
        peer.sendall([sent])
    begun = time.monotonic()
    with pytest.raises(PeerLost, match=r"rank 1 \(addr1\) sent nothing for"):
        reduce(member)
    assert time.monotonic() - begun < 3


def test_a_peer_that_does_not_read_ends_in_time(alone, monkeypatch):
    monkeypatch.setattr(group, "SILENCE_S", 0.6)
    member, _ = alone
    with pytest.raises(PeerLost, match=r"rank 1 \(addr1\) took nothing for"):
        reduce(member, 1 << 20, mask=1)


def test_idleness_does_not_make_patient(alone, monkeypatch):
    monkeypatch.setattr(group, "SILENCE_S", 0.5)
    member, _ = alone
    time.sleep(1)  # the client thinks
    begun = time.monotonic()
    with pytest.raises(PeerLost, match="sent nothing for"):
        reduce(member)
    assert time.monotonic() - begun < 2


@pytest.mark.parametrize("count", [COUNT, 1 << 20])
def test_dripping_is_silence(alone, monkeypatch, count):
    """One byte at a time keeps no member waiting for long, whether it receives only or sends as well."""
    monkeypatch.setattr(group, "SILENCE_S", 0.6)
    monkeypatch.setattr(allreduce, "SLOWEST", 16 << 20)
    member, peer = alone
    worker = Member(member, [np.ones(count, np.float32)], [3])
    data = head(size=4 * count) + bytes(4 * count)
    begun = time.monotonic()
    for place in range(60):
        if worker.error is not None or not worker.is_alive():
            break
        with contextlib.suppress(TransportError):
            peer.sendall([data[place : place + 1]])
        time.sleep(0.1)
    worker.join(5)
    assert isinstance(worker.error, PeerLost)
    assert "less than" in str(worker.error)
    assert time.monotonic() - begun < 4


def test_patience_grows_with_what_this_rank_itself_computed(alone, monkeypatch):
    monkeypatch.setattr(group, "SILENCE_S", 0.1)
    member, peer = alone
    end = time.process_time() + 0.3
    while time.process_time() < end:  # its own share takes that long: the peer's may take ten times as long
        pass
    worker = Member(member, [np.ones(COUNT, np.float32)], [3])
    time.sleep(1.2)
    peer.sendall([head(), DATA])
    worker.join(5)
    assert worker.error is None
    assert (worker.parts[0] == 3).all()


def notice(reason, opcode=138, status=14):
    body = dialect_for(NEWEST, herd=True).encode(ErrorNotice(opcode, status, 0, reason))
    return HERD.pack(ERROR, 0, 0, 0, len(body)) + body


def test_a_member_that_fails_says_why(alone):
    member, peer = alone
    peer.sendall([notice("rank 1 (addr1) failed: a graph failed")])
    with pytest.raises(PeerLost, match=r"^rank 1 \(addr1\) failed: a graph failed$"):
        reduce(member)


def test_an_error_without_a_reason_or_a_sense_blames_who_sent_it(alone):
    member, peer = alone
    peer.sendall([notice("just so")])
    with pytest.raises(PeerLost, match=r"^rank 1 \(addr1\) failed: just so$"):
        reduce(member)


@pytest.mark.parametrize("length", [0, 1 << 40])
def test_a_senseless_error_frame_blames_who_sent_it(alone, length):
    member, peer = alone
    peer.sendall([HERD.pack(ERROR, 0, 0, 0, length) + bytes(64)])
    with pytest.raises(PeerLost, match=r"rank 1 \(addr1\)"):
        reduce(member)


@pytest.mark.parametrize("count", [COUNT, 3_000_000])
def test_survivors_of_a_death_name_the_dead(count):
    groups = form(3)
    dead = groups.pop()
    members = [Member(each, own, [7]) for each, own in zip(groups, randoms(2, [count]), strict=True)]
    time.sleep(0.2)
    begun = time.monotonic()
    dead.close()
    for member in members:
        member.join(5)
        assert isinstance(member.error, PeerLost), member.error
        assert member.error.rank == 2, str(member.error)
    assert time.monotonic() - begun < 1
    for each in groups:
        each.close()


def test_one_that_cannot_go_on_is_named_by_all_others():
    groups = form(4)
    failed = groups.pop(1)
    members = [Member(each, own, [15]) for each, own in zip(groups, randoms(3, [COUNT]), strict=True)]
    time.sleep(0.1)
    failed.fail(GraphFailed("CPU failed to compute a graph"))
    for member in members:
        member.join(5)
        assert member.error is not None
        assert str(member.error) == "rank 1 (addr1) failed: CPU failed to compute a graph"
    for each in [*groups, failed]:
        each.close()


def test_stopping_wakes_who_waits(alone):
    member, _ = alone
    worker = Member(member, [np.ones(COUNT, np.float32)], [3])
    time.sleep(0.1)
    member.stop()
    worker.join(1)
    assert not worker.is_alive()
    assert isinstance(worker.error, PeerLost)


def test_masks_and_ranks_beyond_the_group_are_refused(alone):
    member, _ = alone
    with pytest.raises(BadRequest, match="mask"):
        member.bind(b"", 4, memoryview(bytearray(8)))
    for rank, world in ((0, 1), (2, 2), (0, 65), (64, 64)):
        with pytest.raises(BadRequest, match="rank"):
            Group(NAME, rank, world)


def test_links_come_once_and_from_members_only():
    member = Group(NAME, 1, 3)
    assert member.expect(2) == 1
    ours, theirs = pair()
    member.put(Link(2, "addr2", ours))
    for rank in (1, 2, 3, 65535):
        with pytest.raises(RemoteProtocolError, match="expects no link"):
            member.expect(rank)
    again, other = pair()
    member.put(Link(2, "addr2", again))
    assert other.recv_into(memoryview(bytearray(1))) == 0  # closed: there is one already
    member.close()
    with pytest.raises(RemoteProtocolError, match="no links any more"):
        member.expect(0)
    for stream in (theirs, other):
        stream.close()


def test_groups_are_few_and_apart():
    groups = Groups()
    groups.open(1, NAME, 0, 2)
    with pytest.raises(BadRequest, match="exists already"):
        groups.open(1, bytes(16), 0, 2)
    with pytest.raises(BadRequest, match="one rank"):
        groups.open(2, NAME, 1, 2)
    for slot in range(2, group.MAX_GROUPS + 1):
        groups.open(slot, bytes([slot]) * 16, 0, 2)
    with pytest.raises(LimitExceeded):
        groups.open(99, b"x" * 16, 0, 2)
    with pytest.raises(RemoteProtocolError, match="does not exist"):
        groups.named(b"y" * 16)
    groups.close(12345)
    with pytest.raises(BadRequest, match="not been joined"):
        groups.get(1).bind(b"", 3, memoryview(bytearray(8)))
    groups.close_all()
    with pytest.raises(BadRequest, match="no group 1"):
        groups.get(1)
