"""Graphs built from a block of tensor structs, and the look into graphs that ggml built.

ggml exports no function that takes nodes in a given order, so a graph is built as llama.cpp's own RPC server does it:
`ggml_new_graph_custom`, then `ggml_build_forward_expand` for each node in turn. Three things that spoils are put
right afterwards: the COMPUTE flags (expand sets them on everything, and inactive nodes have uninitialised inputs),
the use counts (a part of a larger graph is used from outside it too, and kernels fuse by them) and the uid.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from wireherd.errors import GgmlFailed
from wireherd.ggml import memory
from wireherd.ggml.structs import TENSOR, TENSOR_SIZE, GraphOffset, InitParams

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wireherd.ggml.library import Library


class BuiltGraph:
    """A `ggml_cgraph` of our own making. The tensor structs it points at belong to the caller and must outlive it."""

    __slots__ = ("_context", "_free", "_memory", "ptr")

    def __init__(self, ptr: int, context: int, free: Any, block: ctypes.Array[Any]) -> None:
        #: address of the `ggml_cgraph`
        self.ptr = ptr
        self._context = context
        self._free = free
        self._memory: ctypes.Array[Any] | None = block

    def close(self) -> None:
        """Free the graph; `ptr` becomes 0."""
        if self._context:
            self._free(self._context)
            self._context = 0
            self.ptr = 0
            self._memory = None


def build_graph(
    lib: Library,
    tensors_address: int,
    n_nodes: int,
    n_tensors: int,
    flags: NDArray[np.int32],
    uid: int,
    use_counts: NDArray[np.int32] | None = None,
) -> BuiltGraph:
    """Build a graph over `n_tensors` adjoining `ggml_tensor` structs at `tensors_address` (16-byte aligned).

    The first `n_nodes` are the nodes in the order they run, the others their sources; the structs' pointers are local
    and valid, and a source that is no node has op NONE and no sources of its own.

    Args:
        lib: the library that will run it.
        tensors_address: where the structs lie.
        n_nodes: how many of them are nodes.
        n_tensors: how many there are.
        flags: `ggml_tensor.flags` of the nodes, i4[n_nodes], restored after building.
        uid: goes into `ggml_cgraph.uid`; 0 for none.
        use_counts: how often each node is used, i4[n_nodes]; None keeps what the uses inside this graph add up to.

    Raises:
        GgmlFailed: the nodes are not in an order in which each comes after its sources, or memory is short.
    """
    c = lib.c
    capacity = max(n_tensors, 64)
    size = c.ggml_graph_overhead_custom(capacity, False) + 512
    block = ctypes.create_string_buffer(size + 16)
    start = (ctypes.addressof(block) + 15) & ~15
    context = c.ggml_init(InitParams(size, start, True))
    if not context:
        raise GgmlFailed("ggml could not make a context for a graph")
    graph = BuiltGraph(c.ggml_new_graph_custom(context, capacity, False), context, c.ggml_free, block)
    pointer = graph.ptr
    expand = c.ggml_build_forward_expand
    for address in range(tensors_address, tensors_address + n_nodes * TENSOR_SIZE, TENSOR_SIZE):
        expand(pointer, address)
    if memory.read_i32(pointer + GraphOffset.N_NODES) != n_nodes or not _in_order(pointer, tensors_address, n_nodes):
        graph.close()
        raise GgmlFailed("the nodes of a graph are not in an order in which they can run")
    if n_nodes:
        memory.array(tensors_address, n_nodes, TENSOR)["flags"] = flags
        if use_counts is not None:
            ids = np.arange(n_nodes, dtype=np.uint64) * np.uint64(TENSOR_SIZE) + np.uint64(tensors_address)
            _counts(pointer)[_hash_positions(pointer, ids)] = use_counts
    memory.write_u64(pointer + GraphOffset.UID, uid)
    return graph


def _in_order(pointer: int, first: int, n_nodes: int) -> bool:
    if not n_nodes:
        return True
    nodes = graph_nodes(pointer)
    return int(nodes[0]) == first and bool((np.diff(nodes) == TENSOR_SIZE).all())


def graph_nodes(pointer: int) -> NDArray[np.uint64]:
    """Addresses of a graph's nodes, u64[n], as a view of ggml's own array: copy it to keep it."""
    return memory.array(
        memory.read_u64(pointer + GraphOffset.NODES),
        memory.read_i32(pointer + GraphOffset.N_NODES),
        np.uint64,
    )


def graph_uid(pointer: int) -> int:
    """The graph's uid; 0 if it has none."""
    return memory.read_u64(pointer + GraphOffset.UID)


def graph_use_counts(pointer: int, addresses: NDArray[np.uint64]) -> NDArray[np.int32]:
    """How often each tensor (u64[n] addresses) is a source in the graph, i4[n]; 0 for tensors it does not know."""
    positions = _hash_positions(pointer, addresses)
    found: NDArray[np.int32] = np.where(positions < 0, 0, _counts(pointer)[np.maximum(positions, 0)]).astype(np.int32)
    return found


def _counts(pointer: int) -> NDArray[np.int32]:
    return memory.array(
        memory.read_u64(pointer + GraphOffset.USE_COUNTS),
        memory.read_u64(pointer + GraphOffset.HASH_SIZE),
        np.int32,
    )


def _hash_positions(pointer: int, addresses: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Where ggml's hash set keeps each address; -1: nowhere.

    The rule is ggml-impl.h's: address >> 4 modulo size, then linear probing. A key counts only where its bit in
    `used` is set: ggml resets the bits, never the keys.
    """
    size = memory.read_u64(pointer + GraphOffset.HASH_SIZE)
    keys = memory.array(memory.read_u64(pointer + GraphOffset.HASH_KEYS), size, np.uint64)
    words = memory.array(memory.read_u64(pointer + GraphOffset.HASH_USED), (size + 31) // 32, np.uint32)
    used = np.unpackbits(words.view(np.uint8), bitorder="little")[:size].view(bool)
    positions: NDArray[np.int64] = ((addresses >> np.uint64(4)) % np.uint64(size)).astype(np.int64)
    open_ = np.arange(len(addresses))
    for _ in range(size):
        here = positions[open_]
        empty = ~used[here]
        positions[open_[empty]] = -1
        open_ = open_[~empty & (keys[here] != addresses[open_])]
        if not len(open_):
            break
        positions[open_] = (positions[open_] + 1) % size
    return positions
