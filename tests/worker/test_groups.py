"""Groups of real workers: formed over their ports, sums the same bits on every rank."""

from __future__ import annotations

import os
import re
import signal
import time

import numpy as np
import pytest
from grouping import Cluster, record

from wireherd.errors import RemoteError, WorkerError
from wireherd.protocol import tensor
from wireherd.protocol.messages_graph import GraphRecomputeRequest
from wireherd.protocol.messages_herd import PingRequest
from wireherd.protocol.messages_peer import (
    GroupJoinRequest,
    GroupLinkRequest,
    GroupOpenRequest,
    GroupPartRequest,
    GroupReduceRequest,
)
from wireherd.session.handshake import open_peer
from wireherd.transport import Address
from wireherd.worker.peers import Permitted
from wireherd.worker.settings import WorkerSettings


def in_order(parts, mask):
    """The sum as the contract has it: F32, in rank order."""
    live = [part for rank, part in enumerate(parts) if mask >> rank & 1]
    total = np.zeros_like(parts[0])
    if live:
        total = live[0].copy()
        for part in live[1:]:
            total = total + part
    return total


@pytest.fixture(scope="module")
def four():
    from wireherd.worker import spawn

    started = [spawn(["-t", "1"]) for _ in range(4)]
    yield [worker.endpoint for worker in started]
    for worker in started:
        worker.stop()


@pytest.mark.parametrize("world", [2, 3, 4])
def test_sums_are_the_same_everywhere(four, world):
    random = np.random.default_rng(world)
    with Cluster(four[:world]) as cluster:
        assert [answer.reason for answer in cluster.join()] == [""] * world
        for count in (1, 3, 576, 16384, 16400, 70_001):
            for mask in ((1 << world) - 1, 1, 1 << (world - 1), 0, (1 << world) - 2):
                parts = [random.standard_normal(count, np.float32) for _ in range(world)]
                for member, part in zip(cluster.members, parts, strict=True):
                    member.put(part)
                cluster.reduce(mask, count)
                cluster.flush()
                got = [member.get(count) for member in cluster.members]
                wanted = in_order(parts, mask).tobytes()
                assert [each.tobytes() == wanted for each in got] == [True] * world, (count, mask)


def member_error(member, seconds=3.0):
    """The failure that a member's session meets, waited for."""
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        try:
            member.session.call(PingRequest(1))
        except WorkerError as error:
            return error, time.monotonic() - begun
        time.sleep(0.02)
    raise AssertionError("the session did not fail")


def session_process(worker, member):
    """The process that serves a member: the one of the worker's that has its connection."""
    found = re.findall(r"session \d+ \(pid (\d+)\)", worker.log())
    return int(found[-1])


def test_a_worker_that_dies_is_named_by_the_others(start):
    started = [start() for _ in range(3)]
    with Cluster([worker.endpoint for worker in started]) as cluster:
        assert all(answer.ok for answer in cluster.join())
        dead = cluster.members[2]
        for member in cluster.members[:2]:
            member.session.post(GroupReduceRequest(cluster.slot, 7, member.row(100)), flush=True)
        time.sleep(0.2)
        os.kill(session_process(started[2], dead), signal.SIGKILL)
        for member in cluster.members[:2]:
            error, took_s = member_error(member)
            assert "rank 2 (127.0.0.1:" in str(error), error
            assert took_s < 1.5


def test_a_graph_that_fails_on_one_rank_frees_the_others(four):
    with Cluster(four[:3]) as cluster:
        assert all(answer.ok for answer in cluster.join())
        cluster.members[0].session.post(GroupReduceRequest(cluster.slot, 7, cluster.members[0].row(100)), flush=True)
        cluster.members[2].session.post(GroupReduceRequest(cluster.slot, 7, cluster.members[2].row(100)), flush=True)
        cluster.members[1].session.post(GraphRecomputeRequest(0, 0xBAD), flush=True)
        for index in (0, 2):
            error, _ = member_error(cluster.members[index])
            assert "rank 1 (" in str(error)
            assert "no kept graph" in str(error)


def test_who_leaves_frees_the_others(four):
    with Cluster(four[:2]) as cluster:
        assert all(answer.ok for answer in cluster.join())
        cluster.members[0].session.post(GroupReduceRequest(cluster.slot, 3, cluster.members[0].row(100)), flush=True)
        cluster.members[1].session.close()
        error, took_s = member_error(cluster.members[0])
        assert "rank 1 (" in str(error)
        assert took_s < 1.5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": 1, "nb": (2, 200, 200, 200)}, "not F32"),
        ({"nb": (8, 800, 800, 800)}, "not contiguous"),
        ({"ne": (10, 10, 1, 1), "nb": (40, 4, 400, 400)}, "not contiguous"),
        ({"count": 1 << 21}, "outside its buffer"),
        ({"data": 64}, "outside its buffer"),
        ({"buffer": 12345}, "no buffer"),
        ({"mask": 8}, "mask"),
        ({"slot": 99}, "no group 99"),
    ],
)
def test_tensors_that_cannot_be_added_end_the_session(four, change, words):
    with Cluster(four[:2]) as cluster:
        assert all(answer.ok for answer in cluster.join())
        member = cluster.members[0]
        given = {"slot": cluster.slot, "mask": 3, "buffer": member.buffer, "data": member.base, "count": 100, **change}
        slot, mask = given.pop("slot"), given.pop("mask")
        row = tensor.pack(record(given.pop("buffer"), given.pop("data"), given.pop("count"), **given), member.dialect)
        member.session.post(GroupReduceRequest(slot, mask, row), flush=True)
        error, _ = member_error(member)
        assert words in str(error)


def test_ranks_of_other_sizes_are_told_apart(four):
    with Cluster(four[:2]) as cluster:
        assert all(answer.ok for answer in cluster.join())
        for member, count in zip(cluster.members, (100, 101), strict=True):
            member.session.post(GroupReduceRequest(cluster.slot, 3, member.row(count)), flush=True)
        errors = [str(member_error(member)[0]) for member in cluster.members]
        assert any("size 404 where 400 is due" in error or "size 400 where 404 is due" in error for error in errors)


def test_a_freed_buffer_is_not_written_to(four):
    with Cluster(four[:2], room=1 << 10) as cluster:
        assert all(answer.ok for answer in cluster.join())
        for member in cluster.members:
            member.put(np.ones(100, np.float32))
        cluster.reduce(3, 100)
        cluster.flush()
        assert (cluster.members[0].get(100) == 2).all()
        for member in cluster.members:
            member.free()
        cluster.reduce(3, 100)
        cluster.flush()
        assert "no buffer" in str(member_error(cluster.members[0])[0])


def test_a_group_can_be_left_and_formed_again(four):
    with Cluster(four[:3]) as cluster:
        for _ in range(3):
            assert all(answer.ok for answer in cluster.join())
            for member in cluster.members:
                member.put(np.full(50, 2, np.float32))
            cluster.reduce(5, 50)
            cluster.flush()
            assert [member.get(50).tolist() == [4.0] * 50 for member in cluster.members] == [True] * 3
            cluster.close_group()


def test_a_worker_dials_only_where_it_may_and_without_a_link_there_is_no_group(four):
    outside = ("93.184.216.34:80", "192.168.1.1:22", "[::ffff:169.254.169.254]:80", "[::]:80")
    with Cluster(four[:2]) as cluster:
        found = cluster.open()
        begun = time.monotonic()
        zero, one = cluster.join([(*outside, "localhost:80", "http://x/", "::::", "127.0.0.1:1"), found[1]])
        assert [zero.ok, one.ok] == [0, 0]
        for address in outside:
            assert f"{Address.parse(address)} lies outside the ranges in which this worker opens links" in one.reason
        assert "127.0.0.1:1 connection refused" in one.reason
        assert "localhost" not in one.reason
        assert "rank 1 (" in zero.reason
        assert time.monotonic() - begun < 6.5
        cluster.close_group()
        for member in cluster.members:
            member.session.call(PingRequest(1))  # the session lives: its client adds by itself


@pytest.mark.parametrize(
    ("settings", "inside", "outside"),
    [
        ({}, ["127.0.0.1:1", "[::1]:1", "unix:/x"], ["10.0.0.1:1", "[fe80::1]:1", "8.8.8.8:1", "localhost:1"]),
        (
            {"host": "0.0.0.0", "insecure": True},
            ["127.0.0.1:1", "10.0.0.1:1", "192.168.0.1:1", "169.254.1.1:1", "[fe80::1%2]:1", "[fd00::1]:1"],
            [
                "8.8.8.8:1",
                "[2001:4860::1]:1",
                "172.32.0.1:1",
                "[::ffff:8.8.8.8]:1",
                "169.254.169.254:80",
                "[::ffff:169.254.169.254]:80",
                "0.0.0.0:1",
                "unix:/run/docker.sock",
            ],
        ),
        ({"peers": ("10.1.0.0/16",)}, ["10.1.2.3:1"], ["127.0.0.1:1", "10.2.0.1:1"]),
        ({"peers": ()}, [], ["127.0.0.1:1"]),
        ({"host": "unix:/tmp/x"}, ["127.0.0.1:1", "8.8.8.8:1"], ["example.com:1"]),
        ({"host": "127.0.0.1,unix:/tmp/x"}, ["127.0.0.1:1"], ["10.0.0.1:1"]),
    ],
)
def test_the_ranges_follow_from_where_a_worker_listens_and_from_its_owner(settings, inside, outside):
    permitted = Permitted(WorkerSettings(**settings))
    assert [permitted(Address.parse(text)) for text in inside] == [None] * len(inside)
    assert all(permitted(Address.parse(text)) for text in outside)
    again = Permitted(WorkerSettings.from_json(WorkerSettings(**settings).to_json()))
    assert all(again(Address.parse(text)) is None for text in inside)


def test_one_rank_of_a_session_and_no_group_twice(four):
    with Cluster(four[:2]) as cluster:
        cluster.open()
        session = cluster.members[0].session
        for request, words in (
            (GroupOpenRequest(cluster.slot, 0, bytes(16), 0, 2), "exists already"),
            (GroupOpenRequest(8, 0, cluster.group, 1, 2), "one rank"),
            (GroupOpenRequest(8, 9, bytes(16), 0, 2), "no device 9"),
            (GroupOpenRequest(8, 0, bytes(16), 5, 2), "no rank 5"),
            (GroupJoinRequest(cluster.slot, ("ab",) * 2, ("x",) * 2), "no name of a session"),
            (GroupJoinRequest(cluster.slot, (), ()), "needs as many"),
            (GroupJoinRequest(55, (), ()), "no group 55"),
        ):
            with pytest.raises(RemoteError, match=words):
                session.call(request)


def peer_stream(worker, session):
    return open_peer(Address.parse(worker), session, timeout_s=3)


def test_strangers_are_shown_out(four):
    with Cluster(four[:2]) as cluster:
        cluster.open()
        name = bytes.fromhex(cluster.members[0].name)
        with pytest.raises(WorkerError):
            peer_stream(four[0], b"x" * 16)
        for group, rank in ((b"y" * 16, 1), (cluster.group, 0), (cluster.group, 2)):
            opened = peer_stream(four[0], name)
            with opened.frames.stream:
                opened.frames.send([opened.connection.request(GroupLinkRequest(group, rank))])
                assert opened.frames.frame() is None
        opened = peer_stream(four[0], name)
        with opened.frames.stream:  # a link that begins with a part of a tensor
            opened.frames.send([opened.connection.request(GroupPartRequest(0, 0, 0, 4), 4), b"abcd"])
            assert opened.frames.frame() is None
        assert all(answer.ok for answer in cluster.join([(four[0],), (four[1],)]))


def test_a_worker_says_where_it_is_reached(start):
    path = f"/tmp/wireherd-test-{os.getpid()}.sock"
    worker = start("-H", f"127.0.0.1,unix:{path}")
    with Cluster([worker.endpoint.split(",", maxsplit=1)[0]]) as cluster:
        addresses = cluster.members[0].session.call(GroupOpenRequest(1, 0, bytes(16), 0, 2)).addresses
        assert addresses[0] == cluster.members[0].session.address.__str__()
        assert f"unix:{path}" in addresses
