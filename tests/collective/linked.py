"""Groups whose links are socket pairs, one thread a rank: no worker, no port."""

from __future__ import annotations

import socket
import threading

import numpy as np

from wireherd.collective import Group
from wireherd.collective.links import Link
from wireherd.collective.schedule import is_live
from wireherd.transport.sockets import SocketStream

NAME = bytes(range(16))


def in_order(parts, mask):
    """The sum in rank order, F32 at every step."""
    total = None
    for rank, part in enumerate(parts):
        if is_live(mask, rank):
            total = part.copy() if total is None else total + part
    return np.zeros_like(parts[0]) if total is None else total


def pair(buffer=None):
    """Two streams that are connected; `buffer` bounds what the system holds for each."""
    ours, theirs = socket.socketpair()
    if buffer is not None:
        for sock in (ours, theirs):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    return SocketStream(ours, "ours"), SocketStream(theirs, "theirs")


def form(world, buffer=None):
    """The members of a group that is joined, all of them here."""
    groups = [Group(NAME, rank, world) for rank in range(world)]
    for low in range(world):
        for high in range(low + 1, world):
            one, other = pair(buffer)
            groups[low].put(Link(high, f"addr{high}", one))
            groups[high].put(Link(low, f"addr{low}", other))
    for group in groups:
        stand(group)
    return groups


def stand(group):
    """Say that the links stand, as `join` does."""
    group._names = tuple(f"addr{rank}" for rank in range(group.world))
    group._stand(5.0)


class Member(threading.Thread):
    """Runs reductions of one rank in a thread."""

    def __init__(self, group, parts, masks):
        super().__init__(daemon=True)
        self.group, self.masks = group, masks
        self.parts = [part.copy() for part in parts]
        self.error = None
        self.start()

    def run(self):
        try:
            for part, mask in zip(self.parts, self.masks, strict=True):
                self.group.run(self.group.bind(b"key", mask, part.data.cast("B"), keep=False))
        except Exception as error:  # noqa: BLE001 - looked at by the test
            self.error = error


def reduce_all(groups, parts, masks, timeout_s=60.0):
    """Run the same reductions on all ranks; `parts[rank][i]` goes into reduction i. Gives the results alike."""
    members = [Member(group, own, masks) for group, own in zip(groups, parts, strict=True)]
    for member in members:
        member.join(timeout_s)
        assert not member.is_alive(), "a rank is stuck"
        if member.error is not None:
            raise member.error
    return [member.parts for member in members]


def randoms(world, counts, seed=1):
    random = np.random.default_rng(seed)
    return [[random.standard_normal(count, np.float32) for count in counts] for _ in range(world)]
