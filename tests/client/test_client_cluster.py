"""What a cluster says about itself, and what it refuses."""

from __future__ import annotations

import socket

import pytest

from support.workers import Worker
from wireherd import ggml
from wireherd.client.plugin import Cluster
from wireherd.errors import UsageError, WorkerLost, WorkerRefused
from wireherd.ggml.enums import DeviceType
from wireherd.session.client import ClientOptions


def test_devices_are_named_as_llama_cpp_names_them(cluster: Cluster, worker: Worker, lib: ggml.Library) -> None:
    device = cluster.devices[0]
    c = lib.c
    assert c.ggml_backend_dev_name(device.pointer) == b"RPC0" == device.name.encode()
    assert c.ggml_backend_dev_description(device.pointer).decode().startswith(f"{worker.endpoint}: CPU")
    assert c.ggml_backend_dev_type(device.pointer) == DeviceType.GPU
    kind = c.ggml_backend_dev_buffer_type(device.pointer)
    assert c.ggml_backend_buft_name(kind).decode() == f"RPC0[{worker.endpoint}]"
    assert not c.ggml_backend_buft_is_host(kind)
    assert c.ggml_backend_buft_get_device(kind) == device.pointer
    assert c.ggml_backend_dev_supports_buft(device.pointer, kind)
    assert not c.ggml_backend_dev_supports_buft(device.pointer, lib.cpu_device().buffer_type().ptr)


def test_a_device_tells_its_memory_and_caps(cluster: Cluster, lib: ggml.Library) -> None:
    free, total = cluster.devices[0].memory()
    assert 0 < free <= total
    props = lib.abi.DeviceProps()
    from wireherd.ggml import memory

    lib.c.ggml_backend_dev_get_props(cluster.devices[0].pointer, memory.address_of(props))
    assert 0 < props.memory_free <= props.memory_total
    assert props.caps_mmap_support
    assert not props.caps_async
    assert not props.caps_events


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (ClientOptions(graph_cache=-1), "--graph-cache must be between"),
        (ClientOptions(graph_cache_policy="fifo"), "--graph-cache-policy must be one of lru, reset"),
    ],
)
def test_options_that_make_no_sense(lib: ggml.Library, options: ClientOptions, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Cluster(lib, ["127.0.0.1:1"], options)


def test_the_registry_lists_the_devices(cluster: Cluster, lib: ggml.Library) -> None:
    reg = lib.c.ggml_backend_dev_backend_reg(cluster.devices[0].pointer)
    assert lib.c.ggml_backend_reg_name(reg) == b"RPC"
    assert lib.c.ggml_backend_reg_dev_count(reg) == 1
    assert lib.c.ggml_backend_reg_dev_get(reg, 0) == cluster.devices[0].pointer
    found = {
        name: lib.c.ggml_backend_reg_get_proc_address(reg, name)
        for name in (b"ggml_backend_comm_init", b"ggml_backend_comm_free", b"ggml_backend_comm_allreduce_tensor")
    }
    assert all(found.values())
    assert len(set(found.values())) == 3
    assert not lib.c.ggml_backend_reg_get_proc_address(reg, b"ggml_backend_set_n_threads")


def test_stats_count_what_was_sent(cluster: Cluster, worker: Worker) -> None:
    before = cluster.stats()[0]
    cluster.ping()
    after = cluster.stats()[0]
    assert after["endpoint"] == worker.endpoint
    assert after["protocol"] == "8.0+herd"
    assert after["round_trips"] == before["round_trips"] + 1
    assert after["bytes_sent"] > before["bytes_sent"]
    assert after["bytes_received"] > before["bytes_received"]


def test_a_stock_peer_of_the_same_worker(lib: ggml.Library, worker: Worker) -> None:
    with Cluster(lib, [worker.endpoint], ClientOptions(herd=False)) as plain:
        assert plain.stats()[0]["protocol"] == "8.0"
        assert plain.devices[0].description == worker.endpoint
        plain.ping()


def test_two_clusters_at_once(lib: ggml.Library, worker: Worker, cluster: Cluster) -> None:
    with Cluster(lib, [worker.endpoint]) as other:
        other.ping()
        cluster.ping()
    cluster.ping()


def test_no_worker_is_no_cluster(lib: ggml.Library) -> None:
    with pytest.raises(UsageError, match="at least one worker"):
        Cluster(lib, [])


def test_a_worker_named_twice(lib: ggml.Library, worker: Worker) -> None:
    with pytest.raises(UsageError, match="twice"):
        Cluster(lib, [worker.endpoint, worker.endpoint])


def test_nobody_there(lib: ggml.Library, worker: Worker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(WorkerLost, match=f"127.0.0.1:{port}"):
        Cluster(lib, [worker.endpoint, f"127.0.0.1:{port}"])


@pytest.mark.parametrize("plain", [False, True])
def test_no_room_is_a_sentence(lib: ggml.Library, workers, plain: bool) -> None:
    (small,) = workers(1, "-m", "16", *(["--plain"] if plain else []))
    with Cluster(lib, [small.endpoint]) as cluster:
        kind = cluster.devices[0].buffer_type.pointer
        assert not lib.c.ggml_backend_buft_alloc_buffer(kind, 64 << 20)
        with pytest.raises(WorkerRefused, match=r"out of memory: asked 64 MiB, free 16 MiB"):
            cluster.check()
        assert cluster.failure is None
        buffer = lib.c.ggml_backend_buft_alloc_buffer(kind, 8 << 20)
        assert buffer
        lib.c.ggml_backend_buffer_free(buffer)
        cluster.ping()


def test_a_closed_cluster_harms_nobody(lib: ggml.Library, worker: Worker) -> None:
    from remote_tensors import bench_on

    cluster = Cluster(lib, [worker.endpoint])
    bench = bench_on(lib, cluster)
    tensor = bench.tensor(16)
    graph = bench.graph(bench.place(lib.c.ggml_add(bench.context, tensor, tensor)), uid=9)
    cluster.close()
    cluster.close()
    assert cluster.failure is None
    assert bench.compute(graph) != 0
    bench.close()
