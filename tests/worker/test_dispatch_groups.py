"""Sums over a group by two dispatchers in this process: host memory in place, other memory through a copy."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from building import alloc, do, fetch, herd_dispatcher, put, record
from linked import NAME, pair

from wireherd.collective.links import Link
from wireherd.errors import BadRequest
from wireherd.protocol.messages_peer import GroupCloseRequest, GroupOpenRequest, GroupReduceRequest
from wireherd.protocol.messages_stock import FreeBufferRequest
from wireherd.protocol.table import Opcode

COUNT = 1000


@pytest.fixture
def two():
    """Two dispatchers with a row of numbers each, linked up as group 1."""
    ranks = [herd_dispatcher() for _ in range(2)]
    streams = pair()
    for rank, (dispatcher, stream) in enumerate(zip(ranks, streams, strict=True)):
        do(dispatcher, Opcode.GROUP_OPEN, GroupOpenRequest(1, 0, NAME, rank, 2))
        dispatcher.state.groups.named(NAME).put(Link(1 - rank, "other", stream))
        dispatcher.state.groups.get(1)._stand(1.0)
    yield ranks
    for dispatcher in ranks:
        dispatcher.close()


def reduce_both(ranks, rows, mask=3):
    def one(dispatcher, row):
        do(dispatcher, Opcode.GROUP_REDUCE, GroupReduceRequest(1, mask, row.tobytes()))

    other = threading.Thread(target=one, args=(ranks[1], rows[1]), daemon=True)
    other.start()
    one(ranks[0], rows[0])
    other.join(10)
    assert not other.is_alive()


def rows_of(ranks):
    rows, handles = [], []
    for rank, dispatcher in enumerate(ranks):
        handle, base = alloc(dispatcher, 8192)
        row = record(handle, base + 64, COUNT)
        put(dispatcher, row, np.arange(COUNT, dtype=np.float32) + rank)
        rows.append(row)
        handles.append(handle)
    return rows, handles


@pytest.mark.parametrize("elsewhere", [(), (1,), (0, 1)])
def test_memory_of_the_process_and_memory_of_a_device(two, elsewhere):
    """A buffer without a view is reached as a GPU's is: by copies through ggml."""
    rows, handles = rows_of(two)
    for rank in elsewhere:
        two[rank].state.buffers.get(handles[rank]).view = None
    reduce_both(two, rows)
    reduce_both(two, rows, mask=1)
    wanted = (2 * np.arange(COUNT, dtype=np.float32) + 1).tobytes()
    for dispatcher, row in zip(two, rows, strict=True):
        assert fetch(dispatcher, row, 4 * COUNT) == wanted


def test_what_is_bound_goes_with_its_buffer(two):
    rows, handles = rows_of(two)
    reduce_both(two, rows)
    group = two[0].state.groups.get(1)
    assert group.reduction(rows[0].tobytes(), 3) is not None
    do(two[0], Opcode.FREE_BUFFER, FreeBufferRequest(handles[0]))
    assert group.reduction(rows[0].tobytes(), 3) is None


def test_a_group_that_was_left_is_none(two):
    rows, _ = rows_of(two)
    do(two[0], Opcode.GROUP_CLOSE, GroupCloseRequest(1))
    with pytest.raises(BadRequest, match="no group 1"):
        do(two[0], Opcode.GROUP_REDUCE, GroupReduceRequest(1, 3, rows[0].tobytes()))
    do(two[0], Opcode.GROUP_CLOSE, GroupCloseRequest(1))


def test_an_empty_tensor_takes_its_turn(two):
    rows, _ = rows_of(two)
    empty = [row.copy() for row in rows]
    for row in empty:
        row["ne"][1] = 0
    reduce_both(two, empty)
    reduce_both(two, rows)
    assert fetch(two[1], rows[1], 8) == np.array([1, 3], np.float32).tobytes()
