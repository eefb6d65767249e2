"""Everything a buffer and a backend can do, through ggml's own functions, against a real worker process."""

from __future__ import annotations

import numpy as np
import pytest
from remote_tensors import Bench, bench_on, read, write

from support.workers import Worker
from wireherd import ggml
from wireherd.client.plugin import Cluster
from wireherd.ggml import memory
from wireherd.ggml.structs import GraphOffset
from wireherd.protocol.messages_herd import FEATURES, Feature
from wireherd.protocol.version import SUPPORTED
from wireherd.session import client

DIALECTS = ["herd", *(version.short for version in SUPPORTED)]


@pytest.fixture(scope="module", params=DIALECTS)
def speaking(request, lib: ggml.Library):
    """A cluster of one worker that speaks one dialect, with everything between set and free."""
    flags = [] if request.param == "herd" else ["--plain", "--protocol", request.param]
    server = Worker(*flags)
    with Cluster(lib, [server.endpoint]) as cluster:
        assert cluster.stats()[0]["protocol"] == ("8.0+herd" if request.param == "herd" else request.param)
        yield cluster
    server.stop()


@pytest.fixture
def bench(speaking: Cluster, lib: ggml.Library):
    made = bench_on(lib, speaking)
    yield made
    made.close()
    speaking.ping()
    speaking.check()


@pytest.fixture
def local(lib: ggml.Library):
    made = Bench(lib, lib.cpu_device().ptr)
    yield made
    made.close()


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def test_what_is_set_is_got(bench: Bench, lib: ggml.Library) -> None:
    values = noise(7, 64)
    tensor = bench.filled(values)
    assert np.array_equal(read(lib, tensor).reshape(values.shape), values)


def test_a_part_is_set_and_got(bench: Bench, lib: ggml.Library) -> None:
    tensor = bench.filled(np.zeros(64, np.float32))
    write(lib, tensor, noise(5), offset=12)
    assert np.array_equal(read(lib, tensor), np.concatenate([np.zeros(3), noise(5), np.zeros(56)]).astype(np.float32))
    part = np.zeros(5, np.float32)
    lib.c.ggml_backend_tensor_get(tensor, memory.address_of(part), 12, part.nbytes)
    assert np.array_equal(part, noise(5))


def test_a_large_tensor_survives_the_way(bench: Bench, lib: ggml.Library) -> None:
    values = noise(200, 1000)
    assert np.array_equal(read(lib, bench.filled(values)).reshape(values.shape), values)


def test_the_memory_of_a_set_may_be_reused_at_once(bench: Bench, lib: ggml.Library) -> None:
    tensors = [bench.tensor(16) for _ in range(8)]
    scratch = np.zeros(16, np.float32)
    for number, tensor in enumerate(tensors):
        scratch[:] = number
        write(lib, tensor, scratch)
    scratch[:] = -1
    assert [read(lib, tensor)[0] for tensor in tensors] == list(range(8))


def test_memset_fills_a_part(bench: Bench, lib: ggml.Library) -> None:
    tensor = bench.filled(np.zeros(16, np.float32))
    lib.c.ggml_backend_tensor_memset(tensor, 0x7F, 8, 12)
    assert bytes(read(lib, tensor, np.uint8)) == bytes(8) + b"\x7f" * 12 + bytes(44)


def test_clear_fills_a_buffer(bench: Bench, lib: ggml.Library) -> None:
    tensor = bench.filled(noise(32))
    lib.c.ggml_backend_buffer_clear(bench.buffer, 3)
    assert set(read(lib, tensor, np.uint8)) == {3}


@pytest.mark.parametrize("stride_data", [16, 20, 64])
def test_rows_at_a_stride(bench: Bench, lib: ggml.Library, stride_data: int) -> None:
    tensor = bench.filled(np.zeros((4, 16), np.float32))
    rows = np.zeros((3, stride_data // 4), np.float32)
    rows[:, :4] = noise(3, 4)
    lib.c.ggml_backend_tensor_set_2d(tensor, memory.address_of(rows), 8, 16, 3, 64, stride_data)
    there = read(lib, tensor).reshape(4, 16)
    assert np.array_equal(there[:3, 2:6], rows[:, :4])
    assert not there[:, 6:].any()
    back = np.full((3, stride_data // 4), 9, np.float32)
    lib.c.ggml_backend_tensor_get_2d(tensor, memory.address_of(back), 8, 16, 3, 64, stride_data)
    assert np.array_equal(back[:, :4], rows[:, :4])
    assert (back[:, 4:] == 9).all()


def test_a_copy_within_the_worker(bench: Bench, lib: ggml.Library, speaking: Cluster) -> None:
    source, target = bench.filled(noise(64)), bench.filled(np.zeros(64, np.float32))
    speaking.ping()
    before = speaking.stats()[0]["bytes_sent"]
    lib.c.ggml_backend_tensor_copy(source, target)
    assert np.array_equal(read(lib, target), noise(64))
    assert speaking.stats()[0]["bytes_sent"] - before < 2000


def test_a_copy_from_here_and_back(bench: Bench, local: Bench, lib: ggml.Library) -> None:
    here, there = local.filled(noise(64)), bench.tensor(64)
    lib.c.ggml_backend_tensor_copy(here, there)
    again = local.tensor(64)
    lib.c.ggml_backend_tensor_copy(there, again)
    assert np.array_equal(read(lib, again), noise(64))


def _sum_of_products(bench: Bench) -> tuple[int, int]:
    c = bench.c
    weights, inputs, bias = bench.filled(noise(24, 32)), bench.filled(noise(3, 32)), bench.filled(noise(3, 24))
    product = bench.place(c.ggml_mul_mat(bench.context, weights, inputs))
    return bench.place(c.ggml_silu(bench.context, bench.place(c.ggml_add(bench.context, product, bias)))), inputs


def test_a_graph_gives_what_it_gives_here(bench: Bench, local: Bench, lib: ggml.Library) -> None:
    (there, _), (here, _) = _sum_of_products(bench), _sum_of_products(local)
    assert bench.compute(bench.graph(there)) == 0
    assert local.compute(local.graph(here)) == 0
    assert np.array_equal(read(lib, there), read(lib, here))


@pytest.mark.parametrize("uid", [0, 77])
def test_a_graph_runs_again_on_new_inputs(
    bench: Bench, local: Bench, lib: ggml.Library, speaking: Cluster, uid: int
) -> None:
    (there, inputs_there), (here, inputs_here) = _sum_of_products(bench), _sum_of_products(local)
    graph_there, graph_here = bench.graph(there, uid=uid), local.graph(here)
    sent = []
    for turn in range(3):
        for tensor in (inputs_there, inputs_here):
            write(lib, tensor, noise(3, 32) * (turn + 1))
        speaking.ping()
        before = speaking.stats()[0]["bytes_sent"]
        assert bench.compute(graph_there) == 0
        sent.append(speaking.stats()[0]["bytes_sent"] - before)
        local.compute(graph_here)
        assert np.array_equal(read(lib, there), read(lib, here))
    speaking.ping()
    whole = {"8.0+herd": 2}.get(speaking.stats()[0]["protocol"], 1 if uid else 3)
    assert min(sent[:whole]) > 1000
    assert max(sent[whole:], default=0) < 100


def test_two_graphs_in_turn(bench: Bench, lib: ggml.Library) -> None:
    one, two = bench.filled(noise(8)), bench.filled(noise(8) + 1)
    sums = [bench.place(bench.c.ggml_add(bench.context, each, two)) for each in (one, two)]
    graphs = [bench.graph(result, uid=100 + number) for number, result in enumerate(sums)]
    for _ in range(3):
        for graph, result, addend in zip(graphs, sums, (one, two), strict=True):
            assert bench.compute(graph) == 0
            assert np.array_equal(read(lib, result), read(lib, addend) + read(lib, two))


def test_the_same_graph_under_a_new_uid(bench: Bench, lib: ggml.Library, speaking: Cluster) -> None:
    """libllama builds a graph anew for each change of the batch's size: our worker may know it nevertheless."""
    one = bench.filled(noise(8))
    total = bench.place(bench.c.ggml_add(bench.context, one, one))
    graph = bench.graph(total, uid=600)
    sent = []
    for uid in (600, 601, 602, 602, 600):
        memory.write_u64(graph + GraphOffset.UID, uid)
        write(lib, one, noise(8) + uid)
        speaking.ping()
        before = speaking.stats()[0]["graphs_sent"]
        assert bench.compute(graph) == 0
        sent.append(speaking.stats()[0]["graphs_sent"] - before)
        assert np.array_equal(read(lib, total), (noise(8) + uid) * 2)
    known = {"8.0+herd": [1, 1, 0, 0, 0], "8.0": [1, 1, 1, 0, 0]}
    assert sent == known.get(speaking.stats()[0]["protocol"], [1, 1, 1, 0, 1])


def test_a_freed_buffer_takes_its_graphs_along(bench: Bench, lib: ggml.Library, speaking: Cluster) -> None:
    one = bench.filled(noise(8))
    total = bench.place(bench.c.ggml_add(bench.context, one, one))
    graph = bench.graph(total, uid=500)
    for _ in range(2):
        assert bench.compute(graph) == 0
    bench_on(lib, speaking).close()
    assert bench.compute(graph) == 0
    assert np.array_equal(read(lib, total), noise(8) * 2)
    speaking.check()


@pytest.mark.parametrize("uid", [0, 1000])
def test_backends_of_one_device_share_what_it_holds(
    bench: Bench, lib: ggml.Library, speaking: Cluster, uid: int
) -> None:
    """Before 8.0 a device holds one graph, of whichever backend: another one's must not run in its place."""
    benches = [bench, bench_on(lib, speaking)]
    jobs = []
    for number, each in enumerate(benches):
        one = each.filled(noise(8) + number)
        total = each.place(each.c.ggml_add(each.context, one, one))
        jobs.append((each, each.graph(total, uid=uid and uid + number), total, (noise(8) + number) * 2))
    for number in (0, 0, 1, 0, 1, 1, 0, 1):
        each, graph, total, expected = jobs[number]
        write(lib, total, np.zeros(8, np.float32))
        assert each.compute(graph) == 0
        assert np.array_equal(read(lib, total), expected)
    benches[1].close()


def test_gets_wait_until_synchronize(bench: Bench, lib: ggml.Library, speaking: Cluster) -> None:
    tensors = [bench.filled(noise(100) * number) for number in range(4)]
    speaking.ping()
    before = speaking.stats()[0]["round_trips"]
    got = [bench.get_async(tensor) for tensor in tensors]
    lib.c.ggml_backend_synchronize(bench.backend)
    assert speaking.stats()[0]["round_trips"] - before <= 1
    for number, out in enumerate(got):
        assert np.array_equal(out.view(np.float32), noise(100) * number)


def test_nothing_is_written_for_a_backend_that_is_gone(bench: Bench, lib: ggml.Library, speaking: Cluster) -> None:
    out = bench.get_async(bench.filled(noise(100)))
    lib.c.ggml_backend_free(bench.backend)
    bench.backend = 0
    speaking.ping()
    assert (out == 0xAB).all()


def test_ends_that_agree_on_no_cache_keep_the_last_graphs(
    lib: ggml.Library, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that does not know the feature; the 256 last are kept at first sight, the 257th pushes one out."""
    monkeypatch.setattr(client, "FEATURES", FEATURES & ~Feature.GRAPH_CACHE)
    with Cluster(lib, [worker.endpoint]) as cluster:
        hello = cluster.endpoints[0].hello
        assert hello is not None
        assert not hello.features & Feature.GRAPH_CACHE
        bench = bench_on(lib, cluster)
        one = bench.filled(noise(8))
        total = bench.place(bench.c.ggml_add(bench.context, one, one))
        graph = bench.graph(total)
        for uid in [*range(1, 258), *range(2, 258), 1, 3]:
            memory.write_u64(graph + GraphOffset.UID, uid)
            assert bench.compute(graph) == 0
        assert np.array_equal(read(lib, total), noise(8) * 2)
        stats = cluster.stats()[0]
        assert (stats["graphs_sent"], stats["graphs_rerun"]) == (258, 257)
        bench.close()
        cluster.ping()
        cluster.check()
