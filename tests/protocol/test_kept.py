"""The rule by which both ends keep graphs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wireherd.protocol.dialect import dialect_for
from wireherd.protocol.kept import (
    LAST,
    MAX_TOUCHED,
    SEEN,
    STOCK,
    STOCK_GRAPHS,
    UNASKED,
    KeptGraphs,
    Policy,
    Rule,
    rule_of,
    touched,
)
from wireherd.protocol.tensor import HERD_TENSOR
from wireherd.protocol.version import SUPPORTED, Version

NONE = frozenset()


def at_once(count, nbytes=1000, policy=Policy.FIFO):
    return KeptGraphs(Rule(count, nbytes, policy, sights=1))


def send(kept, *uids, nbytes=10):
    return [kept.sent(uid, nbytes, NONE) for uid in uids]


def test_a_graph_is_kept_at_second_sight():
    kept = KeptGraphs(Rule(4, 1000, Policy.LRU))
    assert not kept.sent(7, 10, NONE).kept
    assert not kept.again(7)
    assert kept.sent(7, 10, NONE).kept
    assert kept.again(7)
    assert kept.nbytes == 10


def test_a_graph_that_went_must_be_seen_twice_again():
    kept = KeptGraphs(Rule(1, 1000, Policy.LRU))
    send(kept, 1, 1)
    assert send(kept, 2, 2)[1].gone == [1]
    assert not kept.sent(1, 10, NONE).kept
    assert kept.uids == [2]


def test_only_the_last_that_were_seen_are_remembered():
    kept = KeptGraphs(Rule(4, 1000, Policy.LRU))
    send(kept, *range(1, SEEN + 2))
    assert not kept.sent(1, 10, NONE).kept, "it was the oldest, and it is seen anew"
    assert kept.sent(3, 10, NONE).kept
    assert not kept.sent(2, 10, NONE).kept, "1 took its place"


def test_the_oldest_go_by_number_and_by_bytes():
    kept = at_once(3, 100)
    assert [result.gone for result in send(kept, 1, 2, 3)] == [[], [], []]
    assert kept.sent(4, 10, NONE).gone == [1]
    assert kept.sent(2, 10, NONE).gone == []  # sent again: now the newest
    assert kept.sent(5, 85, NONE).gone == [3, 4]
    assert kept.uids == [2, 5]
    assert kept.nbytes == 95


@pytest.mark.parametrize(("policy", "left"), [(Policy.FIFO, [2, 3, 4]), (Policy.LRU, [3, 1, 4]), (Policy.RESET, [4])])
def test_what_a_full_cache_forgets(policy, left):
    kept = at_once(3, policy=policy)
    send(kept, 1, 2, 3)
    assert kept.again(1)
    result = kept.sent(4, 10, NONE)
    assert kept.uids == left
    assert result.cleared == (policy is Policy.RESET)
    assert sorted([*result.gone, *left]) == [1, 2, 3, 4]


def test_a_reset_by_bytes():
    kept = at_once(100, 25, Policy.RESET)
    assert [result.cleared for result in send(kept, 1, 2, 3)] == [False, False, True]
    assert kept.nbytes == 10


@pytest.mark.parametrize("policy", Policy)
def test_the_newest_is_kept_whatever_its_size(policy):
    kept = at_once(3, 100, policy)
    kept.sent(1, 10, NONE)
    assert kept.sent(2, 1000, NONE).gone == [1]
    assert kept.uids == [2]
    assert kept.sent(3, 1, NONE).gone == [2]


def test_nothing_is_kept_of_uid_0_or_without_room():
    kept = at_once(4)
    assert not kept.sent(0, 10, NONE).kept
    off = KeptGraphs(Rule(0, 1000, Policy.LRU))
    assert [off.sent(1, 10, NONE).kept for _ in range(3)] == [False] * 3
    assert not off.again(1)


def test_a_freed_buffer_takes_along_what_touches_it():
    kept = KeptGraphs(Rule(8, 1000, Policy.LRU))
    many = frozenset(range(100, 101 + MAX_TOUCHED))
    for uid, buffers in ((1, {5, 6}), (2, {6}), (3, many)):
        kept.sent(uid, 10, frozenset(buffers))
        kept.sent(uid, 10, frozenset(buffers))
    for uid, buffers in ((11, {5}), (12, {6}), (13, many)):
        kept.sent(uid, 10, frozenset(buffers))
    assert kept.freed(5) == [1]
    assert kept.uids == [2, 3]
    assert kept.nbytes == 20
    # seen: 12 is remembered, 11 is not; 13 touches too much to remember what
    assert [kept.sent(uid, 10, NONE).kept for uid in (11, 12, 13)] == [False, True, False]


def test_buffers_are_those_of_all_records():
    rows = np.zeros(4, HERD_TENSOR)
    rows["buffer"] = [9, 0, 1 << 63, 9]
    assert touched(rows) == {9, 1 << 63}
    assert touched(rows[1:2]) == set()


def test_the_rule_of_each_version():
    for version in SUPPORTED:
        assert rule_of(dialect_for(version)) == (STOCK if version >= Version(8, 0) else LAST)
    assert rule_of(dialect_for(Version(8, 0), herd=True)) == UNASKED
    assert (LAST.graphs, STOCK.graphs, STOCK_GRAPHS) == (1, 1024, 1024)


@given(
    st.lists(st.tuples(st.sampled_from("srf"), st.integers(1, 9), st.integers(0, 60))),
    st.sampled_from(Policy),
    st.integers(1, 2),
)
def test_what_goes_is_told(steps, policy, sights):
    kept, told = KeptGraphs(Rule(4, 100, policy, sights)), {}
    for step, uid, size in steps:
        if step == "s":
            result = kept.sent(uid, size, frozenset({uid % 3}))
            told.pop(uid, None)
            for gone in result.gone:
                del told[gone]
            if result.kept:
                told[uid] = size
        elif step == "r":
            assert kept.again(uid) == (uid in told)
        else:
            for gone in kept.freed(uid % 3):
                del told[gone]
            assert not [each for each in told if each % 3 == uid % 3]
        assert set(kept.uids) == set(told)
        assert kept.nbytes == sum(told.values())
        assert len(kept) <= 4
        assert kept.nbytes <= 100 or len(kept) == 1
