"""Stock peers of protocol 5.0 and 8.0 in both directions. These run in the interop step: `pytest -m stock`."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stock import peer8
from stock.get_stock import libggml, stock
from support import processes
from support.cli import GREEDY, PERTURBED, generate, wireherd
from support.workers import ServerProcess, Worker

PROMPT = "The old lighthouse keeper climbed the stairs every evening to"
LOAD_S = 180.0

pytestmark = [pytest.mark.stock, pytest.mark.model]


@pytest.fixture(scope="module")
def programs() -> Path:
    return stock("5") / "bin"


def free_port() -> int:
    """A port that was free a moment ago: stock servers cannot choose one themselves."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def environment(programs: Path) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": str(programs), "LLAMA_CACHE": "/nonexistent"}


def listening(port: int) -> bool:
    """Whether somebody listens there, asked without connecting: a stock server takes one client at a time."""
    wanted = f":{port:04X}"
    rows = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return any(row.split()[1].endswith(wanted) and row.split()[3] == "0A" for row in rows)


@contextmanager
def stock_server(programs: Path) -> Iterator[str]:
    """A stock RPC server of protocol 5.0 with one thread; yields its endpoint."""
    port = free_port()
    command = [str(programs / "ggml-rpc-server"), "-H", "127.0.0.1", "-p", str(port), "-t", "1", "-d", "CPU"]
    with running(command, port, {**environment(programs), **PERTURBED}) as endpoint:
        yield endpoint


@contextmanager
def stock8_server() -> Iterator[str]:
    """The same of protocol 8.0."""
    port = free_port()
    command = [sys.executable, peer8.__file__, str(stock("8")), "serve", f"127.0.0.1:{port}"]
    with running(command, port, PERTURBED) as endpoint:
        yield endpoint


@contextmanager
def running(command: list[str], port: int, env: dict[str, str]) -> Iterator[str]:
    """A server that says nothing when it is ready."""
    server = ServerProcess(command, env=env, ready=None)
    try:
        processes.wait_until(lambda: listening(port) or not server.running(), 30, "the stock server listens")
        assert server.running(), server.errors()
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(grace_s=0)


class LlamaServer:
    """A stock llama-server whose layers lie on RPC servers."""

    def __init__(self, programs: Path, model: str, rpc: list[str]) -> None:
        self.port = free_port()
        self.server = ServerProcess(
            [
                *(str(programs / "llama-server"), "-m", model, "--rpc", ",".join(rpc), "-ngl", "99", "-c", "1024"),
                *("-t", "1", "-fa", "on", "-np", "1", "--no-webui"),
                *("--host", "127.0.0.1", "--port", str(self.port)),
            ],
            env=environment(programs),
            ready=None,
        )

    def _ask(self, path: str, body: dict[str, Any] | None = None, timeout_s: float = 5) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:
            return json.loads(reply.read())

    def complete(self, prompt: str, n: int) -> str:
        end = time.monotonic() + LOAD_S
        while True:
            assert self.server.running(), self.server.errors()
            assert time.monotonic() < end, f"not loaded in time: {self.server.errors()[-2000:]}"
            try:
                if self._ask("/health")["status"] == "ok":
                    break
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        body = {"prompt": prompt, "n_predict": n, "temperature": 0, "cache_prompt": False, "seed": 1}
        return self._ask("/completion", body, timeout_s=120)["content"]

    def stop(self) -> None:
        self.server.stop()


def served(programs: Path, model: str, rpc: list[str], loaded: Callable[[], None] | None = None) -> str:
    """What a llama-server with its layers on `rpc` continues; `loaded` is called before it ends."""
    server = LlamaServer(programs, model, rpc)
    try:
        text = server.complete(PROMPT, 24)
        if loaded:
            loaded()
        return text
    finally:
        server.stop()


@pytest.mark.parametrize(("name", "prompt"), [("smollm", PROMPT), ("gemma", "The capital of France is")])
def test_our_client_on_stock_servers(name: str, prompt: str, programs: Path, request: pytest.FixtureRequest) -> None:
    """The local text. Kernels of the two releases round differently, so gemma's prompt has no near ties."""
    model = request.getfixturevalue(name)
    expected = generate(model, prompt, extra=GREEDY)
    with stock_server(programs) as first, stock_server(programs) as second:
        answer = generate(model, prompt, rpc=[first, second], extra=GREEDY)
    assert answer["tokens"] == expected["tokens"]
    assert answer["text"] == expected["text"]
    assert [worker["protocol"] for worker in answer["workers"]] == ["5.0", "5.0"]
    assert all(worker["bytes_sent"] > 1_000_000 for worker in answer["workers"])


def test_our_workers_compute_as_stock_servers(programs: Path, workers: Any, gemma: str) -> None:
    """The same ggml library behind both kinds of server: the same tokens, near ties or not."""
    with stock_server(programs) as first, stock_server(programs) as second:
        expected = generate(gemma, PROMPT, rpc=[first, second], extra=GREEDY)
    pair = workers(2, "--ggml", str(libggml()), env=PERTURBED)
    answer = generate(gemma, PROMPT, rpc=[worker.endpoint for worker in pair], extra=GREEDY)
    assert answer["tokens"] == expected["tokens"]


@pytest.mark.parametrize("name", ["smollm", "gemma"])
@pytest.mark.timeout(600)
def test_stock_client_on_our_workers(name: str, programs: Path, workers: Any, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(name)
    with stock_server(programs) as first, stock_server(programs) as second:
        expected = served(programs, model, [first, second])
    assert len(expected) > 20
    pair: list[Worker] = workers(2, "--protocol", "5.0", env=PERTURBED)
    idle = [processes.resident_bytes(worker.pid) for worker in pair]
    seen: list[int] = []

    def look() -> None:
        seen.extend(processes.resident_bytes(worker.pid) for worker in pair)

    assert served(programs, model, [worker.endpoint for worker in pair], look) == expected
    assert all(now > before + (16 << 20) for now, before in zip(seen, idle, strict=True)), "no weights lay on a worker"
    assert all(worker.running() for worker in pair)
    # and again: the sessions of the first client are gone
    assert served(programs, model, [worker.endpoint for worker in pair]) == expected


def test_a_stock_server_that_dies_is_one_sentence(programs: Path, smollm: str) -> None:
    with stock_server(programs) as endpoint:
        pass
    outcome = wireherd("run", "-m", smollm, "--rpc", endpoint, "-p", "hello", "-n", "2")
    assert outcome.code == 1
    assert endpoint in outcome.sentence()


def test_our_client_on_stock_8_servers(smollm: str) -> None:
    expected = generate(smollm, PROMPT, extra=GREEDY)
    with stock8_server() as first, stock8_server() as second:
        answer = generate(smollm, PROMPT, rpc=[first, second], extra=GREEDY)
    assert answer["tokens"] == expected["tokens"]
    assert [worker["protocol"] for worker in answer["workers"]] == ["8.0", "8.0"]


def test_stock_8_client_on_our_workers(workers: Any, smollm: str) -> None:
    command = [sys.executable, peer8.__file__, str(stock("8")), "greedy", smollm, "16"]

    def tokens(*endpoints: str) -> str:
        return subprocess.run([*command, *endpoints], capture_output=True, text=True, check=True, timeout=120).stdout

    pair = workers(2, env=PERTURBED)
    assert tokens(",".join(worker.endpoint for worker in pair)) == tokens()
