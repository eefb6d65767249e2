from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from graphs import COMPUTE, Chain, cpu

from wireherd.errors import GgmlFailed
from wireherd.ggml import build_graph, memory
from wireherd.ggml.enums import Status
from wireherd.ggml.graph import graph_nodes, graph_uid, graph_use_counts
from wireherd.ggml.structs import InitParams


def flags(chain):
    return np.full(chain.n, COMPUTE, np.int32)


def test_a_graph_computes_what_it_says(lib):
    with cpu(lib, 1 << 20) as (backend, buffer):
        chain = Chain(lib, buffer, 50, 64)
        graph = build_graph(lib, chain.block.address, 50, 52, flags(chain), 1234)
        assert graph_uid(graph.ptr) == 1234
        assert graph_nodes(graph.ptr).tolist() == [chain.block.at(i) for i in range(50)]
        assert backend.compute(graph.ptr) == Status.SUCCESS
        assert (chain.values[:50] == np.arange(64) + np.arange(1, 51)[:, None]).all()
        chain.values[50] = 100
        assert backend.compute(graph.ptr) == Status.SUCCESS, "it can run again"
        assert (chain.values[49] == 150).all()
        graph.close()
        graph.close()
        assert graph.ptr == 0


def test_inactive_nodes_stay_inactive(lib):
    with cpu(lib, 1 << 20) as (backend, buffer):
        chain = Chain(lib, buffer, 4, 64)
        wanted = flags(chain)
        wanted[3] = 0
        graph = build_graph(lib, chain.block.address, 4, 6, wanted, 0)
        assert chain.block.rows["flags"][:4].tolist() == [16, 16, 16, 0]
        assert backend.compute(graph.ptr) == Status.SUCCESS
        assert (chain.values[2] == np.arange(64) + 3).all()
        assert np.isnan(chain.values[3]).all()
        graph.close()


def test_nodes_in_a_wrong_order_are_refused(lib):
    with cpu(lib, 1 << 20) as (_backend, buffer):
        chain = Chain(lib, buffer, 4, 64)
        chain.block.rows["src"][0, 0] = chain.block.at(2)
        with pytest.raises(GgmlFailed, match="order"):
            build_graph(lib, chain.block.address, 4, 6, flags(chain), 0)


def test_a_source_left_out_of_the_nodes_is_refused(lib):
    with cpu(lib, 1 << 20) as (_backend, buffer):
        chain = Chain(lib, buffer, 4, 64)
        with pytest.raises(GgmlFailed, match="order"):
            build_graph(lib, chain.block.at(1), 3, 5, flags(chain)[1:], 0)


def test_an_empty_graph(lib):
    graph = build_graph(lib, 0, 0, 0, np.zeros(0, np.int32), 7)
    assert len(graph_nodes(graph.ptr)) == 0
    assert graph_uid(graph.ptr) == 7
    graph.close()


def test_use_counts_are_read_and_written(lib):
    with cpu(lib, 1 << 22) as (_backend, buffer):
        n = 900
        chain = Chain(lib, buffer, n, 64)
        ids = np.array([chain.block.at(i) for i in range(n + 2)], np.uint64)
        graph = build_graph(lib, chain.block.address, n, n + 2, flags(chain), 0)
        assert graph_use_counts(graph.ptr, ids).tolist() == [1] * (n - 1) + [0, 1, n]
        assert graph_use_counts(graph.ptr, ids + np.uint64(8)).tolist() == [0] * (n + 2)
        graph.close()
        wanted = np.arange(n, dtype=np.int32)
        graph = build_graph(lib, chain.block.address, n, n + 2, flags(chain), 0, wanted)
        assert graph_use_counts(graph.ptr, ids).tolist() == [*range(n), 1, n]
        graph.close()


def test_graphs_made_by_ggml_are_read_alike(lib):
    c = lib.c
    context = c.ggml_init(InitParams(1 << 20, 0, True))
    left = c.ggml_new_tensor_1d(context, 0, 32)
    right = c.ggml_new_tensor_1d(context, 0, 32)
    total = c.ggml_add(context, left, right)
    twice = c.ggml_mul(context, total, total)
    graph = c.ggml_new_graph_custom(context, 64, False)
    c.ggml_build_forward_expand(graph, twice)
    assert graph_nodes(graph).tolist() == [total, twice]
    counts = graph_use_counts(graph, np.array([left, right, total, twice], np.uint64))
    assert counts.tolist() == [1, 1, 2, 0]
    rows = memory.gather(graph_nodes(graph))
    assert rows["src"][:, :3].tolist() == [[left, right, 0], [total, total, 0]]
    c.ggml_free(context)


def test_a_long_graph_is_aborted_within_100_ms(lib):
    width = 1 << 18
    with cpu(lib, 4 * width * 402) as (backend, buffer):
        chain = Chain(lib, buffer, 400, width)
        graph = build_graph(lib, chain.block.address, 400, 402, flags(chain), 0)
        assert backend.can_abort
        running = time.monotonic() + 0.3
        stopped = []

        def stop():
            time.sleep(0.05)
            stopped.append(time.monotonic())
            backend.abort()

        thread = threading.Thread(target=stop)
        thread.start()
        status = Status.SUCCESS
        while status == Status.SUCCESS and time.monotonic() < running + 5:
            status = backend.compute(graph.ptr)
        ended = time.monotonic()
        thread.join()
        assert status == Status.ABORTED
        assert ended - stopped[0] < 0.1
        assert backend.compute(graph.ptr) == Status.ABORTED, "it stays off"
        backend.clear_abort()
        assert backend.compute(graph.ptr) == Status.SUCCESS
        graph.close()
    backend.abort()  # after close: nothing happens


def test_building_a_decode_sized_graph_is_fast(lib):
    with cpu(lib, 1 << 22) as (_backend, buffer):
        chain = Chain(lib, buffer, 940, 64)
        took = []
        for _ in range(10):
            start = time.perf_counter()
            build_graph(lib, chain.block.address, 940, 942, flags(chain), 1).close()
            took.append(time.perf_counter() - start)
        assert min(took) < 0.005
