"""Groups of real workers: formed over their ports, sums the same bits on every rank."""

from __future__ import annotations

import numpy as np
import pytest
from grouping import Cluster


def in_order(parts, mask):
    """The sum as the contract has it: F32, in rank order."""
    live = [part for rank, part in enumerate(parts) if mask >> rank & 1]
    total = np.zeros_like(parts[0])
    if live:
        total = live[0].copy()
        for part in live[1:]:
            total = total + part
    return total


@pytest.fixture(scope="module")
def four():
    from wireherd.worker import spawn

    started = [spawn(["-t", "1"]) for _ in range(4)]
    yield [worker.endpoint for worker in started]
    for worker in started:
        worker.stop()


@pytest.mark.parametrize("world", [2, 3, 4])
def test_sums_are_the_same_everywhere(four, world):
    random = np.random.default_rng(world)
    with Cluster(four[:world]) as cluster:
        assert [answer.reason for answer in cluster.join()] == [""] * world
        for count in (1, 3, 576, 16384, 16400, 70_001):
            for mask in ((1 << world) - 1, 1, 1 << (world - 1), 0, (1 << world) - 2):
                parts = [random.standard_normal(count, np.float32) for _ in range(world)]
                for member, part in zip(cluster.members, parts, strict=True):
                    member.put(part)
                cluster.reduce(mask, count)
                cluster.flush()
                got = [member.get(count) for member in cluster.members]
                wanted = in_order(parts, mask).tobytes()
                assert [each.tobytes() == wanted for each in got] == [True] * world, (count, mask)
