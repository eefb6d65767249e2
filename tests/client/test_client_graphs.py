"""Both ends must agree on what is kept without a word between them."""

from __future__ import annotations

import random

import pytest

from wireherd.client.graphs import GraphQueue, GraphSet, LastGraph, NoGraphs, store_for
from wireherd.protocol.dialect import dialect_for
from wireherd.protocol.kept import KeptGraphs
from wireherd.protocol.version import Version


@pytest.mark.parametrize(
    ("version", "herd", "kind"),
    [
        ((3, 6), False, LastGraph),
        ((5, 0), False, LastGraph),
        ((7, 0), False, LastGraph),
        ((8, 0), False, GraphSet),
        ((8, 0), True, GraphQueue),
    ],
)
def test_rules_by_version(version: tuple[int, int], herd: bool, kind: type) -> None:
    assert isinstance(store_for(dialect_for(Version(*version), herd)), kind)


def test_the_last_graph_only() -> None:
    store = LastGraph()
    store.sent(5, (), 10)
    assert store.holds(5)
    store.sent(6, (), 10)
    assert not store.holds(5)
    assert store.holds(6)
    store.sent(0, (), 10)
    assert not store.holds(0)
    assert not store.holds(6)
    store.sent(7, (), 10)
    store.freed(1)
    assert not store.holds(7)


def test_nothing_is_kept() -> None:
    store = NoGraphs()
    store.sent(5, (), 10)
    assert not store.holds(5)


def test_a_full_set_is_emptied() -> None:
    store = GraphSet(3)
    for uid in (1, 2, 3):
        store.sent(uid, (), 10)
    store.sent(4, (), 10)
    assert [store.holds(uid) for uid in (1, 2, 3, 4)] == [False, False, False, True]
    store.sent(0, (), 10)
    assert not store.holds(0)
    store.freed(9)
    assert not store.holds(4)


def test_the_oldest_leaves_the_queue() -> None:
    store = GraphQueue(KeptGraphs(3))
    for uid in (1, 2, 3, 0, 4):
        store.sent(uid, (), 10)
    assert [store.holds(uid) for uid in range(5)] == [False, False, True, True, True]


def test_a_freed_buffer_drops_what_touches_it() -> None:
    store = GraphQueue()
    store.sent(1, [10, 11], 10)
    store.sent(2, [11], 10)
    store.freed(10)
    assert not store.holds(1)
    assert store.holds(2)


@pytest.mark.parametrize("kind", [GraphSet, GraphQueue])
@pytest.mark.parametrize("seed", range(5))
def test_our_worker_has_what_a_client_counts_on(kind: type, seed: int) -> None:
    """Any stream of graphs and freed buffers, against the rule on top of worker/graphs.py, also as a stock client."""
    choose = random.Random(seed)
    store = kind(4) if kind is GraphSet else kind(KeptGraphs(4))
    kept: dict[int, set[int]] = {}
    for _ in range(600):
        if choose.random() < 0.15:
            handle = choose.randrange(4)
            store.freed(handle)
            kept = {uid: touched for uid, touched in kept.items() if handle not in touched}
            continue
        uid = choose.randrange(1, 9)
        if store.holds(uid):
            assert uid in kept
            continue
        touched = {choose.randrange(4) for _ in range(2)}
        store.sent(uid, touched, 10)
        if kept.pop(uid, None) is None and len(kept) >= 4:
            del kept[next(iter(kept))]
        kept[uid] = touched
