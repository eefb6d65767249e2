"""Messages that carry or name a graph.

`node_ids` are the nodes in the order they run; `tensors` are the records of nodes and sources, in the dialect's dtype.
On receipt both are views of the payload: copy what must outlive the next read.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from wireherd.protocol.fields import NODE_IDS, TAIL, TENSOR_ROWS, U32, U64, Message, message, wire
from wireherd.protocol.version import Version

NodeIds = np.ndarray[Any, np.dtype[np.uint64]]
TensorRows = np.ndarray[Any, np.dtype[np.void]]


def _same(left: Message, right: object) -> bool:
    if type(left) is not type(right):
        return False
    for field in dataclasses.fields(left):  # type: ignore[arg-type]
        one, two = getattr(left, field.name), getattr(right, field.name)
        if isinstance(one, np.ndarray):
            if one.dtype != two.dtype or one.tobytes() != two.tobytes():
                return False
        elif one != two:
            return False
    return True


@message
class GraphComputeRequest(Message):
    """Run a graph, and keep it for GRAPH_RECOMPUTE: by the version's rule, or as agreed by GRAPH_CACHE_SIZE."""

    device: int = wire(U32, "index of the device")
    uid: int = wire(U64, "name of the graph, 0 = do not keep it", since=Version(8, 0), absent=0)
    node_ids: NodeIds = wire(NODE_IDS, "ids of the nodes in the order they run")
    tensors: TensorRows = wire(TENSOR_ROWS, "records of nodes and sources")

    def __eq__(self, other: object) -> bool:
        return _same(self, other)

    __hash__ = None  # type: ignore[assignment]


@message
class GraphRecomputeRequest(Message):
    """Run a kept graph again: the one of that uid, before 8.0 the device's last."""

    device: int = wire(U32, "index of the device")
    uid: int = wire(U64, "name of the graph", since=Version(8, 0), absent=0)


@message
class GraphCacheSizeRequest(Message):
    """Ask for room for graphs on every device; each is kept when it comes for the second time, not for the first."""

    count: int = wire(U32, "graphs a device, 0 = keep none")
    policy: int = wire(U32, "what a full cache does: 0 = forget all (reset), 1 = forget the one used longest ago (lru)")


@message
class GraphCacheSizeResponse(Message):
    """The room that the worker grants; the policy is as asked."""

    count: int = wire(U32, "graphs a device")
    nbytes: int = wire(U64, "bytes of records of all kept graphs of a device")


@message
class SupportsOpRequest(Message):
    """Ask which nodes a device can run."""

    device: int = wire(U32, "index of the device")
    node_ids: NodeIds = wire(NODE_IDS, "ids of the nodes asked about")
    tensors: TensorRows = wire(TENSOR_ROWS, "records of nodes and sources")

    def __eq__(self, other: object) -> bool:
        return _same(self, other)

    __hash__ = None  # type: ignore[assignment]


@message
class SupportsOpResponse(Message):
    """One byte a node, in the order asked."""

    supported: bytes = wire(TAIL, "1 = the device can run it")
