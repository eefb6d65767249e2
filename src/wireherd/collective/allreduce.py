"""Carries a plan out: sends and receives over the links at once, adds, and leaves the sum in the tensor.

Theory of operation. A `Reduction` is bound once for a tensor and a mask and then run again and again: its views of the
tensor, of scratch memory and of the links are ready, so that one run is little more than one system call a direction
and link. A part is sent gathered from its head and the tensor's own memory, and received beside its head in scratch, or
straight into the tensor where it takes its place.

Whatever the system takes at once is sent first. If that was everything and one link is waited on, waiting is a plain
blocking read. Otherwise all links are watched in both directions: each end may be sending more than the system
buffers, so nobody may stop reading because he has not finished writing.
"""

from __future__ import annotations

import select
import sys
import time
from typing import TYPE_CHECKING, Final

import numpy as np

from wireherd.collective import schedule
from wireherd.collective.links import HEAD_SIZE
from wireherd.collective.reduce import add_in_order
from wireherd.errors import ReadTimeout, TransportError
from wireherd.transport.stream import advance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from wireherd.collective.links import Link

#: one wait in the kernel lasts at most this long
SLICE_S: Final = 0.5
#: bytes a second below which a member counts as silent: one that drips would else hold the others for ever
SLOWEST: Final = 64 << 10
_ITEM: Final = schedule.ITEM_BYTES
#: scratch memory begins so that what follows a head lies on a cache line
_LINE: Final = 64
_LEAST: Final = 4096


class Incoming:
    """One part to receive: its head, then its data, maybe in one piece of memory."""

    __slots__ = ("_checked", "_data", "_expected", "_head", "_left", "link", "size", "whole")

    def __init__(self, link: Link, whole: memoryview, target: memoryview | None) -> None:
        """Bind memory: `whole` holds head and data, or the head alone if the data goes to `target`."""
        self.link = link
        self.whole = whole
        self._head = whole[:HEAD_SIZE]
        self._data = target
        self.size = len(whole) - HEAD_SIZE if target is None else len(target)
        self._expected = b""
        self._left = whole
        self._checked = False

    def begin(self, sequence: int, step: int) -> None:
        """Be ready for the next part."""
        self._expected = self.link.expected(sequence, step, self.size)
        self._left = self.whole
        self._checked = False

    def receive(self) -> bool:
        """Receive once; whether the part is complete. A head is looked at before its data is waited for.

        Raises:
            ReadTimeout: nothing came within the stream's timeout.
            PeerLost: it is not the part that is due, or the link ended.
        """
        link, left = self.link, self._left
        left = left[link.receive(left) :]
        if not self._checked:
            have = len(self.whole) - len(left)
            if have < HEAD_SIZE:
                self._left = left
                link.inside = True
                return False
            if self._head != self._expected:
                raise link.explain(self.whole[:have], self._expected)
            self._checked = True
            if self._data is not None:
                left = self._data
        self._left = left
        link.inside = bool(left)
        return not left


class Exchange:
    """One step, bound to memory and links."""

    __slots__ = ("_number", "_receives", "_sends", "_sum")

    def __init__(
        self,
        step: schedule.Step,
        sends: Sequence[tuple[Link, memoryview]],
        receives: Sequence[Incoming],
        parts: tuple[Sequence[NDArray[np.float32]], NDArray[np.float32]] | None,
    ) -> None:
        """Bind what `step` moves; `parts` are what it adds, in rank order, and where to."""
        self._number = step.number
        self._sends = [(link, view, len(view)) for link, view in sends]
        self._receives = list(receives)
        self._sum = parts

    def run(self, sequence: int, limit_s: float) -> None:
        """Send, receive, add.

        Raises:
            PeerLost: a member closed, broke the rules, or was silent for `limit_s`.
        """
        step = self._number
        unsent: list[tuple[Link, list[memoryview]]] = []
        for link, view, size in self._sends:
            head = link.head(sequence, step, size)
            sent = _send(link, (head, view))
            if sent < HEAD_SIZE + size:
                link.cut = True
                unsent.append((link, advance([memoryview(head), view], sent)))
        receives = self._receives
        for incoming in receives:
            incoming.begin(sequence, step)
        if len(receives) == 1 and not unsent:
            _wait_for(receives[0], limit_s)
        elif receives or unsent:
            _both_ways(unsent, receives, limit_s)
        if self._sum is not None:
            add_in_order(*self._sum)


def _send(link: Link, views: Sequence[bytes | memoryview]) -> int:
    try:
        return link.stream.send_nowait(views)
    except TransportError as error:
        raise link.lost(f"closed its link ({error})") from error


def _wait_for(incoming: Incoming, limit_s: float) -> None:
    """Receive one part while nothing else is to be done."""
    quiet_s = 0.0
    end = time.monotonic() + limit_s + incoming.size / SLOWEST
    while True:
        try:
            if incoming.receive():
                return
            quiet_s = 0.0
            if time.monotonic() >= end:
                raise incoming.link.lost(f"sends less than {SLOWEST >> 10} KiB/s")
        except ReadTimeout as error:
            quiet_s += SLICE_S
            if quiet_s >= limit_s:
                raise incoming.link.lost(f"sent nothing for {limit_s:g} s") from error
        except TransportError as error:
            raise incoming.link.lost(f"closed its link ({error})") from error


def _both_ways(unsent: list[tuple[Link, list[memoryview]]], receives: Sequence[Incoming], limit_s: float) -> None:
    """Send and receive whatever moves, until all is done."""
    writing = {link.stream.fileno(): (link, rest) for link, rest in unsent}
    reading = {incoming.link.stream.fileno(): incoming for incoming in receives}
    last = time.monotonic()
    size = sum(incoming.size for incoming in receives) + sum(len(view) for _, rest in unsent for view in rest)
    end = last + limit_s + size / SLOWEST
    while writing or reading:
        readable, writable = _ready(reading, writing)
        for number in readable:
            if _receive(reading[number]):
                del reading[number]
        for number in writable:
            link, rest = writing[number]
            rest = advance(rest, _send(link, rest))
            if rest:
                writing[number] = link, rest
            else:
                del writing[number]
                link.cut = False
        now = time.monotonic()
        if readable or writable:
            last = now
        if now - last >= limit_s or now >= end:
            if not (reading or writing):
                return
            late = next(iter(reading.values())).link if reading else next(iter(writing.values()))[0]
            what = "sent" if reading else "took"
            slow = f"less than {SLOWEST >> 10} KiB/s" if now - last < limit_s else f"nothing for {limit_s:g} s"
            raise late.lost(f"{what} {slow}")


def _receive(incoming: Incoming) -> bool:
    try:
        return incoming.receive()
    except ReadTimeout:
        return False  # the system promised data and had none after all
    except TransportError as error:
        raise incoming.link.lost(f"closed its link ({error})") from error


def _ready(
    reading: Mapping[int, Incoming], writing: Mapping[int, tuple[Link, list[memoryview]]]
) -> tuple[list[int], list[int]]:
    """Descriptors that can be read or written now; waits for one of them, at most `SLICE_S`."""
    early = [number for number, incoming in reading.items() if incoming.link.early]
    if early:
        return early, []
    if sys.platform == "win32":
        readable, writable, _ = select.select(list(reading), list(writing), [], SLICE_S)
        return readable, writable
    poller = select.poll()
    for number in reading:
        poller.register(number, select.POLLIN | (select.POLLOUT if number in writing else 0))
    for number in writing:
        if number not in reading:
            poller.register(number, select.POLLOUT)
    found = poller.poll(SLICE_S * 1000)
    trouble = select.POLLERR | select.POLLHUP | select.POLLNVAL
    return (
        [number for number, events in found if number in reading and events & (select.POLLIN | trouble)],
        [number for number, events in found if number in writing and events & (select.POLLOUT | trouble)],
    )


class Scratch:
    """Memory for what comes in: one piece for each other rank, kept for the next reduction."""

    def __init__(self) -> None:
        self._pieces: dict[int, memoryview] = {}

    def whole(self, rank: int, size: int) -> memoryview:
        """Room for a head and `size` bytes from `rank`; the data begins on a cache line."""
        piece = self._pieces.get(rank)
        if piece is None or len(piece) < HEAD_SIZE + size:
            # by powers of two: reductions that are bound already keep the smaller pieces, so there must not be many
            room = np.empty(2 * _LINE + (1 << (max(size, _LEAST) - 1).bit_length()), np.uint8)
            shift = -(room.__array_interface__["data"][0] + HEAD_SIZE) % _LINE
            piece = self._pieces[rank] = room.data[shift:]
        return piece[: HEAD_SIZE + size]


class Reduction:
    """One tensor under one mask, bound for running again and again."""

    __slots__ = ("_exchanges",)

    def __init__(
        self, part: memoryview, mask: int, rank: int, world: int, links: Mapping[int, Link], scratch: Scratch
    ) -> None:
        """Bind `part`, the rank's tensor: writable bytes, f32[n]."""
        self._exchanges: list[Exchange] = []
        for step in schedule.plan(world, rank, mask, len(part) // _ITEM):
            self._exchanges.append(_bind(step, part, mask, rank, links, scratch))
        if not mask and part:
            nothing = schedule.Step(0, (), (), (0, len(part) // _ITEM))
            self._exchanges.append(_bind(nothing, part, 0, rank, links, scratch))

    def run(self, sequence: int, limit_s: float) -> None:
        """Leave the sum over the group in the tensor; `sequence` counts the group's reductions.

        Raises:
            PeerLost: a member closed, broke the rules, or was silent for `limit_s`.
        """
        for exchange in self._exchanges:
            exchange.run(sequence, limit_s)


def _bind(
    step: schedule.Step, part: memoryview, mask: int, rank: int, links: Mapping[int, Link], scratch: Scratch
) -> Exchange:
    sends = [(links[move.peer], part[move.start * _ITEM : move.stop * _ITEM]) for move in step.sends]
    if step.total is None:
        straight = [
            Incoming(links[move.peer], scratch.whole(move.peer, 0), part[move.start * _ITEM : move.stop * _ITEM])
            for move in step.receives
        ]
        return Exchange(step, sends, straight, None)
    receives = [
        Incoming(links[move.peer], scratch.whole(move.peer, (move.stop - move.start) * _ITEM), None)
        for move in step.receives
    ]
    start, stop = step.total
    if start == stop:
        return Exchange(step, sends, receives, None)
    out = np.frombuffer(part[start * _ITEM : stop * _ITEM], np.float32)
    parts = {
        move.peer: np.frombuffer(incoming.whole[HEAD_SIZE:], np.float32)
        for move, incoming in zip(step.receives, receives, strict=True)
    }
    if schedule.is_live(mask, rank):
        parts[rank] = out
    if len(parts) == 1 and rank in parts:
        return Exchange(step, sends, receives, None)
    return Exchange(step, sends, receives, ([parts[peer] for peer in sorted(parts)], out))
