"""Workers for the tests of this room."""

from __future__ import annotations

import time

import pytest

from support import processes
from wireherd.worker import spawn
from wireherd.worker.launch import WorkerProcess


@pytest.fixture
def start():
    """Factory of running workers; all are stopped after the test and must end well."""
    started: list[WorkerProcess] = []

    def factory(*arguments):
        started.append(spawn(["-t", "1", *arguments]))
        return started[-1]

    yield factory
    for worker in started:
        children = processes.descendants(worker.pid)
        ran = worker.returncode is None
        log = worker.log()
        begun = time.monotonic()
        code = worker.stop()
        if ran:
            assert code == 0, log
            assert time.monotonic() - begun < 1.5
        assert not [pid for pid in children if processes.alive(pid)]
        assert "Traceback" not in log, log


@pytest.fixture(scope="module")
def worker():
    """One worker for tests that leave it as it was."""
    with spawn(["-t", "1"]) as running:
        yield running


@pytest.fixture(scope="module")
def worker5():
    """The same, as a stock 5.0 server."""
    with spawn(["-t", "1", "--protocol", "5.0"]) as running:
        yield running
