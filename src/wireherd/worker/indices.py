"""Tensors that hold indices: their values, looked at right before a graph runs.

ggml checks the indices of GET_ROWS, SET_ROWS and ADD_ID by asserts, which end the process; those of MUL_MAT_ID and
SSM_SCAN it trusts. Indices the client wrote are checked here before each run, by one comparison (a negative number is
a large unsigned one). Indices that the graph itself computes are trusted where ARGSORT or TOP_K makes them, because
these cannot leave their row; where something else makes them, the graph is cut in two there and the values are checked
between the parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from wireherd.errors import BadGraph, OutOfBounds
from wireherd.ggml import memory
from wireherd.worker.facts import COMPUTE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from wireherd.worker.facts import Group, Ints
    from wireherd.worker.ops import OpTable
    from wireherd.worker.validate import Checked

    #: copies `size` bytes at the start of tensor `index` out of a device's memory
    Read = Callable[[int, int], bytearray]

#: up to so many values Python's own max beats numpy's
_FEW: Final = 32
#: most cuts of one graph; each costs a launch
_MAX_CUTS: Final = 512


class Check(NamedTuple):
    """Before node `before`: every value of the tensor at position `tensor` must be below `limit`."""

    before: int
    tensor: int
    limit: int


class _Use(NamedTuple):
    node: int
    tensor: int
    limit: int


class Watch:
    """One check bound to memory; `wrong` is asked before each run."""

    __slots__ = ("_copy", "_few", "_limit", "_name", "_size", "_tensor", "_values")

    def __init__(self, check: Check, graph: Checked, host: bool, read: Read) -> None:
        row = graph.rows[check.tensor]
        facts = graph.facts
        width = int(facts.size[check.tensor])
        shape = [int(n) for n in facts.ne[check.tensor][::-1]]
        strides = [int(n) for n in facts.nb[check.tensor][::-1]]
        nbytes = int(facts.nbytes[check.tensor])
        self._limit = check.limit
        self._tensor = check.tensor
        self._size = nbytes
        self._name = bytes(row["name"]).split(b"\0", 1)[0].decode("utf-8", "replace")
        self._copy: Read | None = None if host else read
        block = memory.view(int(row["data"]), nbytes, readonly=True) if host else bytearray(nbytes)
        kind = np.dtype(f"<u{width}")
        self._values: NDArray[Any] = np.ndarray(shape, kind, block, 0, strides)
        dense = host and self._values.size <= _FEW and self._values.flags.c_contiguous
        self._few: memoryview | None = (
            memoryview(self._values).cast("B").cast("I" if width == 4 else "Q") if dense else None
        )

    def look(self) -> None:
        """Compare the values as they are now.

        Raises:
            OutOfBounds: one is out of range.
        """
        if self._few is not None:
            largest = max(self._few)
        else:
            if self._copy is not None:
                fresh = self._copy(self._tensor, self._size)
                self._values = np.ndarray(self._values.shape, self._values.dtype, fresh, 0, self._values.strides)
            largest = int(self._values.max())
        if largest >= self._limit:
            raise OutOfBounds(f"tensor {self._name!r} holds an index that is not below {self._limit}")


def plan(graph: Checked, groups: Iterable[Group], table: OpTable) -> list[Check]:
    """Which index tensors to look at, and before which node.

    Raises:
        BadGraph: too many indices that the graph computes itself, or a result that lies on its own indices.
    """
    facts = graph.facts
    low = graph.address
    high = low + facts.nbytes
    n_nodes = graph.n_nodes
    op = facts.op[:n_nodes]
    views = np.isin(op, list(table.views))
    runs = ((facts.flags[:n_nodes] & COMPUTE) != 0) & ~facts.empty[:n_nodes]
    writers = np.flatnonzero(runs & ~views)
    uses = [use for group in groups for use in _uses(group, table, runs)]
    checks: dict[tuple[int, int], int] = {}
    for use in uses:
        begin, end = low[use.tensor], high[use.tensor]
        before = writers[: np.searchsorted(writers, use.node)]
        hits = before[(low[before] < end) & (high[before] > begin)]
        at = 0
        if len(hits):
            last = int(hits[-1])
            if _made_in_range(graph, table, last, use, begin, end):
                continue
            at = last + 1
        if low[use.node] < end and high[use.node] > begin:
            raise BadGraph("a result lies on the indices it is computed by")
        key = (at, use.tensor)
        checks[key] = min(use.limit, checks.get(key, use.limit))
    if len({at for at, _ in checks}) > _MAX_CUTS:
        raise BadGraph("too many nodes take indices that the graph computes itself")
    return sorted(Check(at, tensor, limit) for (at, tensor), limit in checks.items())


def _uses(group: Group, table: OpTable, runs: NDArray[np.bool_]) -> list[_Use]:
    rule = table.rules[table.names.index(group.op)]
    if rule is None or rule.indices is None:
        return []
    source, operand, axis = rule.indices
    bound = group.dst if operand < 0 else group.src(operand)
    indices = group.src(source)
    chosen = np.flatnonzero(runs[group.index] & ~indices.empty)
    limits: Ints = bound.dim(axis)
    return [_Use(int(group.index[i]), int(indices.index[i]), int(limits[i])) for i in chosen]


def _made_in_range(graph: Checked, table: OpTable, writer: int, use: _Use, begin: int, end: int) -> bool:
    """Whether the last node that wrote the indices cannot have written one out of range."""
    facts = graph.facts
    if int(facts.op[writer]) not in table.index_makers:
        return False
    row = int(facts.ne[graph.source[writer, 0], 0])
    first = int(graph.address[writer])
    return row <= use.limit and first <= begin and end <= first + int(facts.nbytes[writer])
