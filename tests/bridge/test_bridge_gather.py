"""Graphs and tensors of the real library, read out of memory and turned into records."""

from __future__ import annotations

import numpy as np
import pytest

from wireherd import ggml
from wireherd.bridge import rebuild
from wireherd.bridge.gather import (
    Handles,
    TensorRecords,
    gather,
    gather_node,
    raw_tensor,
    running,
    shape_key,
    sources_of,
    to_wire,
)
from wireherd.bridge.numbering import NumberMap
from wireherd.ggml import memory
from wireherd.ggml.structs import TENSOR, GraphOffset, InitParams, TensorOffset
from wireherd.protocol.dialect import dialect_for
from wireherd.protocol.numbering import Numbering
from wireherd.protocol.tensor import HERD_TENSOR, STOCK_TENSOR, unpack
from wireherd.protocol.version import Version

BUFFER, HANDLE = 0x5000, 0xABCDEF


@pytest.fixture(scope="module")
def lib() -> ggml.Library:
    return ggml.load()


@pytest.fixture
def context(lib: ggml.Library):
    pointer = lib.c.ggml_init(InitParams(1 << 20, 0, True))
    yield pointer
    lib.c.ggml_free(pointer)


@pytest.fixture
def numbers(lib: ggml.Library) -> NumberMap:
    own = Numbering.of(*lib.numbering())
    return NumberMap(own, own)


@pytest.fixture
def handles() -> Handles:
    known = Handles()
    known.add(BUFFER, HANDLE)
    return known


def place(tensor: int, address: int, buffer: int = BUFFER) -> int:
    memory.write_u64(tensor + TensorOffset.BUFFER, buffer)
    memory.write_u64(tensor + TensorOffset.DATA, address)
    return tensor


def graph_of(lib: ggml.Library, context: int, *results: int, uid: int = 0) -> int:
    graph = lib.c.ggml_new_graph_custom(context, 64, False)
    for result in results:
        lib.c.ggml_build_forward_expand(graph, result)
    memory.write_u64(graph + GraphOffset.UID, uid)
    return graph


def test_a_branch_that_is_not_taken_is_left_out(lib: ggml.Library, context: int) -> None:
    """What a node that runs needs of it becomes data; nothing of it keeps an operation or sources."""
    c = lib.c
    one, two = c.ggml_new_tensor_1d(context, 0, 8), c.ggml_new_tensor_1d(context, 0, 8)
    aside = c.ggml_add(context, one, two)
    result = c.ggml_silu(context, aside)
    graph = graph_of(lib, context, result)
    assert running(gather(graph)).n_nodes == 2
    memory.write_i32(aside + TensorOffset.FLAGS, 0)
    whole, part = gather(graph), running(gather(graph))
    assert (whole.n_nodes, part.n_nodes) == (2, 1)
    assert list(part.ids[:1]) == [result]
    assert set(part.ids[1:]) == {one, two, aside}
    assert part.rows["src"][0].tolist()[0] == aside
    assert not part.rows["op"][1:].any()
    assert not part.rows["src"][1:].any()
    assert part.use_counts.tolist() == [dict(zip(whole.ids, whole.use_counts, strict=True))[i] for i in part.ids]


def test_nodes_come_first_and_then_their_sources(lib: ggml.Library, context: int) -> None:
    c = lib.c
    one, two = c.ggml_new_tensor_1d(context, 0, 8), c.ggml_new_tensor_1d(context, 0, 8)
    total = c.ggml_add(context, one, two)
    result = c.ggml_silu(context, total)
    snapshot = gather(graph_of(lib, context, result, uid=42))
    assert snapshot.uid == 42
    assert snapshot.n_nodes == 2
    assert list(snapshot.ids[:2]) == [total, result]
    assert set(snapshot.ids[2:]) == {one, two}
    names = lib.numbering().ops
    assert [names[op] for op in snapshot.rows["op"]] == ["ADD", "UNARY", "NONE", "NONE"]
    assert list(snapshot.rows["src"][0, :2]) == [one, two]


def test_nothing_behind_the_direct_sources(lib: ggml.Library, context: int) -> None:
    """A part of a graph: what it reads from the part before travels as data."""
    c = lib.c
    tensor = c.ggml_new_tensor_1d(context, 0, 8)
    first = c.ggml_silu(context, tensor)
    second = c.ggml_silu(context, first)
    whole = graph_of(lib, context, second)
    nodes = memory.read_u64(whole + GraphOffset.NODES)
    memory.write_u64(whole + GraphOffset.NODES, nodes + 8)
    memory.write_i32(whole + GraphOffset.N_NODES, 1)
    snapshot = gather(whole)
    assert list(snapshot.ids) == [second, first]
    assert snapshot.rows["op"][1] == 0
    assert not snapshot.rows["src"][1].any()
    # the set of the whole graph still knows that the second silu reads the first
    assert snapshot.use_counts[1] == 1


def test_views_bring_their_origin(lib: ggml.Library, context: int) -> None:
    c = lib.c
    tensor = c.ggml_new_tensor_1d(context, 0, 8)
    view = c.ggml_view_1d(context, tensor, 4, 16)
    snapshot = gather(graph_of(lib, context, c.ggml_silu(context, view)))
    assert tensor in snapshot.ids
    at = list(snapshot.ids).index(view)
    assert snapshot.rows["view_src"][at] == tensor
    assert snapshot.rows["view_offs"][at] == 16


def test_an_empty_graph(lib: ggml.Library, context: int) -> None:
    snapshot = gather(lib.c.ggml_new_graph_custom(context, 64, False))
    assert snapshot.n_nodes == 0
    assert len(snapshot.ids) == 0


def test_use_counts_say_who_is_read(lib: ggml.Library, context: int) -> None:
    c = lib.c
    tensor = c.ggml_new_tensor_1d(context, 0, 8)
    both = c.ggml_add(context, tensor, tensor)
    ends = [c.ggml_silu(context, both), c.ggml_mul(context, both, tensor)]
    snapshot = gather(graph_of(lib, context, *ends))
    counts = dict(zip(snapshot.ids.tolist(), snapshot.use_counts.tolist(), strict=True))
    assert counts[both] == 2
    assert counts[ends[0]] == 0


def test_a_record_has_handle_and_address(lib: ggml.Library, context: int, handles: Handles, numbers: NumberMap) -> None:
    tensor = place(lib.c.ggml_new_tensor_2d(context, 1, 8, 3), 0x9000)
    lib.c.ggml_set_name(tensor, b"weights")
    records = TensorRecords(HERD_TENSOR, handles, numbers)
    record = unpack(records.record(tensor), dialect_for(Version(8, 0), herd=True))
    assert (record.buffer, record.data, record.type, record.ne, record.label) == (
        HANDLE, 0x9000, 1, (8, 3, 1, 1), "weights",
    )  # fmt: skip
    assert record.nb == (2, 16, 48, 48)
    assert not any(record.src)


def test_a_stock_record_says_the_same(lib: ggml.Library, context: int, handles: Handles, numbers: NumberMap) -> None:
    tensor = place(lib.c.ggml_new_tensor_2d(context, 1, 8, 3), 0x9000)
    record = unpack(TensorRecords(STOCK_TENSOR, handles, numbers).record(tensor), dialect_for(Version(8, 0)))
    assert (record.buffer, record.data, record.ne, record.nb) == (HANDLE, 0x9000, (8, 3, 1, 1), (2, 16, 48, 48))


def test_another_peers_tensor_has_no_address(
    lib: ggml.Library, context: int, handles: Handles, numbers: NumberMap
) -> None:
    tensor = place(lib.c.ggml_new_tensor_1d(context, 0, 8), 0x9000, buffer=0x6000)
    record = unpack(TensorRecords(HERD_TENSOR, handles, numbers).record(tensor), dialect_for(Version(8, 0), herd=True))
    assert record.buffer == record.data == 0


def test_a_view_that_was_not_placed_lies_in_its_origins_buffer(
    lib: ggml.Library, context: int, handles: Handles, numbers: NumberMap
) -> None:
    tensor = place(lib.c.ggml_new_tensor_1d(context, 0, 8), 0x9000)
    view = lib.c.ggml_view_1d(context, tensor, 4, 16)
    memory.write_u64(view + TensorOffset.BUFFER, 0)
    memory.write_u64(view + TensorOffset.DATA, 0x9010)
    record = unpack(TensorRecords(HERD_TENSOR, handles, numbers).record(view), dialect_for(Version(8, 0), herd=True))
    assert (record.buffer, record.data) == (HANDLE, 0x9010)


def test_a_changed_tensor_is_a_new_record(
    lib: ggml.Library, context: int, handles: Handles, numbers: NumberMap
) -> None:
    tensor = place(lib.c.ggml_new_tensor_1d(context, 0, 8), 0x9000)
    records = TensorRecords(HERD_TENSOR, handles, numbers)
    before = records.record(tensor)
    assert records.record(tensor) is before
    place(tensor, 0x9040)
    assert records.record(tensor) != before


def test_a_buffer_that_came_back_is_another_one(
    lib: ggml.Library, context: int, handles: Handles, numbers: NumberMap
) -> None:
    tensor = place(lib.c.ggml_new_tensor_1d(context, 0, 8), 0x9000)
    records = TensorRecords(HERD_TENSOR, handles, numbers)
    records.record(tensor)
    handles.remove(BUFFER)
    handles.add(BUFFER, 0x1111)
    records.forget()
    assert unpack(records.record(tensor), dialect_for(Version(8, 0), herd=True)).buffer == 0x1111


def test_handles_of_many_buffers_at_once() -> None:
    handles = Handles()
    assert list(handles.look_up(np.array([1, 2], np.uint64))) == [0, 0]
    for buffer in (30, 10, 20):
        handles.add(buffer, buffer * 100)
    handles.remove(20)
    assert list(handles.look_up(np.array([0, 10, 20, 30, 2**64 - 1], np.uint64))) == [0, 1000, 0, 3000, 0]
    assert (handles.get(10), handles.get(20)) == (1000, 0)


def test_sources_travel_with_a_size_question(
    lib: ggml.Library, context: int, handles: Handles, numbers: NumberMap
) -> None:
    one, two = (lib.c.ggml_new_tensor_2d(context, 0, 8, 4) for _ in range(2))
    product = lib.c.ggml_mul_mat(context, one, two)
    record, sources = TensorRecords(HERD_TENSOR, handles, numbers).with_sources(product)
    dialect = dialect_for(Version(8, 0), herd=True)
    assert unpack(record, dialect).op == lib.numbering().ops.index("MUL_MAT")
    assert len(sources) == 10 * HERD_TENSOR.itemsize
    assert unpack(sources[: HERD_TENSOR.itemsize], dialect).ne == (8, 4, 1, 1)
    assert not any(sources[2 * HERD_TENSOR.itemsize :])


def test_the_shape_key_tells_kernels_apart(lib: ggml.Library, context: int) -> None:
    c = lib.c

    def product(rows: int, kind: int = 0) -> bytes:
        left, right = c.ggml_new_tensor_2d(context, kind, 32, rows), c.ggml_new_tensor_2d(context, 0, 32, 4)
        return shape_key(raw_tensor(c.ggml_mul_mat(context, left, right)))

    assert product(4) == product(4)
    assert len({product(4), product(5), product(4, kind=1)}) == 3


def test_one_node_is_a_graph_of_its_own(lib: ggml.Library, context: int) -> None:
    c = lib.c
    tensor = c.ggml_new_tensor_1d(context, 0, 8)
    node = c.ggml_silu(context, tensor)
    snapshot = gather_node(node)
    assert (snapshot.n_nodes, list(snapshot.ids)) == (1, [node, tensor])
    assert sources_of(raw_tensor(node))[0] == tensor


def test_there_and_back(lib: ggml.Library, context: int, handles: Handles, numbers: NumberMap) -> None:
    """What the client gathers, the worker rebuilds into the same nodes."""
    c = lib.c
    one, two = (place(c.ggml_new_tensor_2d(context, 0, 8, 4), 0x9000 + 256 * i) for i in range(2))
    product = place(c.ggml_mul_mat(context, one, two), 0xA000)
    result = place(c.ggml_silu(context, product), 0xB000)
    snapshot = gather(graph_of(lib, context, result))
    node_ids, rows = to_wire(snapshot, HERD_TENSOR, handles, numbers)
    assert list(node_ids) == [product, result]
    assert (rows["buffer"] == HANDLE).all()
    dense = {int(number): index + 1 for index, number in enumerate(rows["id"])} | {0: 0}
    local = rows.copy()
    local["id"] = np.arange(1, len(rows) + 1)
    for field in ("src", "view_src"):
        local[field] = np.vectorize(dense.__getitem__)(rows[field])
    rebuilt = rebuild.rebuild(lib, 2, local, np.full(len(rows), BUFFER, np.uint64), 5)
    again = gather(rebuilt.ptr)
    order = [list(snapshot.ids).index(tensor) for tensor in (product, result, one, two)]
    assert again.uid == 5
    for field in ("type", "ne", "nb", "op", "op_params", "data"):
        back = {int(row["data"]): row[field].tolist() for row in again.rows}
        assert back == {int(snapshot.rows["data"][i]): snapshot.rows[field][i].tolist() for i in order}


def test_a_thousand_nodes_take_a_millisecond_or_so(lib: ggml.Library, handles: Handles, numbers: NumberMap) -> None:
    """Not a benchmark: it catches a loop over nodes, which would take ten times as long."""
    import time

    context = lib.c.ggml_init(InitParams(2000 * (TENSOR.itemsize + 64) + (1 << 20), 0, True))
    tensor = place(lib.c.ggml_new_tensor_1d(context, 0, 8), 0x9000)
    for _ in range(1000):
        tensor = place(lib.c.ggml_silu(context, tensor), 0x9000)
    graph = lib.c.ggml_new_graph_custom(context, 2048, False)
    lib.c.ggml_build_forward_expand(graph, tensor)

    def once() -> float:
        began = time.thread_time()
        to_wire(gather(graph), HERD_TENSOR, handles, numbers)
        return time.thread_time() - began

    best = min(once() for _ in range(20))
    lib.c.ggml_free(context)
    assert best < 0.005
