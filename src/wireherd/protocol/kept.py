"""Which graphs of a device are kept for GRAPH_RECOMPUTE: one rule, carried out at both ends from the same commands.

Both ends see the same GRAPH_COMPUTE, GRAPH_RECOMPUTE and FREE_BUFFER in the same order, so no message is needed to
keep, to evict or to clear; but then they must count alike. So the rule stands here, and all it knows comes out of the
messages: uids, bytes of records on the wire (not memory), handles of buffers in those records.

What a rule says:

    graphs      most graphs kept; 0 keeps none
    nbytes      bytes of records of all kept graphs together; the newest is kept whatever its size
    policy      what goes when there is no room: all (reset), the one used (lru) or sent (fifo) longest ago
    sights      at which GRAPH_COMPUTE of a uid it is kept: the first, or the second

A uid that was sent once and is to be kept at the second time waits in a list of its own, the last `SEEN` of them.
Most graphs of a prompt never come again: keeping those at first sight slows a prompt down and pushes out the others.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from wireherd.protocol.version import Version

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from wireherd.protocol.dialect import Dialect


class Policy(enum.IntEnum):
    """What happens when there is no room; the numbers of GRAPH_CACHE_SIZE, but for the last."""

    RESET = 0
    LRU = 1
    #: never asked for: what stock servers and peers without a negotiated cache are given
    FIFO = 2


class Rule(NamedTuple):
    """How the graphs of one device are kept."""

    graphs: int
    nbytes: int
    policy: Policy
    sights: int = 2


#: `GRAPH_CACHE_MAX` of stock 8.0 (ggml-rpc.cpp): at that many a stock client forgets all
STOCK_GRAPHS: Final = 1024
#: records of all kept graphs of a device together, bytes; rebuilt they take up to twice as much
HERD_GRAPH_BYTES: Final = 256 << 20
#: the same for stock clients, who know no such bound: more than they keep for any model
STOCK_GRAPH_BYTES: Final = 1 << 30
#: most graphs that can be asked for or granted
MAX_GRAPHS: Final = 1 << 20
#: uids remembered that were sent once
SEEN: Final = 4096
#: of a uid that was sent once no more handles than this are remembered: it is forgotten with any buffer then
MAX_TOUCHED: Final = 64

#: our own ends, where one of them lacks Feature.GRAPH_CACHE
UNASKED: Final = Rule(256, HERD_GRAPH_BYTES, Policy.FIFO, sights=1)
#: our worker and a stock client of 8.0. The client empties its cache at `STOCK_GRAPHS`, so it counts on none but the
#: last ones; and it does not know what a freed buffer takes along, so nothing else may go then
STOCK: Final = Rule(STOCK_GRAPHS, STOCK_GRAPH_BYTES, Policy.FIFO, sights=1)
#: our worker and a stock client of 3.5 to 7.0: the last graph of a device
LAST: Final = Rule(1, STOCK_GRAPH_BYTES, Policy.FIFO, sights=1)
_WITH_UIDS: Final = Version(8, 0)


def rule_of(dialect: Dialect) -> Rule:
    """What holds for a worker of ours until something else is agreed."""
    if dialect.herd:
        return UNASKED
    return STOCK if dialect.version >= _WITH_UIDS else LAST


def touched(tensors: NDArray[Any]) -> frozenset[int]:
    """Handles of the buffers in the records of a graph."""
    return frozenset(np.unique(tensors["buffer"]).tolist()) - {0}


class Sent(NamedTuple):
    """What a GRAPH_COMPUTE changed."""

    #: whether the graph is kept now
    kept: bool
    #: uids that went for it, oldest first
    gone: list[int]
    #: whether those were all, by the policy `reset`
    cleared: bool = False


_NOT_KEPT: Final = Sent(False, [])


class _Entry(NamedTuple):
    nbytes: int
    touched: frozenset[int]


class KeptGraphs:
    """The uids of one device, the next one to go first."""

    def __init__(self, rule: Rule) -> None:
        """Start empty."""
        self.rule = rule
        self._touch = rule.policy is Policy.LRU
        self._kept: dict[int, _Entry] = {}
        self._seen: dict[int, frozenset[int] | None] = {}
        self._total = 0

    def __contains__(self, uid: int) -> bool:
        return uid in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def uids(self) -> list[int]:
        """All that are kept, the next one to go first."""
        return list(self._kept)

    @property
    def nbytes(self) -> int:
        """Bytes of records of all that are kept."""
        return self._total

    def again(self, uid: int) -> bool:
        """Whether a graph is kept; if so it is about to run by its uid, which counts as used."""
        kept = self._kept
        if uid not in kept:
            return False
        if self._touch:
            kept[uid] = kept.pop(uid)
        return True

    def sent(self, uid: int, nbytes: int, buffers: frozenset[int]) -> Sent:
        """Take note of a GRAPH_COMPUTE: what is kept now, and what goes for it. uid 0 is never kept.

        Args:
            uid: name of the graph.
            nbytes: bytes of its node ids and records on the wire.
            buffers: what `touched` says of its records.
        """
        rule, kept = self.rule, self._kept
        if not uid or not rule.graphs:
            return _NOT_KEPT
        if uid in kept:
            self._drop(uid)  # sent again although it was there: now it is the newest
        elif rule.sights > 1 and uid not in self._seen:
            if len(self._seen) >= SEEN:
                del self._seen[next(iter(self._seen))]
            self._seen[uid] = buffers if len(buffers) <= MAX_TOUCHED else None
            return _NOT_KEPT
        self._seen.pop(uid, None)
        gone: list[int] = []
        cleared = False
        if kept and (len(kept) >= rule.graphs or self._total + nbytes > rule.nbytes):
            if rule.policy is Policy.RESET:
                gone, cleared = list(kept), True
                kept.clear()
                self._total = 0
            else:
                gone = self._make_room(nbytes)
        kept[uid] = _Entry(nbytes, buffers)
        self._total += nbytes
        return Sent(True, gone, cleared)

    def _make_room(self, nbytes: int) -> list[int]:
        gone = []
        while self._kept and (len(self._kept) >= self.rule.graphs or self._total + nbytes > self.rule.nbytes):
            oldest = next(iter(self._kept))
            self._drop(oldest)
            gone.append(oldest)
        return gone

    def freed(self, handle: int) -> list[int]:
        """Take note of a FREE_BUFFER: forget the graphs that touch it, kept or seen; the kept ones are returned."""
        gone = _touching(handle, ((uid, entry.touched) for uid, entry in self._kept.items()))
        for uid in gone:
            self._drop(uid)
        for uid in _touching(handle, self._seen.items()):
            del self._seen[uid]
        return gone

    def _drop(self, uid: int) -> None:
        self._total -= self._kept.pop(uid).nbytes


def _touching(handle: int, graphs: Iterable[tuple[int, frozenset[int] | None]]) -> list[int]:
    return [uid for uid, buffers in graphs if buffers is None or handle in buffers]
