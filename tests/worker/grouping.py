"""Clients of several workers that form groups, for the tests of groups."""

from __future__ import annotations

import secrets
from contextlib import ExitStack

import numpy as np

from wireherd.protocol import tensor
from wireherd.protocol.messages_peer import GroupCloseRequest, GroupJoinRequest, GroupOpenRequest, GroupReduceRequest
from wireherd.protocol.messages_stock import (
    AllocBufferRequest,
    BufferGetBaseRequest,
    FreeBufferRequest,
    GetTensorRequest,
    SetTensorRequest,
)
from wireherd.protocol.tensor import TensorRecord
from wireherd.session.client import ClientSession
from wireherd.session.options import ClientOptions


def record(buffer, data, count, *, kind=0, ne=None, nb=None):
    ne = ne or (count, 1, 1, 1)
    nb = nb or (4, 4 * ne[0], 4 * ne[0] * ne[1], 4 * ne[0] * ne[1] * ne[2])
    return TensorRecord(1, kind, buffer, ne, nb, 0, (0,) * 16, 16, (0,) * 10, 0, 0, data, b"sum".ljust(64, b"\0"))


class Member:
    """One worker's session with one buffer of `room` numbers."""

    def __init__(self, endpoint, room=1 << 20):
        self.session = ClientSession.connect(endpoint, ClientOptions())
        self.dialect = self.session.dialect
        self.buffer = self.session.call(AllocBufferRequest(0, room * 4)).remote_ptr
        self.base = self.session.call(BufferGetBaseRequest(self.buffer)).base_ptr

    @property
    def name(self):
        return self.session.hello.session.hex()

    def row(self, count, offset=0):
        return tensor.pack(record(self.buffer, self.base + offset, count), self.dialect)

    def put(self, values, offset=0):
        self.session.post(SetTensorRequest(self.row(len(values), offset), 1, 0), values.tobytes())

    def get(self, count, offset=0):
        out = np.empty(count, np.float32)
        self.session.call(GetTensorRequest(self.row(count, offset), 0, 4 * count), into=out.data.cast("B"))
        return out

    def free(self):
        self.session.post(FreeBufferRequest(self.buffer))


class Cluster:
    """Members of one group; `join` forms it."""

    def __init__(self, endpoints, *, slot=7, room=1 << 20):
        self.stack = ExitStack()
        self.slot = slot
        self.group = secrets.token_bytes(16)
        self.members = []
        for endpoint in endpoints:
            member = Member(endpoint, room)
            self.stack.callback(member.session.close)
            self.members.append(member)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stack.close()

    def open(self):
        world = len(self.members)
        return [
            member.session.call(GroupOpenRequest(self.slot, 0, self.group, rank, world)).addresses
            for rank, member in enumerate(self.members)
        ]

    def join(self, addresses=None):
        found = self.open() if addresses is None else addresses
        texts = tuple(" ".join(each) for each in found)
        request = GroupJoinRequest(self.slot, tuple(member.name for member in self.members), texts)
        begun = [(member, member.session.begin(request)) for member in self.members]
        return [member.session.finish(answer) for member, answer in begun]

    def reduce(self, mask, count, offset=0):
        for member in self.members:
            member.session.post(GroupReduceRequest(self.slot, mask, member.row(count, offset)))

    def flush(self):
        for member in self.members:
            member.session.flush()

    def close_group(self):
        for member in self.members:
            member.session.post(GroupCloseRequest(self.slot), flush=True)
