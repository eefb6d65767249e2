"""From records to ggml's structs and graph, run by the real library."""

from __future__ import annotations

import numpy as np
import pytest

from wireherd import ggml
from wireherd.bridge.rebuild import rebuild, tensors
from wireherd.errors import BadGraph, GgmlFailed
from wireherd.ggml import memory
from wireherd.ggml.graph import graph_nodes, graph_uid, graph_use_counts
from wireherd.ggml.structs import TENSOR, TENSOR_SIZE
from wireherd.protocol.tensor import HERD_TENSOR

COMPUTE = 16


@pytest.fixture(scope="module")
def lib():
    return ggml.load()


@pytest.fixture
def buffer(lib):
    native = lib.cpu_device().buffer_type().alloc(4096)
    native.clear(0)
    yield native
    native.close()


def chain(lib, buffer, n=8):
    """c = a + b, d = c * c: records with dense ids, nodes first."""
    ops = lib.numbering().ops
    rows = np.zeros(4, HERD_TENSOR)
    rows["id"] = [1, 2, 3, 4]
    rows["ne"], rows["nb"] = (n, 1, 1, 1), (4, 4 * n, 4 * n, 4 * n)
    rows["data"] = buffer.base + np.arange(4, dtype=np.uint64) * np.uint64(64)
    rows["op"] = [ops.index("ADD"), ops.index("MUL"), 0, 0]
    rows["src"][0, :2] = [3, 4]
    rows["src"][1, :2] = [1, 1]
    rows["flags"] = [COMPUTE, COMPUTE, 1, 1]
    rows["name"] = [b"c", b"d" * 64, b"a", b"b"]
    return rows, np.full(4, buffer.ptr, np.uint64)


def values(buffer, index, n=8):
    return np.frombuffer(buffer.view(), np.float32)[16 * index : 16 * index + n]


def test_structs_say_what_the_records_say(lib, buffer):
    rows, native = chain(lib, buffer)
    rows["view_src"][0], rows["view_offs"][0] = 3, 8
    block = tensors(rows, native)
    assert block.address % 16 == 0
    assert block.at(2) == block.address + 2 * TENSOR_SIZE
    structs = memory.gather(np.array([block.at(i) for i in range(4)], np.uint64))
    assert structs.dtype == TENSOR
    for field in ("type", "ne", "nb", "op", "op_params", "flags", "data", "view_offs"):
        np.testing.assert_array_equal(structs[field], rows[field])
    assert structs["src"][1].tolist()[:3] == [block.at(0), block.at(0), 0]
    assert structs["view_src"].tolist() == [block.at(2), 0, 0, 0]
    assert (structs["buffer"] == buffer.ptr).all()
    assert not structs["extra"].any()
    assert structs["name"][1] == b"d" * 63, "the last byte is a NUL"


def test_a_graph_runs(lib, buffer):
    rows, native = chain(lib, buffer)
    graph = rebuild(lib, 2, rows, native, uid=77)
    values(buffer, 2)[:] = np.arange(8)
    values(buffer, 3)[:] = 1
    backend = lib.cpu_device().init_backend()
    backend.set_threads(1)
    assert graph_uid(graph.ptr) == 77
    assert backend.compute(graph.ptr) == 0
    np.testing.assert_array_equal(values(buffer, 1), (np.arange(8) + 1) ** 2)
    values(buffer, 3)[:] = 2
    assert backend.compute(graph.ptr) == 0
    np.testing.assert_array_equal(values(buffer, 1), (np.arange(8) + 2) ** 2)
    backend.close()
    graph.close()
    assert graph.ptr == 0


def test_flags_stay_as_they_were_sent(lib, buffer):
    rows, native = chain(lib, buffer)
    rows["flags"][0] = 2
    graph = rebuild(lib, 2, rows, native)
    nodes = graph_nodes(graph.ptr)
    assert memory.gather(nodes.copy())["flags"].tolist() == [2, COMPUTE]
    values(buffer, 0)[:] = 3
    backend = lib.cpu_device().init_backend()
    assert backend.compute(graph.ptr) == 0
    np.testing.assert_array_equal(values(buffer, 1), np.full(8, 9))
    backend.close()
    graph.close()


def test_use_counts_are_never_below_what_the_graph_itself_uses(lib, buffer):
    rows, native = chain(lib, buffer)
    rows["use_count"][:2] = [1, 5]
    graph = rebuild(lib, 2, rows, native)
    assert graph_use_counts(graph.ptr, graph_nodes(graph.ptr).copy()).tolist() == [2, 5]
    graph.close()


def test_sources_that_are_none_and_nodes_out_of_order(lib, buffer):
    rows, native = chain(lib, buffer)
    rows["src"][0, 0] = 5
    with pytest.raises(BadGraph):
        rebuild(lib, 2, rows, native)
    rows["src"][0, 0] = 2
    rows["src"][1, :2] = 3
    with pytest.raises(GgmlFailed):
        rebuild(lib, 2, rows, native)


def test_nothing_is_a_graph_too(lib):
    graph = rebuild(lib, 0, np.zeros(0, HERD_TENSOR), np.zeros(0, np.uint64))
    assert len(graph_nodes(graph.ptr)) == 0
    graph.close()
