"""A worker that is killed at any stage: one sentence, quickly, no abort; and the process can start over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from support import processes
from support.cli import EQUAL_KERNELS, GREEDY, Outcome, command, wireherd
from support.models import long_prompt
from support.workers import Worker

#: the client must have said so and ended
NOTICED_S = 2.0

pytestmark = [pytest.mark.model, pytest.mark.skipif(not processes.HAVE_PROC, reason="watches processes through /proc")]


class Client:
    """`wireherd run` in the background; its output is read as it comes."""

    def __init__(self, model: str, rpc: list[str], *extra: str) -> None:
        self.process = subprocess.Popen(
            command("run", "-m", model, "--rpc", ",".join(rpc), *GREEDY, *EQUAL_KERNELS, *extra),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._parts: list[bytes] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        while part := os.read(self.process.stdout.fileno(), 4096):
            self._parts.append(part)

    @property
    def text(self) -> str:
        return b"".join(self._parts).decode(errors="replace")

    def ended(self, timeout_s: float) -> Outcome:
        """Wait for its end; too late is a failure."""
        start = time.monotonic()
        try:
            code = self.process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.stop()
            raise AssertionError(f"the client was still there {timeout_s:g} s after the kill") from None
        seconds = time.monotonic() - start
        self._reader.join(timeout=5)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        error = self.process.stderr.read().decode(errors="replace")
        self.process.stdout.close()
        self.process.stderr.close()
        return Outcome(code, self.text, error, seconds)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(timeout=5)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


@pytest.fixture
def client() -> Any:
    started: list[Client] = []

    def start(model: str, rpc: list[str], *extra: str) -> Client:
        started.append(Client(model, rpc, *extra))
        return started[-1]

    yield start
    for each in started:
        each.stop()


def check(outcome: Outcome, worker: Worker) -> None:
    assert outcome.code == 1, f"exit code {outcome.code}: {outcome.err}"
    assert worker.endpoint in outcome.sentence()


def killers() -> list[Any]:
    def supervisor(worker: Worker) -> None:
        worker.kill()

    def sessions(worker: Worker) -> None:
        for pid in worker.children():
            os.kill(pid, signal.SIGKILL)

    return [pytest.param(supervisor, id="worker"), pytest.param(sessions, id="session")]


def test_killed_before_load(workers: Any, smollm: str) -> None:
    first, second = workers(2)
    second.kill()
    second.process.wait()
    outcome = wireherd("run", "-m", smollm, "--rpc", f"{first.endpoint},{second.endpoint}", "-p", "Hello", "-n", "4")
    check(outcome, second)
    # the client's own start is in this; noticing a closed port takes no time
    assert outcome.seconds < 10


@pytest.mark.parametrize("kill", killers())
def test_killed_during_load(kill: Callable[[Worker], None], workers: Any, client: Any, gemma: str) -> None:
    first, second = workers(2)
    idle = processes.resident_bytes(second.pid)
    running = client(gemma, [first.endpoint, second.endpoint], "-p", "Hello", "-n", "4")
    processes.wait_until(
        lambda: processes.resident_bytes(second.pid) > idle + (16 << 20), 60, "weights arrive at the second worker"
    )
    kill(second)
    check(running.ended(NOTICED_S), second)


@pytest.mark.parametrize("kill", killers())
def test_killed_within_a_group(kill: Callable[[Worker], None], workers: Any, client: Any, smollm: str) -> None:
    """With every layer split: the worker that died is named, not one that waits for its part of a sum."""
    herd = workers(3)
    rpc = [worker.endpoint for worker in herd]
    running = client(smollm, rpc, "-sm", "tensor", "-p", "Once upon a time", "-n", "400", "--ignore-eos")
    processes.wait_until(lambda: len(running.text) > 20, 60, "text comes")
    kill(herd[1])
    check(running.ended(NOTICED_S), herd[1])


@pytest.mark.parametrize("kill", killers())
def test_killed_during_the_prompt(kill: Callable[[Worker], None], workers: Any, client: Any, smollm: str) -> None:
    first, second = workers(2)
    idle = processes.cpu_seconds(second.pid)
    running = client(
        smollm, [first.endpoint, second.endpoint], "-p", long_prompt(1500), "-n", "4", "-c", "2560", "-ub", "128"
    )
    processes.wait_until(lambda: processes.cpu_seconds(second.pid) > idle + 1.0, 60, "the second worker computes")
    assert running.text == ""
    kill(second)
    check(running.ended(NOTICED_S), second)


@pytest.mark.parametrize("kill", killers())
def test_killed_during_generation(kill: Callable[[Worker], None], workers: Any, client: Any, smollm: str) -> None:
    first, second = workers(2)
    running = client(
        smollm, [first.endpoint, second.endpoint], "-p", "Once upon a time", "-n", "1500", "-c", "2048", "--ignore-eos"
    )
    processes.wait_until(lambda: len(running.text) > 40, 60, "text arrives")
    kill(second)
    outcome = running.ended(NOTICED_S)
    check(outcome, second)
    assert "\ufffd" not in outcome.out


def test_stopped_worker_is_noticed(workers: Any, client: Any, smollm: str) -> None:
    """SIGSTOP: the kernel still answers for it, so only the control connection can tell."""
    first, second = workers(2)
    running = client(
        smollm, [first.endpoint, second.endpoint], "-p", "Once upon a time", "-n", "1500", "-c", "2048", "--ignore-eos"
    )
    processes.wait_until(lambda: len(running.text) > 40, 60, "text arrives")
    stopped = [second.pid, *second.children()]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        check(running.ended(NOTICED_S), second)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def test_interrupt_stops_a_prompt(workers: Any, client: Any, smollm: str) -> None:
    pair = workers(2)
    idle = processes.cpu_seconds(pair[0].pid)
    running = client(
        smollm, [worker.endpoint for worker in pair], "-p", long_prompt(1500), "-n", "4", "-c", "2560", "-ub", "128"
    )
    processes.wait_until(lambda: processes.cpu_seconds(pair[0].pid) > idle + 1.0, 60, "the first worker computes")
    running.process.send_signal(signal.SIGINT)
    outcome = running.ended(1.0)
    assert outcome.code in {1, 130, -signal.SIGINT}
    assert "Traceback" not in outcome.err


STARTS_OVER = """
import json, os, signal, sys
from wireherd.errors import WorkerLost
from wireherd.llm.generate import GenerateOptions
from wireherd.llm.session import LlamaOptions, LlmSession

model, first, second, victim = sys.argv[1:5]

def tokens(rpc, kill_after=None):
    options = LlamaOptions(model=model, rpc=rpc, threads=1, repack=False, n_ctx=512)
    with LlmSession.open(options) as session:
        stream = session.generate("Once upon a time", GenerateOptions(n_predict=24, temperature=0.0))
        for count, _ in enumerate(stream):
            if count == kill_after:
                os.kill(int(victim), signal.SIGKILL)
                kill_after = None
        return stream.result.tokens

try:
    tokens([first, second], kill_after=3)
    lost = None
except WorkerLost as error:
    lost = error.endpoint
print(json.dumps({"lost": lost, "tokens": tokens([first])}))
"""


def test_the_same_process_starts_over(workers: Any, smollm: str) -> None:
    first, second = workers(2)
    done = subprocess.run(
        [sys.executable, "-c", STARTS_OVER, smollm, first.endpoint, second.endpoint, str(second.pid)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["lost"] == second.endpoint
    assert len(answer["tokens"]) == 24
    outcome = wireherd(
        *("run", "--json", "-m", smollm, "-ngl", "0", "-p", "Once upon a time", "-n", "24", "-c", "512"),
        *GREEDY, "--no-repack", "-t", "1",
    )  # fmt: skip
    assert answer["tokens"] == json.loads(outcome.out)["tokens"]


def test_a_dead_session_leaves_the_worker_serving(workers: Any, tiny_model: str) -> None:
    """What a graph that kills its session does to the others: nothing."""
    (worker,) = workers(1)
    run = ("run", "--json", "-m", tiny_model, "--rpc", worker.endpoint, "-p", "hello", "-n", "4", *GREEDY)
    before = json.loads(wireherd(*run).out)["tokens"]
    for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL):
        for pid in worker.children():
            os.kill(pid, number)
        processes.wait_until(worker.children, 10, "processes are there again")
        assert worker.running()
        assert json.loads(wireherd(*run).out)["tokens"] == before


def test_terminated_worker_leaves_nothing(workers: Any) -> None:
    (worker,) = workers(1)
    children = worker.children()
    assert children
    assert worker.stop() == 0
    assert not [pid for pid in children if processes.alive(pid)]


def test_dead_supervisor_takes_its_sessions_along(workers: Any) -> None:
    (worker,) = workers(1)
    children = worker.children()
    assert children
    worker.kill()
    processes.wait_until(lambda: not [pid for pid in children if processes.alive(pid)], 5, "its processes end")
