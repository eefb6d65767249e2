"""What the client believes its workers to hold, by version; names made of content."""

from __future__ import annotations

import logging
import random

import numpy as np
import pytest

from wireherd.bridge.gather import Handles, Snapshot
from wireherd.client.graphs import (
    CONTENT_BIT,
    GraphCache,
    GraphSet,
    GraphStore,
    LastGraph,
    NoGraphs,
    content_key,
    store_for,
)
from wireherd.ggml.structs import TENSOR
from wireherd.protocol.dialect import dialect_for
from wireherd.protocol.kept import STOCK, KeptGraphs, Policy, Rule, touched
from wireherd.protocol.tensor import HERD_TENSOR
from wireherd.protocol.version import Version

IDS = np.array([1], np.uint64)


def rows(*handles: int) -> np.ndarray:
    made = np.zeros(max(len(handles), 1), HERD_TENSOR)
    made["buffer"] = handles or 0
    return made


def send(store: GraphStore, uid: int, *handles: int) -> None:
    store.sent(uid, IDS, rows(*handles))


@pytest.mark.parametrize(
    ("version", "herd", "kind"),
    [
        ((3, 6), False, LastGraph),
        ((5, 0), False, LastGraph),
        ((7, 0), False, LastGraph),
        ((8, 0), False, GraphSet),
        ((8, 0), True, GraphCache),
    ],
)
def test_rules_by_version(version: tuple[int, int], herd: bool, kind: type) -> None:
    assert isinstance(store_for(dialect_for(Version(*version), herd)), kind)


def test_the_last_graph_only() -> None:
    store = LastGraph()
    send(store, 5)
    assert store.again(5)
    send(store, 6)
    assert not store.again(5)
    assert store.again(6)
    send(store, 0)
    assert not store.again(0)
    assert not store.again(6)
    send(store, 7)
    store.freed(1)
    assert not store.again(7)


def test_nothing_is_kept() -> None:
    store = NoGraphs()
    send(store, 5)
    assert not store.again(5)


def test_a_full_set_is_emptied() -> None:
    store = GraphSet(capacity=3)
    for uid in (1, 2, 3):
        send(store, uid)
    send(store, 4)
    assert [store.again(uid) for uid in (1, 2, 3, 4)] == [False, False, False, True]
    assert store.counts.resets == 1
    send(store, 0)
    assert not store.again(0)
    store.freed(9)
    assert not store.again(4)


def test_a_cache_keeps_at_second_sight_and_what_is_used() -> None:
    store = GraphCache(Rule(2, 1 << 20, Policy.LRU))
    send(store, 1)
    assert not store.again(1)
    send(store, 1)
    send(store, 2)
    send(store, 2)
    assert store.again(1)
    send(store, 3)
    send(store, 3)
    assert [store.again(uid) for uid in (1, 2, 3)] == [True, False, True]
    assert store.counts.resets == 0


def test_a_freed_buffer_drops_what_touches_it() -> None:
    store = GraphCache(Rule(8, 1 << 20, Policy.LRU, sights=1))
    send(store, 1, 10, 11)
    send(store, 2, 11)
    store.freed(10)
    assert not store.again(1)
    assert store.again(2)


def test_resets_are_told_in_a_line_and_the_first_to_everybody(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "wireherd")
    store = GraphCache(Rule(2, 1 << 20, Policy.RESET, sights=1), "device 1 of worker w:1")
    for uid in range(1, 8):
        send(store, uid)
    assert store.counts.resets == 3
    line = "graph cache of device 1 of worker w:1 is full (2 graphs): cleared"
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert told == [("WARNING", line), ("INFO", line), ("INFO", line)]


@pytest.mark.parametrize("seed", range(5))
def test_our_worker_has_what_a_stock_client_counts_on(seed: int) -> None:
    """The set of a stock 8.0 client, which never learns what a freed buffer takes along, against our worker's rule."""
    choose = random.Random(seed)
    client = GraphSet(capacity=4)
    worker = KeptGraphs(STOCK._replace(graphs=4))
    last: dict[int, set[int]] = {}
    for _ in range(600):
        if choose.random() < 0.15:
            handle = choose.randrange(1, 5)
            worker.freed(handle)
            last = {uid: handles for uid, handles in last.items() if handle not in handles}
            continue
        uid = choose.randrange(1, 9)
        if client.again(uid):
            # a graph whose buffer is gone is not asked for again: its tensors are gone on the client too
            assert worker.again(uid) or uid not in last
            continue
        handles = {choose.randrange(1, 5) for _ in range(2)}
        send(client, uid)
        worker.sent(uid, 10, touched(rows(*handles)))
        last[uid] = handles


def snapshot(*, name: bytes = b"a", uses: int = 1, address: int = 4096) -> Snapshot:
    made = np.zeros(2, TENSOR)
    made["name"], made["buffer"] = name, 77
    return Snapshot(0, 1, np.array([address, 8192], np.uint64), made, np.array([uses, 0], np.int32))


def test_names_of_graphs_without_a_uid_say_all_about_them() -> None:
    handles = Handles()
    handles.add(77, 5)
    key = content_key(snapshot(), handles)
    assert key & CONTENT_BIT
    assert key < 1 << 64
    assert key == content_key(snapshot(), handles)
    others = [snapshot(name=b"b"), snapshot(uses=2), snapshot(address=64), snapshot()._replace(n_nodes=2)]
    keys = {content_key(other, handles) for other in others}
    handles.remove(77)
    handles.add(77, 6)  # another buffer at the address of the one before
    keys.add(content_key(snapshot(), handles))
    assert len(keys) == len(others) + 1
    assert key not in keys
