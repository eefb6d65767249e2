"""Stock peers of protocol 4.0.3, 5.0, 7.0 and 8.0 in both directions. These run in the interop step: `pytest -m stock`."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

import pytest

from stock.get_stock import libggml, stock
from stock.running import PROMPT, N, behind, served, stock_server, tensor_split
from support import processes
from support.cli import GREEDY, PERTURBED, generate, wireherd
from support.workers import Worker

NAMES = {"4": "4.0", "5": "5.0", "7": "7.0", "8": "8.0"}
#: kernels of other releases, and sums of parts, round differently: where a token is not the one of a run alone, its
#: logit may lie this far behind the best one
MARGIN = 0.25

pytestmark = [pytest.mark.stock, pytest.mark.model]


def right(model: str, tokens: list[int]) -> bool:
    """Whether these are the tokens of a run alone, but for near ties."""
    return len(tokens) == N and max(behind(model, tokens)) <= MARGIN


def endpoints(pair: list[Worker]) -> list[str]:
    return [worker.endpoint for worker in pair]


@pytest.mark.parametrize(
    ("version", "name"),
    [("4", "smollm"), ("5", "smollm"), ("5", "gemma"), ("7", "smollm"), ("7", "gemma"), ("8", "smollm")],
)
def test_our_client_on_stock_servers(version: str, name: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(name)
    with stock_server(version) as first, stock_server(version) as second:
        answer = generate(model, PROMPT, n=N, rpc=[first, second], extra=GREEDY)
    assert right(model, answer["tokens"])
    assert [worker["protocol"] for worker in answer["workers"]] == [NAMES[version]] * 2
    assert all(worker["bytes_sent"] > 1_000_000 for worker in answer["workers"])


def test_our_workers_compute_as_stock_servers(workers: Any, gemma: str) -> None:
    """The same ggml library behind both kinds of server: the same tokens, near ties or not."""
    with stock_server("5") as first, stock_server("5") as second:
        expected = generate(gemma, PROMPT, rpc=[first, second], extra=GREEDY)
    pair = workers(2, "--ggml", str(libggml()), env=PERTURBED)
    answer = generate(gemma, PROMPT, rpc=endpoints(pair), extra=GREEDY)
    assert answer["tokens"] == expected["tokens"]


@pytest.mark.parametrize(
    ("version", "name"),
    [("4", "smollm"), ("5", "smollm"), ("5", "gemma"), ("7", "smollm"), ("7", "gemma"), ("8", "smollm")],
)
@pytest.mark.timeout(600)
def test_stock_client_on_our_workers(version: str, name: str, workers: Any, request: pytest.FixtureRequest) -> None:
    """What the client says over servers of its own kind, it says over our workers that answer as those."""
    model = request.getfixturevalue(name)
    with stock_server(version) as first, stock_server(version) as second:
        expected = served(version, model, [first, second])
    assert len(expected) > 20
    # built here from source, 7.0 computes a little differently from wheels: there its own library does, in our worker
    library = ("--ggml", str(stock("7") / "bin")) if version == "7" else ()
    pair: list[Worker] = workers(2, "--protocol", NAMES[version], *library, env=PERTURBED)
    idle = [processes.resident_bytes(worker.pid) for worker in pair]
    seen: list[int] = []

    def look() -> None:
        seen.extend(processes.resident_bytes(worker.pid) for worker in pair)

    assert served(version, model, endpoints(pair), look) == expected
    for now, before in zip(seen, idle, strict=False):
        assert now > before + (16 << 20), "no weights lay on a worker"
    assert all(worker.running() for worker in pair)
    for worker in pair:
        assert "connected: session" in worker.errors()
        assert "failed" not in worker.errors()


def test_a_second_stock_client_finds_the_workers_as_the_first_did(workers: Any, smollm: str) -> None:
    pair: list[Worker] = workers(2, "--protocol", "7.0", env=PERTURBED)
    first = served("7", smollm, endpoints(pair))
    assert right(smollm, json.loads(first))
    assert served("7", smollm, endpoints(pair)) == first


@pytest.mark.parametrize("versions", [("5", "8"), ("4", "7")], ids="-".join)
def test_one_model_over_servers_of_several_versions(versions: tuple[str, ...], workers: Any, smollm: str) -> None:
    """Each endpoint is spoken to in its own version, our worker in our extension, in one cluster."""
    (ours,) = workers(1, env=PERTURBED)
    with ExitStack() as stack:
        rpc = [*(stack.enter_context(stock_server(version)) for version in versions), ours.endpoint]
        answer = generate(smollm, PROMPT, n=N, rpc=rpc, extra=GREEDY)
    assert right(smollm, answer["tokens"])
    assert [worker["protocol"] for worker in answer["workers"]] == [*(NAMES[each] for each in versions), "8.0+herd"]
    assert all(worker["bytes_sent"] > 1_000_000 for worker in answer["workers"])


def test_a_stock_client_of_another_version_is_told_of_in_the_workers_log(workers: Any, smollm: str) -> None:
    """The client's own words name its server's version only; what to do about it stands in the worker's log."""
    (worker,) = workers(1, "--protocol", "5.0")
    with pytest.raises(AssertionError, match=r"mismatch"):
        served("7", smollm, [worker.endpoint])
    processes.wait_until(lambda: "answers as ggml RPC 5.0.0" in worker.errors(), 5, "a line in the worker's log")
    assert "start the worker with --protocol and the client's version" in worker.errors()


def test_a_stock_server_that_dies_is_one_sentence(smollm: str) -> None:
    with stock_server("5") as endpoint:
        pass
    outcome = wireherd("run", "-m", smollm, "--rpc", endpoint, "-p", "hello", "-n", "2")
    assert outcome.code == 1
    assert endpoint in outcome.sentence()


def test_our_client_splits_every_layer_over_stock_8_servers(smollm: str) -> None:
    with stock_server("8") as first, stock_server("8") as second:
        answer = generate(smollm, PROMPT, n=N, rpc=[first, second], extra=(*GREEDY, "-sm", "tensor"))
    assert [worker["protocol"] for worker in answer["workers"]] == ["8.0", "8.0"]
    assert right(smollm, answer["tokens"])


def test_a_stock_8_client_splits_every_layer_over_our_workers(workers: Any, smollm: str) -> None:
    pair = workers(2, env=PERTURBED)
    tokens = tensor_split(smollm, endpoints(pair))
    assert right(smollm, tokens)
    assert all(worker.running() for worker in pair)
