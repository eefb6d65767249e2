"""Which graphs a worker's device still holds, so that GRAPH_RECOMPUTE can name one instead of sending it again.

Both ends decide from the same stream of commands, so no message is ever needed to evict. The rules differ by version
(protocol.md of upstream is the code, ggml-rpc.cpp):

    before 3.5   nothing is kept
    3.5 to 7     the last graph of each device, by its uid
    8.0          every uid at first sight, 1,024 a device; a full map is emptied before the next one goes in
    our own      as agreed by GRAPH_CACHE_SIZE (`protocol.kept`): at second sight, also graphs without a uid

Freeing a buffer drops the graphs that touch it on our worker, all of them on a stock server. A stock 8.0 client is not
aware of that; ours is.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from wireherd.errors import WorkerRefused
from wireherd.obs.log import get_logger
from wireherd.protocol.kept import STOCK_GRAPHS, UNASKED, KeptGraphs, Policy, Rule, touched
from wireherd.protocol.messages_graph import GraphCacheSizeRequest, GraphCacheSizeResponse
from wireherd.protocol.messages_herd import Feature

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wireherd.bridge.gather import Handles, Snapshot
    from wireherd.client.endpoint import Endpoint
    from wireherd.protocol.dialect import Dialect

log = get_logger(__name__)

#: names made of content have the top bit; uids count from 1 and never get there
CONTENT_BIT: Final = 1 << 63


class GraphCounts:
    """What a device was asked to run, and how.

    Attributes:
        sent: graphs that went out whole.
        rerun: graphs that went out as their name.
        resets: how often a full cache was emptied.
    """

    __slots__ = ("rerun", "resets", "sent")

    def __init__(self) -> None:
        self.sent = self.rerun = self.resets = 0


class GraphStore(Protocol):
    """What one device of one worker holds."""

    #: for statistics
    counts: GraphCounts
    #: whether more than the last graph may be held
    many: bool
    #: whether graphs are named by `content_key`, those without a uid too
    by_content: bool

    def again(self, uid: int) -> bool:
        """Whether a graph of this uid can be run again by name, which must be done then: it counts as used."""

    def sent(self, uid: int, node_ids: NDArray[np.uint64], tensors: NDArray[Any]) -> None:
        """Take note that a whole graph was sent; uid 0 is never kept."""

    def freed(self, handle: int) -> None:
        """Take note that a buffer is freed."""


class NoGraphs:
    """Nothing is ever kept."""

    many = by_content = False

    def __init__(self) -> None:
        self.counts = GraphCounts()

    def again(self, uid: int) -> bool:
        """Say no."""
        del uid
        return False

    def sent(self, uid: int, node_ids: NDArray[np.uint64], tensors: NDArray[Any]) -> None:
        """Nothing to note."""

    def freed(self, handle: int) -> None:
        """Nothing to drop."""


class LastGraph:
    """The last graph sent, whatever its uid was; by any backend of the device."""

    many = by_content = False

    def __init__(self) -> None:
        self.counts = GraphCounts()
        self._uid = 0

    def again(self, uid: int) -> bool:
        """Whether `uid` was the last one sent."""
        return uid != 0 and uid == self._uid

    def sent(self, uid: int, node_ids: NDArray[np.uint64], tensors: NDArray[Any]) -> None:
        """It takes the place of the one before, also when it has no uid."""
        del node_ids, tensors
        self._uid = uid

    def freed(self, handle: int) -> None:
        """Drop it."""
        del handle
        self._uid = 0


class GraphSet:
    """Every uid since the last time the set was full: the rule of stock 8.0."""

    many = True
    by_content = False

    def __init__(self, where: str = "", capacity: int = STOCK_GRAPHS) -> None:
        """Start empty; `where` names the device in the log."""
        self.counts = GraphCounts()
        self._where = where
        self._capacity = capacity
        self._uids: set[int] = set()

    def again(self, uid: int) -> bool:
        """Whether `uid` is among them."""
        return uid in self._uids

    def sent(self, uid: int, node_ids: NDArray[np.uint64], tensors: NDArray[Any]) -> None:
        """Add it; a full set is emptied first, as the server does at the same command."""
        del node_ids, tensors
        if not uid:
            return
        if len(self._uids) >= self._capacity:
            self._uids.clear()
            _tell_reset(self._where, self.counts, self._capacity)
        self._uids.add(uid)

    def freed(self, handle: int) -> None:
        """Drop all."""
        del handle
        self._uids.clear()


class GraphCache:
    """What our own worker keeps, by a rule that it carries out too."""

    many = True

    def __init__(self, rule: Rule, where: str = "") -> None:
        """Start empty; `where` names the device in the log."""
        self.counts = GraphCounts()
        #: a worker that was not asked keeps what is small by itself
        self.by_content = rule.sights > 1 and rule.graphs > 0
        self._where = where
        self._kept = KeptGraphs(rule)

    def again(self, uid: int) -> bool:
        """Whether `uid` is kept; it counts as used then."""
        return self._kept.again(uid)

    def sent(self, uid: int, node_ids: NDArray[np.uint64], tensors: NDArray[Any]) -> None:
        """Keep it, or remember that it was seen."""
        before = len(self._kept)
        if self._kept.sent(uid, node_ids.nbytes + tensors.nbytes, touched(tensors)).cleared:
            _tell_reset(self._where, self.counts, before)

    def freed(self, handle: int) -> None:
        """Drop those that touch the buffer."""
        self._kept.freed(handle)


def _tell_reset(where: str, counts: GraphCounts, graphs: int) -> None:
    """One line each; only the first is for everybody, so that a cache too small by far does not fill a terminal."""
    tell = log.info if counts.resets else log.warning
    counts.resets += 1
    tell("graph cache of %s is full (%d graphs): cleared", where, graphs)


def content_key(snapshot: Snapshot, handles: Handles) -> int:
    """Name a graph by all that its records are made of: 63 bits of a hash, and the bit that marks it."""
    digest = hashlib.blake2b(snapshot.n_nodes.to_bytes(8, "little"), digest_size=8)
    rows = snapshot.rows
    for part in (snapshot.ids, rows, snapshot.use_counts, handles.look_up(rows["buffer"])):
        digest.update(np.ascontiguousarray(part).view(np.uint8).data)
    return int.from_bytes(digest.digest(), "little") | CONTENT_BIT


def store_for(dialect: Dialect, where: str = "", rule: Rule = UNASKED) -> GraphStore:
    """Give an empty store with the rules of a dialect; `rule` holds for our own."""
    if dialect.herd:
        return GraphCache(rule, where)
    line = dialect.version.line
    if line < (3, 5):
        return NoGraphs()
    if line < (8, 0):
        return LastGraph()
    return GraphSet(where)


def stores_for(endpoint: Endpoint) -> list[GraphStore]:
    """Agree with a worker on its graph cache, where it knows how; an empty store for each of its devices.

    Raises:
        RemoteError, WorkerRefused: it refuses, or grants more than it was asked for.
        WorkerLost: it is gone.
    """
    rule = _agree(endpoint)
    return [
        store_for(endpoint.dialect, f"device {facts.index} of worker {endpoint.name}", rule)
        for facts in endpoint.devices
    ]


def _agree(endpoint: Endpoint) -> Rule:
    if endpoint.hello is None or not endpoint.hello.features & Feature.GRAPH_CACHE:
        return UNASKED
    options = endpoint.session.options
    policy = Policy[options.graph_cache_policy.upper()]
    granted = endpoint.call(GraphCacheSizeRequest(options.graph_cache, policy), GraphCacheSizeResponse)
    if granted.count > options.graph_cache:
        raise WorkerRefused(
            endpoint.name, f"it grants {granted.count} kept graphs where {options.graph_cache} were asked for"
        )
    log.debug("worker %s keeps %d graphs, %d bytes, %s", endpoint.name, granted.count, granted.nbytes, policy.name)
    return Rule(granted.count, granted.nbytes, policy)
