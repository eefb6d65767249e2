"""Which graphs a worker's device still holds, so that GRAPH_RECOMPUTE can name one instead of sending it again.

Both ends decide from the same stream of commands, so no message is ever needed to evict. The rules differ by version
(protocol.md of upstream is the code, ggml-rpc.cpp):

    before 3.5   nothing is kept
    3.5 to 7     the last graph of each device, by its uid
    8.0          every uid at first sight, 1,024 a device; a full map is emptied before the next one goes in
    our own      the last 256 that were sent whole, as long as their records are below 256 MiB together

Freeing a buffer drops the graphs that touch it on our worker, all of them on a stock server. A stock 8.0 client is not
aware of that; ours is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from wireherd.protocol.kept import STOCK_GRAPHS, KeptGraphs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wireherd.protocol.dialect import Dialect


class GraphStore(Protocol):
    """What one device of one worker holds."""

    def holds(self, uid: int) -> bool:
        """Whether a graph of this uid can be run again by name."""

    def sent(self, uid: int, touched: Iterable[int], nbytes: int) -> None:
        """Take note that the whole graph goes out now, in `nbytes` bytes of records, and of its buffers' handles.

        uid 0 is never kept.
        """

    def freed(self, handle: int) -> None:
        """Take note that a buffer is freed."""


class NoGraphs:
    """Nothing is ever kept."""

    def holds(self, uid: int) -> bool:
        """Say no."""
        del uid
        return False

    def sent(self, uid: int, touched: Iterable[int], nbytes: int) -> None:
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

    def sent(self, uid: int, touched: Iterable[int], nbytes: int) -> None:
        """It takes the place of the one before, also when it has no uid."""
        del touched, nbytes
        self._uid = uid

    def freed(self, handle: int) -> None:
        """Drop it."""
        del handle
        self._uid = 0


class GraphSet:
    """Every uid since the last time the set was full: the rule of stock 8.0."""

    def __init__(self, capacity: int = STOCK_GRAPHS) -> None:
        self._capacity = capacity
        self._uids: set[int] = set()

    def holds(self, uid: int) -> bool:
        """Whether `uid` is among them."""
        return uid in self._uids

    def sent(self, uid: int, touched: Iterable[int], nbytes: int) -> None:
        """Add it; a full set is emptied first, as the server does at the same command."""
        del touched, nbytes
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

    def __init__(self, rule: KeptGraphs | None = None) -> None:
        self._rule = KeptGraphs() if rule is None else rule
        #: uid → handles of the buffers it touches
        self._touched: dict[int, frozenset[int]] = {}

    def holds(self, uid: int) -> bool:
        """Whether `uid` is among them."""
        return uid in self._touched

    def sent(self, uid: int, touched: Iterable[int], nbytes: int) -> None:
        """Add it as the newest; the oldest go if there are too many or too much."""
        if not uid:
            return
        for gone in self._rule.keep(uid, nbytes):
            del self._touched[gone]
        self._touched[uid] = frozenset(touched)

    def freed(self, handle: int) -> None:
        """Drop those that touch the buffer."""
        for uid in [uid for uid, touched in self._touched.items() if handle in touched]:
            del self._touched[uid]
            self._rule.drop(uid)


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
