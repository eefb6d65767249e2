"""Checks of a graph from the network, before anything of it reaches ggml: about a millisecond for a thousand nodes.

In this order: ids are unique and the sources there (`select` keeps nodes and direct sources, nothing else of what was
sent matters); types, sizes, strides and addresses of every tensor make sense and lie in buffers of this session
(`measure`); every op is on the allow-list with the sources and shapes it may have (`judge`). What fails is a
`RemoteError` with a sentence; what passes has no pointer, number or shape that ggml could stumble over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wireherd.errors import BadGraph, LimitExceeded, NoSuchBuffer, OutOfBounds, RemoteError, UnsupportedOp
from wireherd.worker.facts import COMPUTE, FLAGS, SOURCES, Facts, Group, Types
from wireherd.worker.records import ADDRESS_LIMIT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wireherd.worker.buffers import Buffer, Columns
    from wireherd.worker.devices import Device
    from wireherd.worker.facts import Bools, Ints
    from wireherd.worker.ops import OpTable

#: most nodes of one graph; llama.cpp's largest have some 20,000
MAX_NODES: Final = 1 << 17
#: most elements along one dimension: ggml's kernels count rows and columns in 32 bits
_MAX_DIM: Final = 1 << 31
#: no product of dimensions reaches this, so that rules may multiply them in 64 bits, and by the size of a type
_MAX_ELEMENTS: Final = 1 << 55
#: how often a tensor may show the same memory by overlapping strides, and below which size nobody cares
_MAX_OVERLAP: Final = 256
_SMALL: Final = 1 << 20
_WRAP: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class Selection:
    """The tensors of a graph that matter: its nodes in order, then their sources. Ids are positions + 1.

    `source` is int64[n_nodes, 10]: the position of each source, -1 where there is none.
    """

    rows: NDArray[Any]
    n_nodes: int
    source: Ints
    view: Ints


@dataclass(frozen=True, slots=True)
class Checked:
    """A graph that passed, ready to be rebuilt.

    Attributes:
        rows: HERD_TENSOR[n] in the library's numbers, addresses local, ids dense.
        n_nodes: how many of them are nodes.
        source: int64[n_nodes, 10].
        address: made-up address of each tensor, int64[n].
        facts: its columns.
        native: `ggml_backend_buffer` of each tensor, u64[n].
        owner: index into `columns.buffers` of each tensor, -1 = none.
        touched: the buffers it uses.
    """

    rows: NDArray[Any]
    n_nodes: int
    source: Ints
    address: Ints
    facts: Facts
    native: NDArray[np.uint64]
    owner: Ints
    touched: frozenset[Buffer]


def select(node_ids: NDArray[np.uint64], rows: NDArray[Any]) -> Selection:
    """Find nodes and direct sources among the records of a graph (HERD_TENSOR).

    Nodes with op NONE compute nothing and are dropped. A view whose origin was not sent stands for itself.

    Raises:
        BadGraph: ids are 0 or double, a node or a source is missing.
        LimitExceeded: too many nodes.
    """
    if len(node_ids) > MAX_NODES:
        raise LimitExceeded(f"a graph may have {MAX_NODES} nodes, not {len(node_ids)}")
    ids = np.ascontiguousarray(rows["id"])
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    if len(ids) and ordered[0] == 0:
        raise BadGraph("a tensor has id 0")
    if (ordered[1:] == ordered[:-1]).any():
        raise BadGraph("two tensors have the same id")
    nodes = _find(ordered, order, node_ids)
    if (nodes < 0).any():
        raise BadGraph("a node is not among the tensors of its graph")
    if len(np.unique(nodes)) != len(nodes):
        raise BadGraph("a node runs twice")
    nodes = nodes[rows["op"][nodes] != 0]
    wanted = rows["src"][nodes]
    source = np.where(wanted == 0, -1, _find(ordered, order, wanted))
    if ((source < 0) & (wanted != 0)).any():
        raise BadGraph("a source is not among the tensors of its graph")
    kept = np.zeros(len(rows), np.bool_)
    kept[source[source >= 0]] = True
    kept[nodes] = True
    origin = rows["view_src"]
    view = np.where(origin == 0, -1, _find(ordered, order, origin))
    # what a view shows is kept with it; ggml has it point at the tensor itself, never at another view
    kept[view[kept & (view >= 0)]] = True
    leaf = kept.copy()
    leaf[nodes] = False
    chosen = np.concatenate([nodes, np.flatnonzero(leaf)])
    place = np.full(len(rows) + 1, -1, np.int64)
    place[chosen] = np.arange(len(chosen))
    compact = rows[chosen]
    compact["id"] = np.arange(1, len(chosen) + 1)
    compact["op"][len(nodes) :] = 0
    compact["src"][len(nodes) :] = 0
    source = place[source]
    compact["src"][: len(nodes)] = source + 1
    view = place[view[chosen]]
    compact["view_src"] = view + 1
    compact["flags"] &= FLAGS
    return Selection(compact, len(nodes), source, view)


def _find(ordered: NDArray[np.uint64], order: NDArray[np.int64], wanted: NDArray[np.uint64]) -> Ints:
    """Position of each wanted id; -1 where there is none."""
    if not len(ordered):
        return np.full(wanted.shape, -1, np.int64)
    at = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
    return np.where(ordered[at] == wanted, order[at], -1)


def repair_strides(rows: NDArray[Any], types: Types) -> None:
    """Put back the high halves of strides that a stock record lost; see `records.repaired_strides`."""
    number = np.minimum(rows["type"], len(types.known) - 1).astype(np.int64)
    block, size = np.maximum(types.block[number], 1), types.size[number]
    ne, nb = rows["ne"].clip(0, _MAX_DIM), rows["nb"]
    first = nb[:, 0].astype(np.int64)
    dense = _product(first, np.where(first == size, ne[:, 0] // block, ne[:, 0]))
    for axis in range(1, 4):
        stride = nb[:, axis].astype(np.int64)
        stride = np.where((dense >= _WRAP) & (dense % _WRAP == stride), dense, stride)
        nb[:, axis] = stride
        dense = _product(stride, ne[:, axis])


def _product(stride: Ints, count: Ints) -> Ints:
    """Stride times count; 0 where that is beyond all memory."""
    fits = stride.astype(np.float64) * count.astype(np.float64) < ADDRESS_LIMIT
    return np.where(fits, stride, 0) * np.where(fits, count, 0)


def sane(rows: NDArray[Any], types: Types) -> Bools:
    """Which tensors have a known type, whole blocks, and sizes and strides that fit any memory."""
    known = rows["type"] < len(types.known)
    number = np.where(known, rows["type"], 0).astype(np.int64)
    ok = known & types.known[number]
    ne, nb = rows["ne"], rows["nb"]
    block = np.maximum(types.block[number], 1)
    align = types.align[number].astype(np.uint64)
    ok &= (ne >= 0).all(axis=1) & (ne < _MAX_DIM).all(axis=1) & (ne[:, 0] % block == 0)
    ok &= (nb < ADDRESS_LIMIT).all(axis=1) & ((nb % align[:, None] == 0) | (ne <= 1)).all(axis=1)
    # In float64, so that no product can overflow before it is known to be small.
    size = types.size[number].astype(np.float64)
    wide, step = ne.astype(np.float64), nb.astype(np.float64)
    extent = size + ((np.maximum(wide, 1) - 1) * step).sum(axis=1)
    shown = wide.prod(axis=1) / block * size
    ok &= (extent < ADDRESS_LIMIT) & (shown <= extent * _MAX_OVERLAP + _SMALL)
    # An empty tensor shows nothing, but rules multiply some of its dimensions without the one that is 0.
    ok &= np.maximum(wide, 1).prod(axis=1) < _MAX_ELEMENTS
    return np.asarray(ok)


def _label(rows: NDArray[Any], index: int) -> str:
    name = bytes(rows["name"][index]).split(b"\0", 1)[0].decode("utf-8", "replace")
    return f"tensor {name!r}" if name else f"tensor {index}"


def _refuse(rows: NDArray[Any], bad: Bools, error: type[RemoteError], what: str) -> None:
    if bad.any():
        raise error(f"{_label(rows, int(np.flatnonzero(bad)[0]))} {what}")


def measure(
    chosen: Selection, types: Types, columns: Columns, *, compute_flag: bool, views: frozenset[int], device: Device
) -> Checked:
    """Check every tensor of a graph by itself, and find its memory.

    A node that only renames memory may show what lies elsewhere, as long as nothing that runs needs it: where weights
    are put on another device than the cache of their layer, libllama leaves such views in the graph behind a copy.

    Args:
        chosen: what `select` kept, types and ops in the library's numbers; its rows are changed in place.
        types: the library's types.
        columns: the session's buffers.
        compute_flag: whether the peer's ggml is sure to mark the nodes that are to run; if not, and none is marked, all
            are.
        views: the ops that only rename memory.
        device: where the graph is to run; what lies on another device counts as lying elsewhere.

    Raises:
        BadGraph: impossible type, sizes or strides; a running node needs a tensor that lies nowhere or elsewhere.
        NoSuchBuffer: a buffer that is not this session's.
        OutOfBounds: a tensor that does not lie wholly in its buffer, or a view that leaves what it shows.
    """
    rows, n_nodes = chosen.rows, chosen.n_nodes
    _refuse(rows, ~sane(rows, types), BadGraph, "has an impossible type, size or stride")
    if not compute_flag and not (rows["flags"][:n_nodes] & COMPUTE).any():
        rows["flags"][:n_nodes] |= COMPUTE
    placed, owner = _owners(rows, columns)
    away = np.array([buffer.device is not device for buffer in columns.buffers], np.bool_)
    foreign = placed & _of(away, owner)
    placed, owner = placed & ~foreign, np.where(foreign, -1, owner)
    address = np.where(placed, rows["data"], 0).astype(np.int64)
    base, size = _of(columns.base, owner), _of(columns.size, owner)
    start = address - base
    facts = Facts(types, rows, np.where(placed, size - start, 0))
    outside = (start < 0) | (start > size) | (facts.nbytes > size - start)
    # Nothing of an empty tensor is ever touched, and a part of an empty one may begin beyond it: libllama makes such
    # views where a micro-batch has no outputs.
    stray = placed & outside & facts.empty & (chosen.view >= 0)
    placed, owner = placed & ~stray, np.where(stray, -1, owner)
    _refuse(rows, placed & outside, OutOfBounds, "lies outside its buffer")
    align = types.align[facts.type]
    _refuse(rows, placed & ~facts.empty & (address % align != 0), BadGraph, "is not aligned")
    _check_views(chosen, placed, owner, address, facts)
    running = ((facts.flags[:n_nodes] & COMPUTE) != 0) & ~facts.empty[:n_nodes]
    running &= ~np.isin(facts.op[:n_nodes], list(views))
    other = (chosen.source >= 0) & foreign[chosen.source]
    other_device = running & (other.any(axis=1) | foreign[:n_nodes])
    _refuse(rows, other_device, BadGraph, "uses buffers of another device than it runs on")
    lacking = (chosen.source >= 0) & ~placed[chosen.source] & ~facts.empty[chosen.source]
    _refuse(rows, running & (lacking.any(axis=1) | ~placed[:n_nodes]), BadGraph, "runs on tensors without memory")
    local = _of(columns.local, owner).astype(np.uint64)
    rows["data"] = np.where(placed, local + start.astype(np.uint64), np.uint64(0))
    native = np.where(placed, _of(columns.native, owner).astype(np.uint64), np.uint64(0))
    touched = frozenset(columns.buffers[index] for index in np.unique(owner[placed]))
    return Checked(rows, n_nodes, chosen.source, address, facts, native, owner, touched)


def _owners(rows: NDArray[Any], columns: Columns) -> tuple[Bools, Ints]:
    """Which tensors have a buffer, and which one (-1 = none)."""
    handle = rows["buffer"]
    placed = handle != 0
    found = np.full(len(rows), -1, np.int64)
    if len(columns.handle):
        at = np.minimum(np.searchsorted(columns.handle, handle), len(columns.handle) - 1)
        found = np.where(columns.handle[at] == handle, at, -1)
    _refuse(rows, placed & (found < 0), NoSuchBuffer, "is in a buffer that this session does not have")
    _refuse(rows, placed & (rows["data"] >= ADDRESS_LIMIT), OutOfBounds, "lies outside its buffer")
    return np.asarray(placed), np.where(placed, found, -1)


def _of(column: NDArray[Any], owner: Ints) -> NDArray[Any]:
    return column[owner] if len(column) else np.zeros(len(owner), column.dtype)


def _check_views(chosen: Selection, placed: Bools, owner: Ints, address: Ints, facts: Facts) -> None:
    """A view lies wholly in what it shows; its offset is worked out anew, and an origin without memory is dropped."""
    rows, view = chosen.rows, chosen.view
    of = np.maximum(view, 0)
    shown = (view >= 0) & placed & placed[of]
    inside = (owner == owner[of]) & (address >= address[of])
    inside &= facts.empty | (address + facts.nbytes <= address[of] + facts.nbytes[of])
    _refuse(rows, shown & ~inside, OutOfBounds, "is a view that leaves the tensor it shows")
    rows["view_src"] = np.where(shown, rows["view_src"], 0)
    rows["view_offs"] = np.where(shown, address - address[of], 0)


@dataclass(slots=True)
class Verdict:
    """Which nodes may run, and the groups of equal ops that the index checks go through."""

    ok: Bools
    error: RemoteError | None
    groups: list[Group]


def judge(rows: NDArray[Any], n_nodes: int, source: Ints, facts: Facts, table: OpTable) -> Verdict:
    """Hold every node against the allow-list and the rule of its op."""
    verdict = Verdict(np.ones(n_nodes, np.bool_), None, [])
    own = np.arange(n_nodes)[:, None]
    late = (source >= own) & (source < n_nodes)
    op = facts.op[:n_nodes]
    # ggml_cast makes a CPY whose second source is the node itself
    late[:, 1] &= ~((op == table.cpy) & (source[:, 1] == own[:, 0]))
    _fail(verdict, rows, np.asarray(late.any(axis=1)), BadGraph, "runs before one of its sources")
    present = source >= 0
    for number in np.unique(op):
        members = np.flatnonzero(op == number)
        name = table.name(int(number))
        rule = table.rules[number] if number < len(table.rules) else None
        if rule is None:
            _fail(verdict, rows, op == number, UnsupportedOp, f"runs {name}, which this worker does not take")
            continue
        have = present[members]
        counted = have[:, : rule.required].all(axis=1) & ~have[:, rule.allowed : SOURCES].any(axis=1)
        _fail(verdict, rows, _mark(members[~counted], n_nodes), BadGraph, f"has other sources than {name} takes")
        known = ~facts.params[members, rule.params :].any(axis=1)
        _fail(verdict, rows, _mark(members[~known], n_nodes), BadGraph, f"has other parameters than {name} takes")
        members = members[counted & known]
        group = Group(name, facts, members, source[members])
        with np.errstate(all="ignore"):
            rule.check(group)
        if not group.ok.all():
            first = int(np.flatnonzero(~group.ok)[0])
            error = BadGraph(f"{_label(rows, int(members[first]))}: {name}: {group.reason(first)}")
            verdict.error = verdict.error or error
            verdict.ok[members] &= group.ok
        verdict.groups.append(group)
    return verdict


def _mark(members: Ints, count: int) -> Bools:
    marks = np.zeros(count, np.bool_)
    marks[members] = True
    return marks


def _fail(verdict: Verdict, rows: NDArray[Any], bad: Bools, error: type[RemoteError], what: str) -> None:
    if bad.any():
        verdict.ok &= ~bad
        verdict.error = verdict.error or error(f"{_label(rows, int(np.flatnonzero(bad)[0]))} {what}")
