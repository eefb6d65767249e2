"""Stock servers and clients of every protocol major version at hand, started the same way."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stock import peer8
from stock.get_stock import stock
from support import processes
from support.cli import PERTURBED
from support.ports import free_port
from support.workers import ServerProcess

PROMPT = peer8.PROMPT
#: what the stock clients are asked for
N = 24
LOAD_S = 180.0


def listening(port: int) -> bool:
    """Whether somebody listens there, asked without connecting: a stock server takes one client at a time."""
    wanted = f":{port:04X}"
    rows = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return any(row.split()[1].endswith(wanted) and row.split()[3] == "0A" for row in rows)


def environment(programs: Path) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": str(programs), "LLAMA_CACHE": "/nonexistent"}


@contextmanager
def stock_server(version: str) -> Iterator[str]:
    """A stock RPC server of that major version, on the CPU with one thread; yields its endpoint."""
    port = free_port()
    if version == "8":
        command = [sys.executable, peer8.__file__, str(stock("8")), "serve", f"127.0.0.1:{port}"]
        env = PERTURBED
    else:
        programs = stock(version) / "bin"
        command = [str(programs / "ggml-rpc-server"), "-H", "127.0.0.1", "-p", str(port), "-t", "1", "-d", "CPU"]
        env = {**environment(programs), **PERTURBED}
    server = ServerProcess(command, env=env, ready=None)
    try:
        processes.wait_until(lambda: listening(port) or not server.running(), 30, "the stock server listens")
        assert server.running(), server.errors()
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(grace_s=0)


def served(version: str, model: str, rpc: Sequence[str], loaded: Callable[[], None] | None = None) -> str:
    """What a stock client of that major version answers greedily, as text or as a list of tokens.

    Its layers lie on `rpc`; `loaded` is called before a llama-server ends.
    """
    if version in {"4", "5"}:
        server = LlamaServer(stock(version) / "bin", model, rpc)
        try:
            text = server.complete(PROMPT, N)
            if loaded:
                loaded()
            return text
        finally:
            server.stop()
    return _run([*_greedy(version), model, str(N), ",".join(rpc)])


def tensor_split(model: str, rpc: Sequence[str]) -> list[int]:
    """Tokens of a stock 8.0 client that splits every layer over `rpc`."""
    return json.loads(_run([*_greedy("8"), model, str(N), ",".join(rpc), "tensor"]))


def behind(model: str, tokens: Sequence[int]) -> list[float]:
    """How far each token's logit lies behind the best one, when a stock 8.0 client alone is led along these tokens."""
    command = [sys.executable, peer8.__file__, str(stock("8")), "behind", model, json.dumps(list(tokens))]
    return json.loads(_run(command))


def _greedy(version: str) -> list[str]:
    if version == "7":
        return [str(stock("7") / "bin" / "greedy")]
    return [sys.executable, peer8.__file__, str(stock("8")), "greedy"]


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[-1]


class LlamaServer:
    """A stock llama-server whose layers lie on RPC servers."""

    def __init__(self, programs: Path, model: str, rpc: Sequence[str]) -> None:
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
        return self.completion(prompt, n)["content"]

    def completion(self, prompt: str | list[int], n: int) -> dict[str, Any]:
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
        return self._ask("/completion", body, timeout_s=120)

    def stop(self) -> None:
        self.server.stop()
