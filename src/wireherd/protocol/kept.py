"""Which graphs of a device are kept for GRAPH_RECOMPUTE: one rule, carried out at both ends from the same commands.

Both ends see the same GRAPH_COMPUTE and FREE_BUFFER in the same order, so no message is needed to evict; but then they
must count alike, which is why the rule stands here and counts bytes of records on the wire, not memory.
"""

from __future__ import annotations

from typing import Final

#: `GRAPH_CACHE_MAX` of stock 8.0 (ggml-rpc.cpp): at that many a stock client forgets all
STOCK_GRAPHS: Final = 1024
#: the same in our extension; half a megabyte each for a small model, so a long session's memory is bounded
HERD_GRAPHS: Final = 256
#: records of all kept graphs of a device together, bytes; rebuilt they take up to twice as much
HERD_GRAPH_BYTES: Final = 256 << 20
#: the same for stock clients, who know no such bound: more than they keep for any model
STOCK_GRAPH_BYTES: Final = 1 << 30


class KeptGraphs:
    """The uids of one device, oldest first. The newest is always kept, whatever its size."""

    def __init__(self, count: int = HERD_GRAPHS, nbytes: int = HERD_GRAPH_BYTES) -> None:
        """Start empty; keep at most `count` graphs, and `nbytes` bytes of records."""
        self._count = count
        self._limit = nbytes
        self._sizes: dict[int, int] = {}
        self._total = 0

    def __contains__(self, uid: int) -> bool:
        return uid in self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def nbytes(self) -> int:
        """Bytes of records of all that are kept."""
        return self._total

    def keep(self, uid: int, nbytes: int) -> list[int]:
        """Add a graph whose records (ids and tensors) take `nbytes`; returns the uids that go for it, oldest first."""
        self.drop(uid)
        self._total += nbytes
        gone: list[int] = []
        while self._sizes and (len(self._sizes) >= self._count or self._total > self._limit):
            oldest = next(iter(self._sizes))
            self.drop(oldest)
            gone.append(oldest)
        self._sizes[uid] = nbytes
        return gone

    def drop(self, uid: int) -> None:
        """Forget a graph, if it is there: a buffer that it touches is freed."""
        self._total -= self._sizes.pop(uid, 0)
