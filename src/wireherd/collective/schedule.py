"""Who sends which elements to whom, in which step. Pure: the same plan on every rank, no message is needed to agree.

Two ways to add a tensor over the ranks of a group:

- direct: every rank that has a part sends it to every other one, and all add everything. One hop.
- scattered: element ranges are dealt out to the ranks. In the first step each rank with a part sends every other rank
  its range of it; that rank adds them up; in the second step it sends the sum to all. Two hops, and each rank sends
  twice the tensor at most, however many ranks there are.

Two ranks always go the direct way: scattering would send the same bytes in twice the hops. A tensor beyond
`SEGMENT_BYTES` is cut into segments, one after the other, so that no rank needs more memory than that for what it
receives. Steps are numbered through.

No order of sending and receiving within a step is promised: whoever carries a step out does both at once, since every
pair may be sending to each other more than the system buffers.
"""

from __future__ import annotations

from typing import Final, NamedTuple

#: from this size on, three and more ranks scatter
SCATTER_BYTES: Final = 64 << 10
#: most bytes of a tensor that are added at a time
SEGMENT_BYTES: Final = 4 << 20
ITEM_BYTES: Final = 4
#: ranks a group may have: one bit of the mask each
MAX_WORLD: Final = 64


class Move(NamedTuple):
    """Elements `start` to `stop`, to or from `peer`."""

    peer: int
    start: int
    stop: int


class Step(NamedTuple):
    """One exchange as one rank sees it.

    Attributes:
        number: counted from 0 within the reduction.
        sends: from the rank's tensor.
        receives: in ascending order of peers.
        total: elements `start` to `stop` that the rank then adds up: what it received for them, and its own part if it
            has one, in rank order. None: what is received is a sum already and takes its place in the tensor.
    """

    number: int
    sends: tuple[Move, ...]
    receives: tuple[Move, ...]
    total: tuple[int, int] | None


def is_live(mask: int, rank: int) -> bool:
    """Whether a rank has a part."""
    return bool(mask >> rank & 1)


def plan(world: int, rank: int, mask: int, count: int) -> tuple[Step, ...]:
    """What `rank` does, step by step, to add `count` elements of F32 over `world` ranks.

    Bit r of `mask` says that rank r has a part. Without any, or without elements, there is nothing to do.
    """
    steps: list[Step] = []
    if not mask:
        return ()
    segment = SEGMENT_BYTES // ITEM_BYTES
    for start in range(0, count, segment):
        stop = min(start + segment, count)
        if world == 2 or (stop - start) * ITEM_BYTES < SCATTER_BYTES:
            steps.append(_direct(len(steps), world, rank, mask, start, stop))
        else:
            steps += _scattered(len(steps), world, rank, mask, start, stop)
    return tuple(steps)


def _direct(number: int, world: int, rank: int, mask: int, start: int, stop: int) -> Step:
    others = [peer for peer in range(world) if peer != rank]
    sends = tuple(Move(peer, start, stop) for peer in others) if is_live(mask, rank) else ()
    receives = tuple(Move(peer, start, stop) for peer in others if is_live(mask, peer))
    return Step(number, sends, receives, (start, stop))


def _scattered(number: int, world: int, rank: int, mask: int, start: int, stop: int) -> list[Step]:
    ranges = [_range(world, peer, start, stop) for peer in range(world)]
    others = [peer for peer in range(world) if peer != rank and ranges[peer][0] < ranges[peer][1]]
    mine = ranges[rank]
    have_some = mine[0] < mine[1]
    parts = tuple(Move(peer, *ranges[peer]) for peer in others) if is_live(mask, rank) else ()
    to_add = (
        tuple(Move(peer, *mine) for peer in range(world) if peer != rank and is_live(mask, peer)) if have_some else ()
    )
    sums = tuple(Move(peer, *mine) for peer in range(world) if peer != rank) if have_some else ()
    return [
        Step(number, parts, to_add, mine),
        Step(number + 1, sums, tuple(Move(peer, *ranges[peer]) for peer in others), None),
    ]


def _range(world: int, rank: int, start: int, stop: int) -> tuple[int, int]:
    """The elements that `rank` adds up: equal shares, whole cache lines of 16 where that can be."""
    lines = -(-(stop - start) // 16)
    first, last = (min(start + 16 * (lines * each // world), stop) for each in (rank, rank + 1))
    return first, last
