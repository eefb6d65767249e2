"""What the session tests do again and again: make a buffer, write, read, and look at the clock."""

from __future__ import annotations

import contextlib
import time

from store_peer import record

from wireherd.protocol.messages_stock import AllocBufferRequest, GetTensorRequest, SetTensorRequest


def alloc(session, size):
    return session.call(AllocBufferRequest(0, size)).remote_ptr


def put(session, handle, data, offset=0):
    session.post(SetTensorRequest(record(session.dialect, handle, len(data)), 0, offset), data)


def get(session, handle, size, offset=0):
    into = bytearray(size)
    session.call(GetTensorRequest(record(session.dialect, handle, size), offset, size), into=into)
    return bytes(into)


@contextlib.contextmanager
def within(seconds, at_least=0.0):
    begun = time.monotonic()
    yield
    passed = time.monotonic() - begun
    assert at_least <= passed <= seconds, passed
