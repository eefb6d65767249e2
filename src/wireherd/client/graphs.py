"""Which graphs a worker's device still holds, so that GRAPH_RECOMPUTE can name one instead of sending it again.

Both ends decide from the same stream of commands, so no message is ever needed to evict. The rules differ by version
(protocol.md of upstream is the code, ggml-rpc.cpp):

    before 3.5   nothing is kept
    3.5 to 7     the last graph of each device, by its uid
    8.0          every uid at first sight, 1,024 a device; a full map is emptied before the next one goes in
    our own      the last 256 that were sent whole

Freeing a buffer drops the graphs that touch it on our worker, all of them on a stock server. A stock 8.0 client is not
aware of that; ours is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wireherd.protocol.dialect import Dialect

#: `GRAPH_CACHE_MAX` of stock 8.0, which both ends must agree on
CAPACITY: Final = 1024
#: what our worker keeps, which both ends must agree on too
HERD_CAPACITY: Final = 256


class GraphStore(Protocol):
    """What one device of one worker holds."""

    def holds(self, uid: int) -> bool:
        """Whether a graph of this uid can be run again by name."""

    def sent(self, uid: int, touched: Iterable[int]) -> None:
        """Take note that the whole graph goes out now (0 is never kept), and of the handles of its buffers."""

    def freed(self, handle: int) -> None:
        """Take note that a buffer is freed."""


class NoGraphs:
    """Nothing is ever kept."""

    def holds(self, uid: int) -> bool:
        """Say no."""
        del uid
        return False

    def sent(self, uid: int, touched: Iterable[int]) -> None:
        """Nothing to note."""

    def freed(self, handle: int) -> None:
        """Nothing to drop."""


class LastGraph:
    """The last graph sent, whatever its uid was."""

    def __init__(self) -> None:
        self._uid = 0

    def holds(self, uid: int) -> bool:
        """Whether `uid` was the last one sent."""
        return uid != 0 and uid == self._uid

    def sent(self, uid: int, touched: Iterable[int]) -> None:
        """It takes the place of the one before, also when it has no uid."""
        del touched
        self._uid = uid

    def freed(self, handle: int) -> None:
        """Drop it."""
        del handle
        self._uid = 0


class GraphSet:
    """Every uid since the last time the set was full: the rule of stock 8.0."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._uids: set[int] = set()

    def holds(self, uid: int) -> bool:
        """Whether `uid` is among them."""
        return uid in self._uids

    def sent(self, uid: int, touched: Iterable[int]) -> None:
        """Add it; a full set is emptied first, as the server does at the same command."""
        del touched
        if not uid:
            return
        if len(self._uids) >= self._capacity:
            self._uids.clear()
        self._uids.add(uid)

    def freed(self, handle: int) -> None:
        """Drop all."""
        del handle
        self._uids.clear()


class GraphQueue:
    """The uids last sent whole: the rule of our own worker."""

    def __init__(self, capacity: int = HERD_CAPACITY) -> None:
        self._capacity = capacity
        #: uid → handles of the buffers it touches, oldest first
        self._touched: dict[int, frozenset[int]] = {}

    def holds(self, uid: int) -> bool:
        """Whether `uid` is among them."""
        return uid in self._touched

    def sent(self, uid: int, touched: Iterable[int]) -> None:
        """Add it as the newest; the oldest goes if there are too many."""
        if not uid:
            return
        self._touched.pop(uid, None)
        if len(self._touched) >= self._capacity:
            del self._touched[next(iter(self._touched))]
        self._touched[uid] = frozenset(touched)

    def freed(self, handle: int) -> None:
        """Drop those that touch the buffer."""
        self._touched = {uid: touched for uid, touched in self._touched.items() if handle not in touched}


def store_for(dialect: Dialect) -> GraphStore:
    """Give an empty store with the rules of a dialect."""
    if dialect.herd:
        return GraphQueue()
    line = dialect.version.line
    if line < (3, 5):
        return NoGraphs()
    if line < (8, 0):
        return LastGraph()
    return GraphSet()
