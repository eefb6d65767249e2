"""Memory that libllama lends for an answer is written to only while it is sure to be there; threads take turns."""

from __future__ import annotations

import threading

import numpy as np
from remote_tensors import bench_on

from wireherd import ggml
from wireherd.client.plugin import Cluster


def test_a_failure_does_not_write_to_memory_that_may_be_gone(lib: ggml.Library, cluster: Cluster) -> None:
    """libllama frees its output buffer, then its other buffers, then its backends."""
    bench = bench_on(lib, cluster)
    out = bench.get_async(bench.filled(np.ones(64, np.float32)))
    cluster.cancel()
    out[:] = 0x77  # the memory has another owner by now
    bench.close_buffer()
    assert cluster.failure is not None
    bench.close()
    assert (out == 0x77).all()


def test_an_answer_is_written_only_for_the_backend_that_asked(lib: ggml.Library, cluster: Cluster) -> None:
    """One context may synchronise while another one is being freed."""
    first, second = bench_on(lib, cluster), bench_on(lib, cluster)
    going = first.get_async(first.filled(np.ones(64, np.float32)))
    staying = second.get_async(second.filled(np.full(64, 2, np.float32)))
    going[:] = 0x77
    lib.c.ggml_backend_synchronize(second.backend)
    assert (staying.view(np.float32) == 2).all()
    assert (going == 0x77).all()
    lib.c.ggml_backend_synchronize(first.backend)
    assert (going.view(np.float32) == 1).all()
    first.close()
    second.close()
    cluster.check()


def test_graphs_leave_in_the_order_in_which_they_are_noted(lib: ggml.Library, cluster: Cluster, monkeypatch) -> None:
    """Two contexts on two threads: what the worker holds follows from the order on the wire."""
    endpoint = cluster.endpoints[0]
    bench = bench_on(lib, cluster)
    tensor = bench.filled(np.ones(64, np.float32))
    graphs = [bench.graph(bench.place(lib.c.ggml_add(bench.context, tensor, tensor)), uid=uid) for uid in (71, 72)]
    noted: list[int] = []
    left: list[int] = []
    entered = threading.Event()
    overtaken = threading.Event()
    sent, post = endpoint.graphs[0].sent, endpoint.post

    def note(uid: int, touched, nbytes) -> None:
        noted.append(uid)
        sent(uid, touched, nbytes)

    def slow(message, bulk=None, *, flush=False) -> None:
        if not entered.is_set():
            entered.set()
            overtaken.wait(0.3)
        left.append(message.uid)
        post(message, bulk, flush=flush)
        overtaken.set()

    monkeypatch.setattr(endpoint.graphs[0], "sent", note)
    monkeypatch.setattr(endpoint, "post", slow)
    threads = [threading.Thread(target=bench.compute, args=(graph,)) for graph in graphs]
    threads[0].start()
    assert entered.wait(5)
    threads[1].start()
    for thread in threads:
        thread.join()
    monkeypatch.undo()
    assert left == noted
    assert len(set(noted)) == len(graphs)
    bench.close()
    cluster.check()
