"""From checked records to ggml: tensor structs in one block of memory, and the graph over them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wireherd.errors import BadGraph
from wireherd.ggml.graph import BuiltGraph, build_graph
from wireherd.ggml.structs import TENSOR, TENSOR_SIZE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wireherd.ggml import Library

#: ggml asks for no more, and a cache line keeps neighbours apart
_ALIGN: Final = 64
#: fields that record and struct have in common
_SHARED: Final = ("type", "ne", "nb", "op", "op_params", "flags", "view_offs", "data")


class Block:
    """`ggml_tensor` structs side by side; `rows` is the view of them, dtype `TENSOR`, alive as long as this object."""

    __slots__ = ("_memory", "address", "rows")

    def __init__(self, count: int) -> None:
        self._memory: NDArray[np.uint8] = np.zeros(count * TENSOR_SIZE + _ALIGN, np.uint8)
        start = -self._memory.ctypes.data % _ALIGN
        self.address = self._memory.ctypes.data + start
        self.rows: NDArray[Any] = self._memory[start : start + count * TENSOR_SIZE].view(TENSOR)

    def at(self, index: int) -> int:
        """Address of one struct."""
        return self.address + index * TENSOR_SIZE


def tensors(rows: NDArray[Any], buffers: NDArray[np.uint64]) -> Block:
    """Make structs of records.

    Args:
        rows: HERD_TENSOR[n], checked, in the library's own numbers and with addresses of this process (0 = none).
            Record i has id i + 1, and `src` and `view_src` are such ids or 0.
        buffers: address of each record's `ggml_backend_buffer`, u64[n]; 0 = none.

    Raises:
        BadGraph: a source is none of these ids.
    """
    block = Block(len(rows))
    structs = block.rows
    for field in _SHARED:
        structs[field] = rows[field]
    structs["buffer"] = buffers
    for field in ("src", "view_src"):
        ids = rows[field]
        if len(rows) and int(ids.max()) > len(rows):
            raise BadGraph("a source is not among the tensors of the graph")
        structs[field] = np.where(
            ids == 0, np.uint64(0), (ids - np.uint64(1)) * np.uint64(TENSOR_SIZE) + np.uint64(block.address)
        )
    # numpy pads and cuts at 64 bytes; ggml needs the NUL at the end
    structs["name"] = rows["name"].astype("S63")
    return block


class Rebuilt:
    """A graph over tensor structs of our own; `ptr` is what ggml computes."""

    __slots__ = ("_graph", "block")

    def __init__(self, graph: BuiltGraph, block: Block) -> None:
        self._graph = graph
        self.block = block

    @property
    def ptr(self) -> int:
        """Address of the `ggml_cgraph`; 0 once closed."""
        return self._graph.ptr

    def close(self) -> None:
        """Free the graph."""
        self._graph.close()


def rebuild(lib: Library, n_nodes: int, rows: NDArray[Any], buffers: NDArray[np.uint64], uid: int = 0) -> Rebuilt:
    """Make a graph whose nodes are the first `n_nodes` records, in the order they run; the others have op NONE.

    `flags` are kept as they are, and each node's use count is at least what its record says: nodes outside this part
    of a larger graph may use it too, and kernels fuse by that count.

    Args:
        lib: the library that will run it.
        n_nodes: how many of the records are nodes.
        rows: as for `tensors`.
        buffers: as for `tensors`.
        uid: goes into `ggml_cgraph.uid`.

    Raises:
        BadGraph: a source is missing.
        GgmlFailed: the nodes are in no order in which they can run, or memory is short.
    """
    block = tensors(rows, buffers)
    sources = rows["src"][:n_nodes]
    own = np.bincount(sources[sources != 0].astype(np.int64), minlength=len(rows) + 1)[1 : n_nodes + 1]
    counts = np.maximum(own, rows["use_count"][:n_nodes]).astype(np.int32)
    flags = np.ascontiguousarray(rows["flags"][:n_nodes], np.int32)
    return Rebuilt(build_graph(lib, block.address, n_nodes, len(rows), flags, uid, counts), block)
