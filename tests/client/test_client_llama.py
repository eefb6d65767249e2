"""An unmodified llama.cpp on remote devices: bit-equal to this machine alone, and every failure an exception."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

import numpy as np
import pytest

from support.workers import Worker
from wireherd import ggml
from wireherd.client.plugin import Cluster
from wireherd.errors import GgmlFailed, ModelError, NativeError, WorkerLost
from wireherd.ggml.enums import FlashAttention
from wireherd.ggml.llama_context import Batch, Context, ContextOptions
from wireherd.ggml.llama_model import Model, ModelOptions

STEPS = 6


@pytest.fixture(scope="module")
def lib() -> ggml.Library:
    loaded = ggml.load()
    loaded.start_llama()
    return loaded


@pytest.fixture(scope="module")
def pair():
    servers = [Worker(), Worker()]
    yield servers
    for server in servers:
        server.stop()


def model_on(lib: ggml.Library, path: str, devices: Sequence[int], **options) -> Model:
    return Model(lib, path, ModelOptions(devices=devices, use_extra_bufts=False, **options))


def context_of(model: Model, **options) -> Context:
    return Context(model, ContextOptions(n_ctx=128, n_threads=1, flash_attn=FlashAttention.ENABLED, **options))


def logits_of(model: Model, prompt: int = 20, **options) -> list[np.ndarray]:
    """Logits after a prompt and after each of some greedy tokens."""
    context = context_of(model, **options)
    batch = Batch(context.n_batch)
    batch.fill([1, *(3 + (7 * i) % 250 for i in range(prompt - 1))], 0)
    found = []
    for step in range(STEPS):
        assert context.decode(batch) == 0
        context.synchronize()
        found.append(context.logits().copy())
        batch.one(int(found[-1].argmax()), prompt + step)
    context.close()
    return found


@pytest.fixture(scope="module")
def reference(lib: ggml.Library, tiny_model: str) -> list[np.ndarray]:
    model = model_on(lib, tiny_model, [])
    found = logits_of(model)
    model.close()
    return found


@pytest.mark.parametrize("layers", [-1, 2, 1, 0])
@pytest.mark.parametrize("count", [1, 2])
def test_logits_are_bit_equal(
    lib: ggml.Library, tiny_model: str, pair: list[Worker], reference: list[np.ndarray], count: int, layers: int
) -> None:
    with Cluster(lib, [worker.endpoint for worker in pair[:count]]) as cluster:
        model = model_on(lib, tiny_model, cluster.device_pointers, n_gpu_layers=layers)
        cluster.ping()
        remote = logits_of(model)
        cluster.check()
        model.close()
    for here, there in zip(reference, remote, strict=True):
        assert np.array_equal(here, there)


@pytest.mark.parametrize("split", [[3, 1], [1, 3], [1, 0]])
def test_shares_do_not_change_a_bit(
    lib: ggml.Library, tiny_model: str, pair: list[Worker], reference: list[np.ndarray], split: list[int]
) -> None:
    with Cluster(lib, [worker.endpoint for worker in pair]) as cluster:
        model = model_on(lib, tiny_model, cluster.device_pointers, tensor_split=split)
        remote = logits_of(model)
        cluster.check()
        model.close()
    assert all(np.array_equal(*each) for each in zip(reference, remote, strict=True))


def test_small_micro_batches(lib: ggml.Library, tiny_model: str, pair: list[Worker]) -> None:
    local = model_on(lib, tiny_model, [])
    here = logits_of(local, prompt=60, n_ubatch=16)
    local.close()
    with Cluster(lib, [worker.endpoint for worker in pair]) as cluster:
        model = model_on(lib, tiny_model, cluster.device_pointers)
        there = logits_of(model, prompt=60, n_ubatch=16)
        cluster.check()
        model.close()
    assert all(np.array_equal(*each) for each in zip(here, there, strict=True))


def test_a_stock_worker_beside_one_of_ours(
    lib: ggml.Library, tiny_model: str, pair: list[Worker], reference: list[np.ndarray], workers
) -> None:
    (stock,) = workers(1, "--plain", "--protocol", "5.0")
    with Cluster(lib, [pair[0].endpoint, stock.endpoint]) as cluster:
        model = model_on(lib, tiny_model, cluster.device_pointers)
        remote = logits_of(model)
        cluster.check()
        model.close()
    assert all(np.array_equal(*each) for each in zip(reference, remote, strict=True))


def test_two_contexts_share_a_cluster(
    lib: ggml.Library, tiny_model: str, pair: list[Worker], reference: list[np.ndarray]
) -> None:
    with Cluster(lib, [pair[0].endpoint]) as cluster:
        model = model_on(lib, tiny_model, cluster.device_pointers)
        for _ in range(2):
            assert np.array_equal(logits_of(model)[-1], reference[-1])
        model.close()
        cluster.check()


def test_a_token_costs_one_round_trip_and_its_logits(lib: ggml.Library, tiny_model: str, pair: list[Worker]) -> None:
    with Cluster(lib, [pair[0].endpoint]) as cluster:
        model = model_on(lib, tiny_model, cluster.device_pointers)
        context = context_of(model)
        batch = Batch(8)
        for position in range(4):
            batch.one(5 + position, position)
            before = cluster.stats()[0]
            assert context.decode(batch) == 0
            context.synchronize()
            after = cluster.stats()[0]
        assert after["round_trips"] - before["round_trips"] == 1
        assert after["bytes_received"] - before["bytes_received"] == 16 + 4 * model.vocab.n_tokens
        assert after["bytes_sent"] - before["bytes_sent"] < 12_000
        context.close()
        model.close()


def _kill(worker: Worker) -> None:
    for pid in worker.children():
        os.kill(pid, signal.SIGKILL)
    worker.kill()


def test_death_while_a_model_loads(lib: ggml.Library, tiny_model: str, workers) -> None:
    (worker,) = workers(1)
    cluster = Cluster(lib, [worker.endpoint])

    def progress(_share: float) -> bool:
        if cluster.failure is None:
            _kill(worker)
        return cluster.failure is None

    def load() -> None:
        context_of(model_on(lib, tiny_model, cluster.device_pointers, progress=progress))

    with pytest.raises((ModelError, NativeError)):
        load()
    with pytest.raises(WorkerLost, match=worker.endpoint):
        cluster.ping()
    cluster.close()


def test_death_before_a_context_is_made(lib: ggml.Library, tiny_model: str, workers) -> None:
    (worker,) = workers(1)
    cluster = Cluster(lib, [worker.endpoint])
    model = model_on(lib, tiny_model, cluster.device_pointers)
    cluster.ping()
    _kill(worker)
    with pytest.raises(GgmlFailed):
        context_of(model)
    with pytest.raises(WorkerLost, match=worker.endpoint):
        cluster.check()
    model.close()
    cluster.close()


@pytest.mark.parametrize("victim", [0, 1])
def test_death_while_it_generates(
    lib: ggml.Library, tiny_model: str, workers, pair: list[Worker], reference: list[np.ndarray], victim: int
) -> None:
    (mortal,) = workers(1)
    names = [pair[0].endpoint]
    names.insert(victim, mortal.endpoint)
    cluster = Cluster(lib, names)
    model = model_on(lib, tiny_model, cluster.device_pointers)
    context = context_of(model)
    batch = Batch(8)

    def generate() -> None:
        for position in range(100):
            if position == 3:
                _kill(mortal)
            batch.one(5 + position, position)
            status = context.decode(batch)
            context.synchronize()
            cluster.check()
            assert status == 0

    with pytest.raises(WorkerLost, match=mortal.endpoint):
        generate()
    context.close()
    model.close()
    cluster.close()
    with Cluster(lib, [pair[1].endpoint]) as fresh:
        model = model_on(lib, tiny_model, fresh.device_pointers)
        assert np.array_equal(logits_of(model)[-1], reference[-1])
        model.close()


def test_a_model_may_outlive_its_cluster(lib: ggml.Library, tiny_model: str, pair: list[Worker]) -> None:
    cluster = Cluster(lib, [pair[0].endpoint])
    model = model_on(lib, tiny_model, cluster.device_pointers)
    context = context_of(model)
    cluster.close()
    del cluster
    batch = Batch(8)
    batch.one(5, 0)
    assert context.decode(batch) != 0
    context.close()
    model.close()
