"""Workers add up tensors among themselves: the sum in rank order, the same bits on every rank, or an honest no."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from remote_tensors import F16, Bench, bench_on, read, write

from support.workers import Worker
from wireherd import ggml
from wireherd.client.plugin import Cluster
from wireherd.errors import WorkerError
from wireherd.ggml import memory
from wireherd.ggml.functions import prototype
from wireherd.ggml.structs import TensorOffset

COMPUTE = 16
WORLD = 4


@pytest.fixture(scope="module")
def herd() -> Iterator[list[Worker]]:
    started: list[Worker] = []
    try:
        for _ in range(WORLD):
            started.append(Worker())  # noqa: PERF401 - those started must be stopped
        yield started
    finally:
        for worker in started:
            worker.stop()


class Ranks:
    """A tensor on each of several devices, and libllama's three functions over them."""

    def __init__(self, lib: ggml.Library, cluster: Cluster, size: int = 4 << 20) -> None:
        self.lib = lib
        self.benches = [bench_on(lib, cluster, number, size) for number in range(len(cluster.devices))]
        reg = lib.c.ggml_backend_dev_backend_reg(cluster.device_pointers[0])
        pointer, size_t, flag = ctypes.c_size_t, ctypes.c_size_t, ctypes.c_bool

        def find(name: bytes, *signature: object) -> Any:
            return prototype(lib.c.ggml_backend_reg_get_proc_address(reg, name), *signature)

        self.init = find(b"ggml_backend_comm_init", pointer, pointer, size_t)
        self.free = find(b"ggml_backend_comm_free", None, pointer)
        self.allreduce = find(b"ggml_backend_comm_allreduce_tensor", flag, pointer, pointer)

    def form(self) -> int:
        backends = np.array([bench.backend for bench in self.benches], np.uint64)
        return self.init(memory.address_of(backends), len(backends))

    def place(self, parts: list[np.ndarray], mask: int) -> list[int]:
        tensors = [bench.filled(part) for bench, part in zip(self.benches, parts, strict=True)]
        for rank, tensor in enumerate(tensors):
            memory.write_i32(tensor + TensorOffset.FLAGS, COMPUTE if mask >> rank & 1 else 0)
        return tensors

    def reduce(self, group: int, tensors: list[int]) -> bool:
        return bool(self.allreduce(group, memory.address_of(np.array(tensors, np.uint64))))

    def close(self) -> None:
        for bench in self.benches:
            bench.close()


def in_rank_order(parts: list[np.ndarray], mask: int) -> np.ndarray:
    live = [part for rank, part in enumerate(parts) if mask >> rank & 1]
    total = np.zeros_like(parts[0]) if not live else live[0].copy()
    for part in live[1:]:
        total = total + part
    return total


@pytest.mark.parametrize("world", [2, 3, 4])
def test_every_rank_has_the_same_bits(lib: ggml.Library, herd: list[Worker], world: int) -> None:
    noise = np.random.default_rng(world)
    with Cluster(lib, [worker.endpoint for worker in herd[:world]]) as cluster:
        ranks = Ranks(lib, cluster)
        group = ranks.form()
        assert group
        for size in (1, 7, 576, 16_384, 100_003):
            everybody = (1 << world) - 1
            for mask in (everybody, everybody & ~1, 1 << world - 1, 0):
                # sizes apart by orders, so that another order of adding would show
                parts = [(noise.standard_normal(size) * 10.0 ** (3 * rank)).astype(np.float32) for rank in range(world)]
                tensors = ranks.place(parts, mask)
                assert ranks.reduce(group, tensors)
                sums = [read(lib, tensor) for tensor in tensors]
                wanted = in_rank_order(parts, mask)
                assert all(np.array_equal(wanted.view(np.uint32), each.view(np.uint32)) for each in sums), (size, mask)
                for bench in ranks.benches:
                    bench.used = 0
        ranks.free(group)
        cluster.ping()
        cluster.check()
        ranks.close()


def test_the_same_tensors_again_with_other_contents(lib: ggml.Library, herd: list[Worker]) -> None:
    with Cluster(lib, [worker.endpoint for worker in herd[:2]]) as cluster:
        ranks = Ranks(lib, cluster)
        group = ranks.form()
        tensors = ranks.place([np.zeros(64, np.float32)] * 2, 3)
        received = []
        for turn in range(5):
            parts = [np.full(64, turn + 0.5, np.float32), np.full(64, 100.0, np.float32)]
            for tensor, part in zip(tensors, parts, strict=True):
                write(lib, tensor, part)
            before = [stats["bytes_received"] for stats in cluster.stats()]
            assert ranks.reduce(group, tensors)
            received.append([stats["bytes_received"] - old for stats, old in zip(cluster.stats(), before, strict=True)])
            assert all(np.array_equal(read(lib, tensor), parts[0] + parts[1]) for tensor in tensors)
        assert received == [[0, 0]] * 5, "a sum was answered"
        ranks.free(group)
        ranks.close()


def test_what_cannot_be_added_among_workers(lib: ggml.Library, herd: list[Worker]) -> None:
    with Cluster(lib, [worker.endpoint for worker in herd[:2]]) as cluster:
        ranks = Ranks(lib, cluster)
        group = ranks.form()
        first, second = ranks.benches
        half = [bench.tensor(64, kind=F16) for bench in ranks.benches]
        assert not ranks.reduce(group, half)
        assert not ranks.reduce(group, [first.tensor(64), second.tensor(32)])
        assert not ranks.reduce(group, [first.tensor(64), first.tensor(64)]), "both lie on one worker"
        grid = [bench.tensor(8, 8) for bench in ranks.benches]
        for tensor in grid:
            memory.write_u64(tensor + TensorOffset.NB + 8, 64)
        assert not ranks.reduce(group, grid), "rows with gaps"
        assert not ranks.reduce(group + 1, [first.tensor(64), second.tensor(64)]), "no such group"
        cluster.check()
        ranks.free(group)
        ranks.free(group)
        assert not ranks.reduce(group, [first.tensor(64), second.tensor(64)])
        ranks.close()


def test_two_groups_side_by_side(lib: ggml.Library, herd: list[Worker]) -> None:
    """As a draft model beside a target makes them."""
    with Cluster(lib, [worker.endpoint for worker in herd[:2]]) as cluster:
        ranks = Ranks(lib, cluster)
        groups = [ranks.form(), ranks.form()]
        assert len(set(groups)) == 2
        for group in groups:
            tensors = ranks.place([np.ones(9, np.float32), np.full(9, 2, np.float32)], 3)
            assert ranks.reduce(group, tensors)
            assert all(np.array_equal(read(lib, tensor), np.full(9, 3, np.float32)) for tensor in tensors)
        ranks.free(groups[0])
        tensors = ranks.place([np.ones(9, np.float32), np.full(9, 2, np.float32)], 3)
        assert ranks.reduce(groups[1], tensors)
        assert np.array_equal(read(lib, tensors[1]), np.full(9, 3, np.float32))
        ranks.close()


def test_a_member_that_died(lib: ggml.Library, herd: list[Worker]) -> None:
    """The one that died is named, not the one that noticed, and nobody waits for long."""
    extra = Worker()
    try:
        with Cluster(lib, [herd[0].endpoint, extra.endpoint, herd[1].endpoint]) as cluster:
            ranks = Ranks(lib, cluster)
            group = ranks.form()
            tensors = ranks.place([np.ones(9, np.float32)] * 3, 7)
            assert ranks.reduce(group, tensors)
            cluster.ping()
            extra.kill()
            ranks.reduce(group, tensors)
            for _ in range(200):
                if cluster.failure is not None:
                    break
                ranks.reduce(group, tensors)
                time.sleep(0.02)
            with pytest.raises(WorkerError) as told:
                cluster.ping()
            assert told.value.endpoint == extra.endpoint
            ranks.close()
    finally:
        extra.stop(grace_s=0)


def test_workers_that_may_not_dial_each_other(
    lib: ggml.Library, caplog: pytest.LogCaptureFixture, workers: Callable[..., list[Worker]]
) -> None:
    pair = workers(2, "--peers", "192.0.2.0/24")
    with Cluster(lib, [worker.endpoint for worker in pair]) as cluster:
        ranks = Ranks(lib, cluster)
        assert not ranks.form()
        (line,) = [each for each in caplog.messages if "cannot reach each other" in each]
        assert pair[1].endpoint in line
        tensors = ranks.place([np.ones(9, np.float32)] * 2, 3)
        assert not ranks.reduce(1, tensors)
        cluster.ping()
        cluster.check()
        ranks.close()


def test_members_that_speak_differently(
    lib: ggml.Library, herd: list[Worker], caplog: pytest.LogCaptureFixture, workers: Callable[..., list[Worker]]
) -> None:
    (plain,) = workers(1, "--plain", "--protocol", "8.0")
    with Cluster(lib, [herd[0].endpoint, plain.endpoint]) as cluster:
        ranks = Ranks(lib, cluster)
        assert not ranks.form()
        (line,) = [each for each in caplog.messages if "added up through this client" in each]
        assert f"{plain.endpoint} (8.0)" in line
        ranks.close()


def test_two_of_stock(lib: ggml.Library, workers: Callable[..., list[Worker]]) -> None:
    """Two workers that answer as stock 8.0: its own commands, and its client's caution."""
    pair = workers(2, "--plain", "--protocol", "8.0")
    with Cluster(lib, [worker.endpoint for worker in pair]) as cluster:
        ranks = Ranks(lib, cluster)
        group = ranks.form()
        assert group
        parts = [np.arange(100, dtype=np.float32), np.full(100, 0.25, np.float32)]
        tensors = ranks.place(parts, 3)
        assert ranks.reduce(group, tensors)
        assert all(np.array_equal(read(lib, tensor), parts[0] + parts[1]) for tensor in tensors)
        assert not ranks.reduce(group, ranks.place(parts, 1)), "stock would add what is no part"
        ranks.free(group)
        cluster.ping()
        ranks.close()


def test_two_devices_of_one_worker_are_no_group(lib: ggml.Library, herd: list[Worker]) -> None:
    with Cluster(lib, [herd[0].endpoint]) as cluster:
        first = Bench(lib, cluster.device_pointers[0])
        second = Bench(lib, cluster.device_pointers[0])
        ranks = Ranks(lib, cluster)
        ranks.benches = [first, second]
        assert not ranks.form()
        assert not ranks.init(0, 0)
        ranks.benches = [first]
        assert not ranks.form()
        first.close()
        second.close()
