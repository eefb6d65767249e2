"""Greedy tokens over workers equal those of one machine alone, where the shapes and the kernels are the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from stock.get_stock import libggml
from support.cli import GREEDY, PERTURBED, generate
from support.models import long_prompt
from support.workers import Worker

PROMPT = "The old lighthouse keeper climbed the stairs every evening to"
LONG = ("-c", "2048", "-b", "2048", "-ub", "128")
SAMPLED = ("--temp", "0.8", "-s", "7")

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def herd() -> Iterator[list[Worker]]:
    """Three workers whose fresh memory is dirty."""
    started: list[Worker] = []
    try:
        for _ in range(3):
            started.append(Worker(env=PERTURBED))  # noqa: PERF401 - those started must be stopped
        yield started
    finally:
        for worker in started:
            worker.stop()


@pytest.fixture(scope="module")
def alone() -> Any:
    """Tokens of a local run with the same settings, computed once."""
    known: dict[tuple[Any, ...], list[int]] = {}

    def tokens(model: str, prompt: str, n: int, *flags: str) -> list[int]:
        key = (model, prompt, n, flags)
        if key not in known:
            known[key] = generate(model, prompt, n=n, extra=flags)["tokens"]
        return known[key]

    return tokens


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("name", ["smollm", "gemma"])
def test_workers_give_the_local_tokens(
    name: str, count: int, herd: list[Worker], alone: Any, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(name)
    endpoints = [worker.endpoint for worker in herd[:count]]
    answer = generate(model, PROMPT, rpc=endpoints, extra=GREEDY)
    assert answer["tokens"] == alone(model, PROMPT, 24, *GREEDY)
    assert [worker["endpoint"] for worker in answer["workers"]] == endpoints
    for worker in answer["workers"]:
        assert worker["bytes_sent"] > 1_000_000, "this worker got no weights"
        assert worker["bytes_received"] > 0
        assert worker["round_trips"] > 0


@pytest.mark.parametrize("flags", [("-ngl", "15"), ("-ts", "3/1"), ("-ts", "1,3")], ids=" ".join)
def test_partial_offload_and_shares(flags: tuple[str, str], herd: list[Worker], alone: Any, smollm: str) -> None:
    endpoints = [worker.endpoint for worker in herd[:2]]
    answer = generate(smollm, PROMPT, rpc=endpoints, extra=(*GREEDY, *flags))
    assert answer["tokens"] == alone(smollm, PROMPT, 24, *GREEDY)
    sent = [worker["bytes_sent"] for worker in answer["workers"]]
    if flags == ("-ts", "3/1"):
        assert sent[0] > sent[1]
    if flags == ("-ts", "1,3"):
        assert sent[0] < sent[1]


def test_long_prompt_in_small_micro_batches(herd: list[Worker], alone: Any, smollm: str) -> None:
    prompt = long_prompt(1380)
    answer = generate(
        smollm, prompt, rpc=[worker.endpoint for worker in herd[:2]], n=8, extra=(*GREEDY, *LONG), timeout_s=280
    )
    assert answer["timings"]["prompt_n"] >= 1500
    assert answer["tokens"] == alone(smollm, prompt, 8, *GREEDY, *LONG)


@pytest.mark.parametrize("name", ["smollm", "gemma"])
def test_a_seed_gives_the_local_text(name: str, herd: list[Worker], alone: Any, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(name)
    answer = generate(model, PROMPT, rpc=[worker.endpoint for worker in herd[:2]], extra=SAMPLED)
    assert answer["tokens"] == alone(model, PROMPT, 24, *SAMPLED)
    assert answer["tokens"] != alone(model, PROMPT, 24, *GREEDY), "the temperature did nothing"


@pytest.mark.parametrize(("name", "prompt"), [("smollm", PROMPT), ("gemma", "The capital of France is")])
def test_a_worker_on_another_ggml(
    name: str, prompt: str, alone: Any, workers: Any, request: pytest.FixtureRequest
) -> None:
    """libggml-python: backend API 2, other operation numbers, and kernels of another release.

    Those round a little differently (flash attention most), so gemma gets a prompt without near ties; that the same
    kernels give the same tokens is shown against stock servers on that library, in the interop step.
    """
    model = request.getfixturevalue(name)
    (worker,) = workers(1, "--ggml", str(libggml()), env=PERTURBED)
    answer = generate(model, prompt, rpc=[worker.endpoint], extra=GREEDY)
    assert answer["tokens"] == alone(model, prompt, 24, *GREEDY)


@pytest.mark.parametrize("protocol", ["5.0", "8.0"])
def test_without_the_extension(protocol: str, alone: Any, workers: Any, smollm: str) -> None:
    """The stock dialects, as towards a stock server."""
    pair = workers(2, "--plain", "--protocol", protocol, env=PERTURBED)
    answer = generate(smollm, PROMPT, rpc=[worker.endpoint for worker in pair], extra=GREEDY)
    assert answer["tokens"] == alone(smollm, PROMPT, 24, *GREEDY)
    assert all(worker["protocol"].startswith(protocol) for worker in answer["workers"])
