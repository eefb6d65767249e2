"""Fixtures that start real workers and fetch real models, and a check that nothing is left behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import processes
from support.workers import Worker

#: descriptors a run may gain: imports, libraries and caches open some and keep them
SPARE_DESCRIPTORS = 24


@pytest.fixture
def workers() -> Iterator[Callable[..., list[Worker]]]:
    """Factory `workers(n, *flags, env=...)` for running workers; all are stopped after the test, none may be left."""
    started: list[Worker] = []

    def start(n: int = 1, *flags: str, env: dict[str, str] | None = None) -> list[Worker]:
        fresh = []
        for _ in range(n):
            fresh.append(Worker(*flags, env=env))
            started.append(fresh[-1])
        return fresh

    yield start
    failures = []
    for worker in started:
        try:
            worker.stop()
        except AssertionError as error:
            failures.append(str(error))
    assert not failures, "\n".join(failures)


@pytest.fixture(scope="session")
def smollm() -> str:
    """SmolLM2-135M-Instruct Q4_1: fetched on first use, then from the cache."""
    return _model("smollm2-135m")


@pytest.fixture(scope="session")
def gemma() -> str:
    """gemma3-270m Q4_K_M: fetched on first use, then from the cache."""
    return _model("gemma3-270m")


def _model(name: str) -> str:
    from wireherd.llm.models import pull

    return str(pull(name))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random two-layer llama of 100 KB with a tokenizer."""
    from support import models

    return str(models.write_tiny(tmp_path_factory.mktemp("model") / "tiny.gguf"))


@pytest.fixture(scope="session", autouse=True)
def nothing_left() -> Iterator[None]:
    """When all is done, no process that the run started lives on, and descriptors have not piled up."""
    if not processes.HAVE_PROC:
        yield
        return
    before = processes.open_descriptors()
    yield
    end = time.monotonic() + 5
    while (left := processes.ours()) and time.monotonic() < end:
        time.sleep(0.05)
    told = "\n".join(f"{pid}: {processes.command_line(pid)}" for pid in left)
    assert not left, f"processes left behind:\n{told}"
    gained = {fd: to for fd, to in processes.open_descriptors().items() if fd not in before}
    assert len(gained) <= SPARE_DESCRIPTORS, f"descriptors left open: {gained}"


@pytest.fixture(autouse=True)
def steady_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of the person at the machine must not change what a test sees; the cache is shared on purpose."""
    for variable in ("WIREHERD_GGML", "WIREHERD_LOG"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture(scope="session")
def cores() -> int:
    return os.cpu_count() or 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast tests first: a fault in a room below shows before the system tests that stand on it."""
    order = {"stock": 2, "system": 1}
    items.sort(key=lambda item: order.get(Path(str(item.path)).parent.name, 0))
