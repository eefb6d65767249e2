"""Caches of graphs that are too small for a model: right tokens all the same, resets told by both ends, no leaks.

A tensor split runs two graphs a layer and one more on each device, many times what the caches here hold.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from support.workers import Worker
from wireherd.llm.generate import GenerateOptions
from wireherd.llm.options import LlamaOptions
from wireherd.llm.session import LlmSession
from wireherd.testing import tiny

CAPACITY = 16
PROMPT = "the man and the woman went to the sea and"
LINE = f"graph cache of device 0 is full ({CAPACITY} graphs): cleared"
#: bytes that a process may gain without a leak: its allocator's pieces
SLACK = 8 << 20

Start = Callable[..., list[Worker]]


def layered(folder: Path, n_layer: int) -> Path:
    """Heads that split evenly over two workers."""
    shape = tiny.Shape(n_embd=64, n_layer=n_layer, n_head=4, n_head_kv=2, n_ctx=4096)
    return tiny.write(folder / f"{n_layer}.gguf", shape, tied=False)


def options(model: Path, workers: list[Worker], **values: object) -> LlamaOptions:
    base = LlamaOptions(
        model, [worker.endpoint for worker in workers], n_ctx=2304, threads=1, repack=False, flash_attn="on"
    )
    return replace(base, split_mode="tensor", **values)


def greedy(session: LlmSession, count: int) -> list[int]:
    return session.generate(PROMPT, GenerateOptions(n_predict=count, temperature=0.0, ignore_eos=True)).run().tokens


def test_small_caches_change_the_traffic_and_nothing_else(
    tmp_path: Path, workers: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "wireherd.client.graphs")
    model = layered(tmp_path, 12)
    pair = workers(2)
    tokens, stats = {}, {}
    for name, values in {
        "large": {},
        "none": {"graph_cache": 0},
        "lru": {"graph_cache": CAPACITY},
        "reset": {"graph_cache": CAPACITY, "graph_cache_policy": "reset"},
    }.items():
        with LlmSession.open(options(model, pair, **values)) as session:
            tokens[name] = greedy(session, 12)
            stats[name] = session.workers()
    assert tokens["none"] == tokens["lru"] == tokens["reset"] == tokens["large"]
    for number, worker in enumerate(pair):
        large, none, lru, reset = (stats[name][number] for name in ("large", "none", "lru", "reset"))
        total = large["graphs_sent"] + large["graphs_rerun"]
        assert all(each[number]["graphs_sent"] + each[number]["graphs_rerun"] == total for each in stats.values())
        assert large["graphs_rerun"] > 0.7 * total
        assert (none["graphs_rerun"], none["graph_cache_resets"], lru["graph_cache_resets"]) == (0, 0, 0)
        assert 0 < reset["graphs_rerun"] < large["graphs_rerun"]
        assert reset["graph_cache_resets"] > 2
        assert worker.errors().count(LINE) == reset["graph_cache_resets"]
        lines = [record.message for record in caplog.records if record.name == "wireherd.client.graphs"]
        told = [line for line in lines if worker.endpoint in line]
        assert len(told) == reset["graph_cache_resets"]
        assert all(line == LINE.replace("device 0", f"device 0 of worker {worker.endpoint}") for line in told)


def test_the_owner_of_a_worker_has_the_last_word(tmp_path: Path, workers: Start) -> None:
    model = layered(tmp_path, 12)
    pair = [*workers(1, "--graph-cache-limit", "0"), *workers(1)]
    with LlmSession.open(options(model, pair)) as session:
        greedy(session, 6)
        first, second = session.workers()
    assert first["graph_cache_hits"] == 0
    assert second["graph_cache_hits"] > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("policy", ["lru", "reset"])
def test_memory_does_not_grow_over_two_thousand_tokens(tmp_path: Path, workers: Start, policy: str) -> None:
    """Thirty layers: 61 graphs a token on each of two devices."""
    model = layered(tmp_path, 30)
    pair = workers(2)
    with LlmSession.open(options(model, pair, graph_cache=CAPACITY, graph_cache_policy=policy)) as session:
        sizes: list[list[int]] = []
        generation = session.generate(PROMPT, GenerateOptions(n_predict=2000, temperature=0.0, ignore_eos=True))
        for _ in generation:
            if len(generation.result.tokens) >= 200 * (len(sizes) + 1):
                sizes.append(_resident(pair))
        stats = session.workers()
    assert len(generation.result.tokens) == 2000
    for worker in stats:
        assert worker["graphs_sent"] > 50_000
        assert (worker["graph_cache_resets"] > 1000) == (policy == "reset")
    assert len(sizes) == 10
    for first, last in zip(sizes[0], sizes[-1], strict=True):
        assert last - first < SLACK, sizes


def _resident(pair: list[Worker]) -> list[int]:
    """Bytes of their own that this process and the largest process of each worker, the session, have in memory."""
    return [_own_bytes(os.getpid()), *(max(map(_own_bytes, worker.children())) for worker in pair)]


def _own_bytes(pid: int) -> int:
    """Without files and libraries: how much of those counts depends on who else maps them."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) << 10
