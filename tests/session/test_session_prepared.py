"""Prepared commands, and answers that are begun and finished apart, over every transport."""

from __future__ import annotations

import pytest
from session_calls import alloc, get, put

from wireherd.errors import LocalProtocolError, OutOfMemory, WorkerRefused
from wireherd.protocol.messages_graph import GraphRecomputeRequest
from wireherd.protocol.messages_herd import CancelRequest
from wireherd.protocol.messages_stock import AllocBufferRequest, DeviceCountRequest, SetTensorRequest
from wireherd.session.group import SessionGroup


def test_a_prepared_command_is_what_post_would_send(linked):
    peer, session = linked
    session.call(DeviceCountRequest())
    message = GraphRecomputeRequest(0, 1)
    prepared = session.prepare(message)
    before = session.stats.frames_sent
    for _ in range(3):
        session.repeat(prepared)
        session.post(message)
    assert session.call(DeviceCountRequest()).count == 2, "the sequence went wrong"
    assert session.stats.frames_sent == before + 7
    assert [uid for uid, _ in peer.store.computed] == [1] * 6


def test_what_cannot_be_prepared(linked):
    _, session = linked
    tensor = bytes(session.dialect.tensor_dtype.itemsize)
    for message in (DeviceCountRequest(), SetTensorRequest(tensor, 0, 0), CancelRequest()):
        with pytest.raises(LocalProtocolError):
            session.prepare(message)
    with pytest.raises(LocalProtocolError, match="does not fit"):
        session.prepare(GraphRecomputeRequest(1 << 40, 1))
    assert session.call(DeviceCountRequest()).count == 2


def test_a_failure_of_a_repeated_command_is_sticky(linked):
    _, session = linked
    prepared = session.prepare(GraphRecomputeRequest(7, 0))
    session.repeat(prepared)
    with pytest.raises(WorkerRefused, match="GRAPH_RECOMPUTE: no kernel") as caught:
        session.call(DeviceCountRequest())
    assert str(caught.value.__cause__) == "GRAPH_RECOMPUTE: no kernel"
    with pytest.raises(WorkerRefused, match="no kernel") as again:
        session.repeat(prepared)
    assert again.value.__cause__ is caught.value.__cause__, "who is at fault must not be lost"


def test_begun_answers_are_finished_in_any_order(linked):
    _, session = linked
    handle = alloc(session, 10)
    put(session, handle, b"0123456789")
    first, second = session.begin(DeviceCountRequest()), session.begin(AllocBufferRequest(0, 1 << 40))
    assert get(session, handle, 10) == b"0123456789"
    with pytest.raises(OutOfMemory):
        session.finish(second)
    assert session.finish(first).count == 2


def test_all_are_asked_before_one_is_waited_for(peers, sessions):
    """Two peers, one of which answers only after a while: the other has run its command by then."""
    group = SessionGroup()
    first, second = peers(), peers()
    slow, quick = (sessions(peer.address, group) for peer in (first, second))
    slow.post(GraphRecomputeRequest(0, 300))
    quick.post(GraphRecomputeRequest(0, 1))
    asked = [each.begin(DeviceCountRequest()) for each in (slow, quick)]
    assert [each.finish(answer).count for each, answer in zip((slow, quick), asked, strict=True)] == [2, 2]
    assert second.store.computed[0][1] < first.store.computed[0][1]
