"""From ggml's memory to wire records.

Theory of operation: a graph is sent as its nodes and their direct sources, nothing behind those. A sub-graph of a
split model would otherwise drag in the whole history before it, megabytes a token. A source that is no node of this
graph is data to it: it travels as a leaf, without operation and without sources of its own.

Ids are the addresses of the tensors here; nobody looks anything up by them but the other end, within one message.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from wireherd.ggml import memory
from wireherd.ggml.graph import graph_nodes, graph_uid, graph_use_counts
from wireherd.ggml.structs import TENSOR, TENSOR_SIZE, GraphOffset, TensorOffset
from wireherd.protocol.tensor import HERD_TENSOR, from_herd

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wireherd.bridge.numbering import NumberMap

#: the words of a tensor struct that point at other tensors: `src[10]` and, right after it, `view_src`
_LINKS: Final = slice(TensorOffset.SRC // 8, TensorOffset.VIEW_SRC // 8 + 1)
_WORDS: Final = TENSOR_SIZE // 8
#: GGML_TENSOR_FLAG_COMPUTE
_COMPUTE: Final = 16
#: fields that both records have under one name; numbers of operations and types are mapped afterwards
_SAME: Final = (
    "type", "flags", "ne", "nb", "op", "op_params", "src", "view_src", "view_offs", "name",
)  # fmt: skip
_POINTERS: Final = struct.Struct("<10Q")
#: of a struct: sizes, strides, operation and parameters; of a source: sizes and strides
_NODE_SHAPE: Final = slice(TensorOffset.NE, TensorOffset.FLAGS)
_SOURCE_SHAPE: Final = slice(TensorOffset.NE, TensorOffset.OP)
#: single records remembered before the memory is emptied; a model with a thousand weights fits
MEMO_LIMIT: Final = 8192


class Snapshot(NamedTuple):
    """A graph as it stood in memory: the nodes in the order they run, then their direct sources."""

    uid: int
    n_nodes: int
    #: addresses of the tensors, u64[n]
    ids: NDArray[np.uint64]
    #: copies of the structs, `TENSOR`[n]; what is no node has no operation and no sources
    rows: NDArray[np.void]
    #: how many nodes of the whole graph read each tensor, i32[n]; it decides what may be fused
    use_counts: NDArray[np.int32]


class Handles:
    """The buffers that one peer owns: their address in this process → the handle that the peer gave."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        #: the same as arrays, sorted by address; one tuple, so that no thread sees half of a change
        self._sorted = (np.zeros(0, np.uint64), np.zeros(0, np.uint64))

    def __len__(self) -> int:
        return len(self._known)

    def add(self, buffer: int, handle: int) -> None:
        """Remember a buffer."""
        self._known[buffer] = handle
        self._sort()

    def remove(self, buffer: int) -> None:
        """Forget a buffer."""
        self._known.pop(buffer, None)
        self._sort()

    def get(self, buffer: int) -> int:
        """The handle of a buffer, 0 for one that the peer does not own."""
        return self._known.get(buffer, 0)

    def look_up(self, buffers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The handles of many buffers at once, 0 where the peer does not own one."""
        local, remote = self._sorted
        if not len(local):
            return np.zeros(len(buffers), np.uint64)
        at = np.searchsorted(local, buffers)
        np.minimum(at, len(local) - 1, out=at)
        return np.where(local[at] == buffers, remote[at], np.uint64(0))

    def _sort(self) -> None:
        pairs = sorted(self._known.items())
        self._sorted = (
            np.array([local for local, _ in pairs], np.uint64),
            np.array([remote for _, remote in pairs], np.uint64),
        )


def gather(graph: int) -> Snapshot:
    """Copy the graph at address `graph` (a `ggml_cgraph` of the loaded library)."""
    uid = graph_uid(graph)
    n_nodes = memory.read_i32(graph + GraphOffset.N_NODES)
    if n_nodes <= 0:
        none = np.zeros(0, np.uint64)
        return Snapshot(uid, 0, none, np.zeros(0, TENSOR), np.zeros(0, np.int32))
    ids, rows = _nodes_and_sources(graph_nodes(graph))
    return Snapshot(uid, n_nodes, ids, rows, graph_use_counts(graph, ids))


def running(snapshot: Snapshot) -> Snapshot:
    """The graph without the nodes that are not marked to run, for a peer that would run them all the same.

    libllama puts every branch it may take into a graph and marks one; the inputs of the others hold anything.
    """
    marked = (snapshot.rows["flags"][: snapshot.n_nodes] & _COMPUTE) != 0
    if marked.all():
        return snapshot
    first = np.flatnonzero(marked)
    order = np.concatenate((first, np.setdiff1d(np.arange(len(snapshot.ids)), first)))
    rows = snapshot.rows[order]
    for name in ("op", "src", "view_src", "view_offs"):  # the others are data now
        rows[name][len(first) :] = 0
    return Snapshot(snapshot.uid, len(first), snapshot.ids[order], rows, snapshot.use_counts[order])


def gather_node(node: int) -> Snapshot:
    """Copy one node (address of its `ggml_tensor`) and its sources, as a graph of that node alone."""
    ids, rows = _nodes_and_sources(np.array([node], np.uint64))
    return Snapshot(0, 1, ids, rows, np.zeros(len(ids), np.int32))


def raw_tensor(tensor: int) -> bytes:
    """The 336 bytes of the `ggml_tensor` at this address."""
    return bytes(memory.view(tensor, TENSOR_SIZE, readonly=True))


def sources_of(raw: bytes) -> tuple[int, ...]:
    """The ten source addresses in the raw bytes of a tensor, 0 where there is none."""
    found: tuple[int, ...] = _POINTERS.unpack_from(raw, TensorOffset.SRC)
    return found


def shape_key(raw: bytes) -> bytes:
    """What decides which kernel and how much memory a node needs: its type, sizes, operation, and its sources'."""
    parts = [raw[:4], raw[_NODE_SHAPE]]
    for source in sources_of(raw):
        if source:
            head = bytes(memory.view(source, TensorOffset.OP, readonly=True))
            parts += [head[:4], head[_SOURCE_SHAPE]]
        else:
            parts.append(b"-")
    return b"".join(parts)


def _nodes_and_sources(nodes: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.void]]:
    rows = memory.gather(nodes)
    links = rows.view(np.uint64).reshape(len(nodes), _WORDS)[:, _LINKS]
    known = np.sort(nodes)
    # most of the eleven links of a node are 0: without them there is four times less to sort
    linked = np.unique(links[links != 0])
    at = np.minimum(np.searchsorted(known, linked), len(known) - 1)
    leafs = linked[known[at] != linked]
    if len(leafs):
        sources = memory.gather(leafs)
        sources["op"] = 0
        sources["view_offs"] = 0
        sources.view(np.uint64).reshape(len(leafs), _WORDS)[:, _LINKS] = 0
        rows = np.concatenate((rows, sources))
    return np.concatenate((nodes, leafs)), rows


def to_wire(
    snapshot: Snapshot, dtype: np.dtype[np.void], handles: Handles, numbers: NumberMap
) -> tuple[NDArray[np.uint64], NDArray[np.void]]:
    """Turn a snapshot into what GRAPH_COMPUTE carries: node ids and tensor records of `dtype`.

    Raises:
        UnsupportedOp: the peer has no number for an operation or a type in it.
        LocalProtocolError: a stock record cannot hold a tensor.
    """
    out = _records(snapshot.rows, handles, numbers)
    out["id"] = snapshot.ids
    out["use_count"] = snapshot.use_counts
    return snapshot.ids[: snapshot.n_nodes], from_herd(out, dtype)


def _records(rows: NDArray[np.void], handles: Handles, numbers: NumberMap) -> NDArray[np.void]:
    out = np.zeros(len(rows), HERD_TENSOR)
    for name in _SAME:
        out[name] = rows[name]
    owned = handles.look_up(rows["buffer"])
    out["buffer"] = owned
    # an address means nothing on a peer that does not own the buffer it lies in
    out["data"] = np.where(owned != 0, rows["data"], np.uint64(0))
    numbers.apply(out)
    return out


class TensorRecords:
    """Records of single tensors for one peer, remembered by the 336 raw bytes of the struct.

    A record says where a tensor lies and how it is shaped; it carries no sources, which only graphs have use for.
    """

    def __init__(self, dtype: np.dtype[np.void], handles: Handles, numbers: NumberMap) -> None:
        self._dtype = dtype
        self._handles = handles
        self._numbers = numbers
        self._memo: dict[bytes, bytes] = {}

    def forget(self) -> None:
        """Empty the memory: a buffer came or went, so an address may mean another one now."""
        self._memo.clear()

    def record(self, tensor: int) -> bytes:
        """The record of the `ggml_tensor` at this address, in the peer's dialect and numbers.

        Raises:
            UnsupportedOp: the peer has no number for its type.
            LocalProtocolError: a stock record cannot hold it.
        """
        raw = raw_tensor(tensor)
        known = self._memo.get(raw)
        if known is None:
            known = self._make(raw, tensor)
            if len(self._memo) >= MEMO_LIMIT:
                self._memo.clear()
            self._memo[raw] = known
        return known

    def with_sources(self, tensor: int) -> tuple[bytes, bytes]:
        """The record of a tensor with its operation, and those of its ten sources, zero where there is none."""
        raw = raw_tensor(tensor)
        nothing = bytes(self._dtype.itemsize)
        sources = b"".join(self.record(source) if source else nothing for source in sources_of(raw))
        return self._make(raw, tensor, keep_op=True), sources

    def _make(self, raw: bytes, tensor: int, *, keep_op: bool = False) -> bytes:
        rows = np.frombuffer(raw, TENSOR).copy()
        origin = int(rows["view_src"][0])
        if origin and not rows["buffer"][0]:
            # a view that was never placed lies where its origin does
            rows["buffer"] = memory.read_u64(origin + TensorOffset.BUFFER)
        if not keep_op:
            rows["op"] = 0
            rows["op_params"] = 0
        rows["src"] = 0
        rows["view_src"] = 0
        rows["view_offs"] = 0
        out = _records(rows, self._handles, self._numbers)
        out["id"] = tensor
        return from_herd(out, self._dtype).tobytes()
