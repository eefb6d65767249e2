"""Stock 8.0 clients that split every layer over our workers, which then add up among themselves, also with a stock one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from stock.running import N, behind, stock_server, tensor_split
from support.cli import PERTURBED

if TYPE_CHECKING:
    from support.workers import Worker

#: sums of parts round differently: a token that is not the one of a run alone may lie this far behind the best one
MARGIN = 0.25

pytestmark = [pytest.mark.stock, pytest.mark.model]


def right(model: str, tokens: list[int]) -> bool:
    return len(tokens) == N and max(behind(model, tokens)) <= MARGIN


def test_two_of_our_workers_form_a_pair(workers: Any, smollm: str) -> None:
    pair: list[Worker] = workers(2, env=PERTURBED)
    tokens = tensor_split(smollm, [worker.endpoint for worker in pair])
    assert right(smollm, tokens)
    for rank, worker in enumerate(pair):
        assert f"rank {rank} of a pair of servers" in worker.errors()
        assert worker.running()


@pytest.mark.parametrize("ours_first", [True, False])
def test_one_of_our_workers_and_a_stock_server_form_a_pair(ours_first: bool, workers: Any, smollm: str) -> None:
    (ours,) = workers(1, env=PERTURBED)
    with stock_server("8") as stock:
        endpoints = [ours.endpoint, stock] if ours_first else [stock, ours.endpoint]
        tokens = tensor_split(smollm, endpoints)
    assert right(smollm, tokens)
    assert f"rank {0 if ours_first else 1} of a pair of servers" in ours.errors()
