"""A worker that dies, or an exception, in any slot: a status, never a crash, and one exception afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from remote_tensors import bench_on, read, write

from support.workers import Worker
from wireherd import ggml
from wireherd.client.plugin import Cluster
from wireherd.errors import WorkerLost, WorkerRefused
from wireherd.ggml import memory


class Victim:
    """A worker with a tensor and a graph on it."""

    def __init__(self, lib: ggml.Library, cluster: Cluster) -> None:
        self.lib = lib
        self.cluster = cluster
        self.bench = bench_on(lib, cluster, size=2 << 20)
        self.large = self.bench.tensor(1 << 18)
        self.values = np.arange(64, dtype=np.float32)
        self.tensor = self.bench.filled(self.values)
        self.total = self.bench.place(lib.c.ggml_add(self.bench.context, self.tensor, self.tensor))
        self.graph = self.bench.graph(self.total, uid=7)
        self.whole = self.bench.graph(self.total)
        assert self.bench.compute(self.graph) == 0
        assert np.array_equal(read(lib, self.total), self.values * 2)


def until_noticed(cluster: Cluster, act: Callable[[], object], limit_s: float = 1.5) -> None:
    """Do something again and again until the death of the worker shows."""
    end = time.monotonic() + limit_s
    while cluster.failure is None and time.monotonic() < end:
        act()
    assert cluster.failure is not None, f"not noticed within {limit_s} s"


def _alloc(victim: Victim) -> None:
    kind = victim.cluster.devices[0].buffer_type.pointer
    assert not victim.lib.c.ggml_backend_buft_alloc_buffer(kind, 1 << 20)


def _get(victim: Victim) -> None:
    assert not read(victim.lib, victim.tensor).any()


def _get_2d(victim: Victim) -> None:
    out = np.full((4, 8), 5, np.float32)
    victim.lib.c.ggml_backend_tensor_get_2d(victim.tensor, memory.address_of(out), 0, 16, 4, 64, 32)
    assert not out[:, :4].any()


def _get_async(victim: Victim) -> None:
    out = victim.bench.get_async(victim.tensor)
    victim.lib.c.ggml_backend_synchronize(victim.bench.backend)
    assert not out.any()


def _graph(victim: Victim) -> None:
    assert victim.bench.compute(victim.graph) == -1


def _full_graph(victim: Victim) -> None:
    assert victim.bench.compute(victim.whole) == -1


def _init_backend(victim: Victim) -> None:
    assert not victim.lib.c.ggml_backend_dev_init(victim.cluster.device_pointers[0], None)


def _memory(victim: Victim) -> None:
    assert victim.cluster.devices[0].memory() == (0, 0)


SLOTS: dict[str, Callable[[Victim], object]] = {
    "alloc": _alloc,
    "set": lambda victim: write(victim.lib, victim.tensor, victim.values),
    "set_large": lambda victim: write(victim.lib, victim.large, np.zeros(1 << 20, np.uint8)),
    "set_2d": lambda victim: victim.lib.c.ggml_backend_tensor_set_2d(
        victim.tensor, memory.address_of(victim.values), 0, 16, 4, 64, 32
    ),
    "get": _get,
    "get_2d": _get_2d,
    "get_async": _get_async,
    "memset": lambda victim: victim.lib.c.ggml_backend_tensor_memset(victim.tensor, 1, 0, 64),
    "clear": lambda victim: victim.lib.c.ggml_backend_buffer_clear(victim.bench.buffer, 1),
    "copy": lambda victim: victim.lib.c.ggml_backend_tensor_copy(victim.tensor, victim.total),
    "graph": _graph,
    "full_graph": _full_graph,
    "synchronize": lambda victim: victim.lib.c.ggml_backend_synchronize(victim.bench.backend),
    "init_backend": _init_backend,
    "memory": _memory,
    "supports_op": lambda victim: victim.lib.c.ggml_backend_dev_supports_op(
        victim.cluster.device_pointers[0], victim.total
    ),
}


#: what may still succeed on a socket whose other end is only just gone
FIRST: dict[str, Callable[[Victim], object]] = {
    "alloc": lambda victim: victim.lib.c.ggml_backend_buft_get_alignment(victim.bench.buffer_type),
    "get": lambda victim: read(victim.lib, victim.tensor),
    "get_async": lambda victim: victim.lib.c.ggml_backend_synchronize(
        (victim.bench.get_async(victim.tensor), victim.bench.backend)[1]
    ),
    "graph": lambda victim: victim.bench.compute(victim.graph),
    "full_graph": lambda victim: victim.bench.compute(victim.whole),
    "init_backend": lambda victim: time.sleep(0.01),
    "memory": lambda victim: read(victim.lib, victim.tensor),
}


@pytest.mark.parametrize("slot", SLOTS)
def test_a_dead_worker_in_each_slot(lib: ggml.Library, doomed, slot: str) -> None:
    cluster, kill = doomed
    victim = Victim(lib, cluster)
    kill()
    until_noticed(cluster, lambda: FIRST.get(slot, SLOTS[slot])(victim))
    SLOTS[slot](victim)
    with pytest.raises(WorkerLost, match=cluster.endpoints[0].name):
        cluster.check()
    victim.bench.close()
    assert isinstance(cluster.failure, WorkerLost)


@pytest.mark.parametrize("dies", [True, False])
def test_a_get_is_outstanding_when_the_worker_ends(lib: ggml.Library, doomed, dies: bool) -> None:
    cluster, doom = doomed
    victim = Victim(lib, cluster)
    doom.freeze()
    out = victim.bench.get_async(victim.tensor)
    timer = threading.Timer(0.1, doom if dies else doom.freeze)
    timer.start()
    began = time.monotonic()
    lib.c.ggml_backend_synchronize(victim.bench.backend)
    assert time.monotonic() - began < 1.5
    assert not out.any()
    timer.join()
    victim.bench.close()
    with pytest.raises(WorkerLost):
        cluster.check()


def test_the_next_cluster_works(lib: ggml.Library, doomed, worker: Worker) -> None:
    cluster, kill = doomed
    victim = Victim(lib, cluster)
    kill()
    until_noticed(cluster, lambda: victim.bench.compute(victim.graph))
    assert victim.bench.compute(victim.graph) == -1
    with Cluster(lib, [worker.endpoint]) as fresh:
        again = Victim(lib, fresh)
        victim.bench.close()
        again.bench.close()
        fresh.ping()
        fresh.check()


def test_one_dead_worker_leaves_the_others_be(lib: ggml.Library, workers) -> None:
    first, second = workers(2)
    with Cluster(lib, [first.endpoint, second.endpoint]) as cluster:
        here, there = (bench_on(lib, cluster, number) for number in (0, 1))
        tensor = there.filled(np.ones(8, np.float32))
        first.stop(grace_s=0)
        end = time.monotonic() + 2
        while cluster.failure is None and time.monotonic() < end:
            time.sleep(0.01)
        assert cluster.failure is not None
        assert cluster.failure.endpoint == first.endpoint
        assert read(lib, tensor).all()
        here.close()
        there.close()


def test_ctrl_c_within_a_callback(lib: ggml.Library, cluster: Cluster, monkeypatch) -> None:
    victim = Victim(lib, cluster)

    def interrupted(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster.endpoints[0], "post", interrupted)
    assert victim.bench.compute(victim.graph) == -1
    monkeypatch.undo()
    with pytest.raises(KeyboardInterrupt):
        cluster.check()
    assert isinstance(cluster.interrupted, KeyboardInterrupt)
    victim.bench.close()


def test_a_bug_in_a_slot_is_a_failure(lib: ggml.Library, cluster: Cluster, monkeypatch) -> None:
    victim = Victim(lib, cluster)
    monkeypatch.setattr(cluster.endpoints[0].records, "record", lambda _tensor: 1 / 0)
    write(lib, victim.tensor, victim.values)
    monkeypatch.undo()
    assert victim.bench.compute(victim.graph) == -1
    with pytest.raises(WorkerLost, match="internal error in the client: ZeroDivisionError"):
        cluster.check()
    victim.bench.close()


def test_a_graph_that_the_worker_refuses(lib: ggml.Library, cluster: Cluster) -> None:
    bench = bench_on(lib, cluster)
    homeless = lib.c.ggml_new_tensor_1d(bench.context, 0, 8)
    total = bench.place(lib.c.ggml_add(bench.context, homeless, homeless))
    bench.compute(bench.graph(total))
    out = read(lib, total)
    assert not out.any()
    with pytest.raises(WorkerRefused, match="GRAPH_COMPUTE"):
        cluster.check()
    bench.close()


def test_cancel_wakes_everything(lib: ggml.Library, cluster: Cluster) -> None:
    victim = Victim(lib, cluster)
    cluster.cancel()
    assert victim.bench.compute(victim.graph) == -1
    with pytest.raises(WorkerLost, match="cancelled"):
        cluster.check()
    victim.bench.close()
