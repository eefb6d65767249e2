"""Graphs of one session: checked, rebuilt, run, and kept for GRAPH_RECOMPUTE.

What is kept follows from the commands alone (`protocol.kept`), so both ends know it without asking. One of our clients
asks for a cache and says what a full one does; until then, and for stock clients, graphs are kept at first sight: from
8.0 on the last ones of each device by number and by bytes, since no limit on buffers counts this memory, before that
the very last. Freeing a buffer drops the graphs that touch it, and only those: a client that runs one of the others
again must find it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wireherd.bridge import rebuild
from wireherd.errors import BadGraph, Cancelled, GgmlFailed, GraphFailed, NoSuchGraph, NotAllowed, UnsupportedOp
from wireherd.ggml import memory
from wireherd.ggml.enums import Status
from wireherd.obs.log import get_logger
from wireherd.protocol.kept import UNASKED, KeptGraphs, Rule, rule_of, touched
from wireherd.protocol.tensor import to_herd
from wireherd.protocol.version import Version
from wireherd.worker import indices, validate
from wireherd.worker.facts import COMPUTE, Facts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wireherd.bridge.numbering import NumberMap
    from wireherd.ggml import Library
    from wireherd.protocol.dialect import Dialect
    from wireherd.worker.buffers import Buffer, Buffers
    from wireherd.worker.devices import Device
    from wireherd.worker.facts import Types
    from wireherd.worker.ops import OpTable

log = get_logger(__name__)

#: largest graph without a uid that is remembered by its content, bytes of records; and how many of them
_SMALL: Final = 16 << 10
_SMALL_COUNT: Final = 1024
#: first version that names graphs
_WITH_UIDS: Final = Version(8, 0)
#: before that, a device's kept graph needs no name
_NAMELESS: Final = 1


class Part:
    """A run of nodes without a stop, and what to look at before it."""

    __slots__ = ("graph", "watches")

    def __init__(self, graph: rebuild.Rebuilt, watches: list[indices.Watch]) -> None:
        self.graph = graph
        self.watches = watches


class Kept:
    """A rebuilt graph."""

    __slots__ = ("device", "parts", "touched")

    def __init__(self, device: Device, parts: list[Part], touched: frozenset[Buffer]) -> None:
        self.device = device
        self.parts = parts
        self.touched = touched

    def close(self) -> None:
        """Free it."""
        for part in self.parts:
            part.graph.close()


class Cache:
    """The kept graphs of one device."""

    __slots__ = ("_where", "graphs", "rule")

    def __init__(self, rule: Rule, where: str) -> None:
        self.rule = KeptGraphs(rule)
        self.graphs: dict[int, Kept] = {}
        self._where = where

    def add(self, uid: int, graph: Kept, node_ids: NDArray[np.uint64], tensors: NDArray[Any]) -> bool:
        """Keep a graph that came whole, if the rule says so; whether it is kept now."""
        graphs = self.graphs
        before = len(graphs)
        result = self.rule.sent(uid, node_ids.nbytes + tensors.nbytes, touched(tensors))
        if result.cleared:
            log.info("graph cache of %s is full (%d graphs): cleared", self._where, before)
        for gone in result.gone:
            graphs.pop(gone).close()
        if result.kept:
            if uid in graphs:
                graphs[uid].close()
            graphs[uid] = graph
        return result.kept

    def forget(self, handle: int) -> None:
        """Drop the graphs that touch a buffer."""
        for uid in self.rule.freed(handle):
            self.graphs.pop(uid).close()

    def close(self) -> None:
        """Drop all."""
        for graph in self.graphs.values():
            graph.close()
        self.graphs.clear()


class Graphs:
    """The graphs of one session."""

    def __init__(self, lib: Library, types: Types, table: OpTable, buffers: Buffers) -> None:
        self._lib = lib
        self._types = types
        self._table = table
        self._buffers = buffers
        #: by device
        self._caches: dict[int, Cache] = {}
        self._small: dict[tuple[int, bytes, bytes], Kept] = {}
        self._numbers: NumberMap | None = None
        self._narrow = False
        self._compute_flag = True
        self._by_uid = True
        self._rule = UNASKED
        #: whether the client asked for a cache: then it names graphs without a uid by itself
        self._agreed = False
        self._started = False
        self.cancelled = False

    def speak(self, dialect: Dialect, numbers: NumberMap | None) -> None:
        """Take graphs of `dialect` from now on; `numbers` maps the peer's numbers, None if they are ours."""
        self._numbers = numbers
        self._narrow = not dialect.herd
        self._compute_flag = dialect.marks_nodes
        self._by_uid = dialect.version >= _WITH_UIDS
        self._rule = rule_of(dialect)

    def agree(self, rule: Rule) -> None:
        """Keep graphs by this rule, as agreed with the client.

        Raises:
            NotAllowed: a graph came before, or this is the second time.
        """
        if self._started or self._agreed:
            raise NotAllowed("a graph cache is asked for once, before the first graph")
        self._rule = rule
        self._agreed = True

    def __len__(self) -> int:
        return sum(len(cache.graphs) for cache in self._caches.values())

    def compute(self, device: Device, uid: int, node_ids: NDArray[np.uint64], tensors: NDArray[Any]) -> None:
        """Check a graph, run it, and keep it if it is to be kept.

        Raises:
            RemoteError: it was refused, or failed.
        """
        self._started = True
        if not self._agreed and self._by_uid and not uid and tensors.nbytes <= _SMALL:
            self._run(self._remembered(device, node_ids, tensors))
            return
        graph = self._build(device, uid, node_ids, tensors)
        kept = self._cache(device).add(uid if self._by_uid else _NAMELESS, graph, node_ids, tensors)
        try:
            self._run(graph)
        finally:
            if not kept:
                graph.close()

    def _cache(self, device: Device) -> Cache:
        cache = self._caches.get(device.index)
        if cache is None:
            cache = self._caches[device.index] = Cache(self._rule, f"device {device.index}")
        return cache

    def _remembered(self, device: Device, node_ids: NDArray[np.uint64], tensors: NDArray[Any]) -> Kept:
        """A graph without a uid, found by its bytes: a tensor split sends the same few small ones at every token."""
        key = (device.index, node_ids.tobytes(), tensors.tobytes())
        graph = self._small.get(key)
        if graph is None:
            graph = self._build(device, 0, node_ids, tensors)
            if len(self._small) >= _SMALL_COUNT:
                self._small.pop(next(iter(self._small))).close()
            self._small[key] = graph
        return graph

    def recompute(self, device: Device, uid: int) -> None:
        """Run a kept graph again.

        Raises:
            NoSuchGraph: it is not kept (any more).
            RemoteError: it failed.
        """
        cache = self._caches.get(device.index)
        uid = uid if self._by_uid else _NAMELESS
        if cache is None or not cache.rule.again(uid):
            raise NoSuchGraph(f"device {device.index} has no kept graph {uid:#x}")
        self._run(cache.graphs[uid])

    def supported(self, device: Device, node_ids: NDArray[np.uint64], tensors: NDArray[Any]) -> bytes:
        """One byte for each node: 1 if the device can run it. Tensors need no memory.

        Raises:
            BadGraph: ids or sources do not hang together.
        """
        rows = self._local(tensors)
        chosen = validate.select(node_ids, rows)
        if len(node_ids) != chosen.n_nodes:
            raise BadGraph("a node without an operation cannot be asked about")
        rows = chosen.rows
        good = validate.sane(rows, self._types)
        # what makes no sense is replaced by an empty tensor, so that the columns can be worked out for the others
        for field, value in (("type", self._types.f32), ("ne", 0), ("nb", 0)):
            rows[field][~good] = value
        rows["buffer"] = rows["data"] = rows["view_src"] = 0
        rows["flags"][: chosen.n_nodes] |= COMPUTE
        facts = Facts(self._types, rows, None)
        verdict = validate.judge(rows, chosen.n_nodes, chosen.source, facts, self._table)
        ok = verdict.ok & good[: chosen.n_nodes]
        ok &= (good[chosen.source] | (chosen.source < 0)).all(axis=1)
        block = rebuild.tensors(rows, np.zeros(len(rows), np.uint64))
        return bytes(int(ok[i] and device.native.supports_op(block.at(i))) for i in range(chosen.n_nodes))

    def forget(self, buffer: Buffer) -> None:
        """Drop the graphs that touch a buffer; to be called before it is freed."""
        for cache in self._caches.values():
            cache.forget(buffer.handle)
        for key in [key for key, graph in self._small.items() if buffer in graph.touched]:
            self._small.pop(key).close()

    def close(self) -> None:
        """Drop all graphs."""
        for cache in self._caches.values():
            cache.close()
        for graph in self._small.values():
            graph.close()
        self._caches.clear()
        self._small.clear()

    def _local(self, tensors: NDArray[Any]) -> NDArray[Any]:
        """A copy of the records in our own layout; types and ops stay the peer's."""
        rows = to_herd(tensors)
        return rows.copy() if rows is tensors else rows

    def _build(self, device: Device, uid: int, node_ids: NDArray[np.uint64], tensors: NDArray[Any]) -> Kept:
        chosen = validate.select(node_ids, self._local(tensors))
        if self._numbers is not None:
            self._numbers.apply(chosen.rows)
        if self._narrow:
            validate.repair_strides(chosen.rows, self._types)
        columns = self._buffers.columns()
        graph = validate.measure(
            chosen,
            self._types,
            columns,
            compute_flag=self._compute_flag,
            views=self._table.views,
            device=device,
        )
        verdict = validate.judge(graph.rows, graph.n_nodes, graph.source, graph.facts, self._table)
        if verdict.error is not None:
            raise verdict.error
        checks = indices.plan(graph, verdict.groups, self._table)
        try:
            return self._assemble(device, uid, graph, checks)
        except GgmlFailed as error:
            raise BadGraph(str(error)) from error

    def _assemble(self, device: Device, uid: int, graph: validate.Checked, checks: list[indices.Check]) -> Kept:
        """Rebuild the graph, in parts where values must be looked at in between."""
        cuts = sorted({0, *(check.before for check in checks)})
        parts: list[Part] = []
        whole = Kept(device, parts, graph.touched)
        try:
            for begin, end in zip(cuts, [*cuts[1:], graph.n_nodes], strict=True):
                rows, native = (graph.rows, graph.native) if len(cuts) == 1 else _slice(graph, begin, end)
                rebuilt = rebuild.rebuild(self._lib, end - begin, rows, native, uid if len(cuts) == 1 else 0)
                parts.append(Part(rebuilt, []))
                self._ask(device, rebuilt.block, end - begin, rows)
                due = [check for check in checks if check.before == begin]
                parts[-1].watches = [self._watch(check, graph) for check in due]
        except BaseException:
            whole.close()
            raise
        return whole

    def _ask(self, device: Device, block: rebuild.Block, n_nodes: int, rows: NDArray[Any]) -> None:
        """The device's own word on each node."""
        supports = device.native.supports_op
        for index in range(n_nodes):
            if not supports(block.at(index)):
                name = self._table.name(int(rows["op"][index]))
                raise UnsupportedOp(f"{device.native.name} has no kernel for {name} with these types and shapes")

    def _watch(self, check: indices.Check, graph: validate.Checked) -> indices.Watch:
        buffer = self._buffers.columns().buffers[graph.owner[check.tensor]]
        row, native = graph.rows[check.tensor : check.tensor + 1].copy(), graph.native[check.tensor : check.tensor + 1]

        def read(_tensor: int, size: int) -> bytearray:
            row["id"], row["src"], row["view_src"] = 1, 0, 0
            block = rebuild.tensors(row, native)
            data = bytearray(size)
            buffer.native.tensor_get(block.address, memory.address_of(data), 0, size)
            return data

        return indices.Watch(check, graph, buffer.view is not None, read)

    def _run(self, graph: Kept) -> None:
        backend = graph.device.backend
        for part in graph.parts:
            for watch in part.watches:
                watch.look()
            if self.cancelled:
                raise Cancelled("the client cancelled")
            status = backend.compute(part.graph.ptr)
            if status:
                if status == Status.ABORTED and self.cancelled:
                    raise Cancelled("the client cancelled")
                raise GraphFailed(f"{graph.device.native.name} failed to compute a graph (status {status})")


def _slice(graph: validate.Checked, begin: int, end: int) -> tuple[NDArray[Any], NDArray[np.uint64]]:
    """Records and buffers of the nodes from `begin` to `end` as a graph of their own: earlier nodes become sources."""
    source = graph.source[begin:end]
    view = graph.rows["view_src"].astype(np.int64) - 1
    kept = np.zeros(len(graph.rows), np.bool_)
    kept[source[source >= 0]] = True
    kept[begin:end] = True
    kept[view[kept & (view >= 0)]] = True
    kept[begin:end] = False
    chosen = np.concatenate([np.arange(begin, end), np.flatnonzero(kept)])
    place = np.full(len(graph.rows) + 1, -1, np.int64)
    place[chosen] = np.arange(len(chosen))
    rows = graph.rows[chosen]
    count = end - begin
    rows["id"] = np.arange(1, len(chosen) + 1)
    rows["op"][count:] = 0
    rows["src"][count:] = 0
    rows["src"][:count] = place[source] + 1
    rows["view_src"] = place[view[chosen]] + 1
    return rows, graph.native[chosen]
