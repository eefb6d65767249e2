from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from support.workers import Worker
from wireherd import ggml
from wireherd.client.plugin import Cluster


@pytest.fixture(scope="session")
def lib() -> ggml.Library:
    return ggml.load()


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """One worker for all tests of a file that do it no harm."""
    server = Worker()
    yield server
    server.stop()


@pytest.fixture
def cluster(lib: ggml.Library, worker: Worker) -> Iterator[Cluster]:
    with Cluster(lib, [worker.endpoint]) as one:
        yield one


class Doom:
    """What can happen to a worker."""

    def __init__(self, server: Worker) -> None:
        self._server = server

    def freeze(self) -> None:
        """Stop all its processes where they are."""
        for pid in self._server.children():
            os.kill(pid, signal.SIGSTOP)

    def __call__(self) -> None:
        """Kill all its processes at once."""
        for pid in self._server.children():
            os.kill(pid, signal.SIGKILL)
        self._server.kill()


@pytest.fixture
def doomed(lib: ggml.Library) -> Iterator[tuple[Cluster, Doom]]:
    """A cluster of one worker, and that worker's fate."""
    server = Worker()
    cluster = Cluster(lib, [server.endpoint])
    doom = Doom(server)
    yield cluster, doom
    cluster.close()
    doom()
    server.stop(grace_s=0)
