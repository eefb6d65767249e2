"""What cannot work is refused in one sentence, with exit code 2 for a wrong command line and 1 for the rest."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stock.get_stock import stock
from support.cli import Outcome, wireherd


def refused(*arguments: str, code: int, env: dict[str, str] | None = None) -> str:
    outcome: Outcome = wireherd(*arguments, env=env)
    assert outcome.code == code, f"exit code {outcome.code}: {outcome.err}"
    assert outcome.out == ""
    return outcome.sentence()


def run(model: str, rpc: str) -> tuple[str, ...]:
    return ("run", "-m", model, "--rpc", rpc, "-p", "hello", "-n", "2")


@pytest.mark.parametrize("endpoint", ["host:port", ":50052", "host:99999", "[::1", "unix:", "http://host"])
def test_bad_endpoint(endpoint: str, tiny_model: str) -> None:
    assert endpoint in refused(*run(tiny_model, endpoint), code=2)


def test_refused_connection(tiny_model: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    sentence = refused(*run(tiny_model, f"127.0.0.1:{port}"), code=1)
    assert f"127.0.0.1:{port}" in sentence


def test_unknown_host(tiny_model: str) -> None:
    sentence = refused(*run(tiny_model, "no-such-host.invalid"), code=1)
    assert "no-such-host.invalid" in sentence


def test_missing_file(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.gguf")
    assert missing in refused("run", "-m", missing, "-p", "hello", "-n", "2", code=2)


@pytest.mark.parametrize(
    "content", [b"", b"no model at all\n" * 100, b"GGUF" + bytes(20)], ids=["empty", "text", "cut"]
)
def test_wrong_file(content: bytes, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(content)
    assert str(wrong) in refused("run", "-m", str(wrong), "-p", "hello", "-n", "2", code=1)


def test_cut_off_model(tiny_model: str, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(Path(tiny_model).read_bytes()[:-50_000])
    assert str(cut) in refused("run", "-m", str(cut), "-p", "hello", "-n", "2", code=1)


@pytest.mark.model
def test_model_too_large_for_the_workers(workers: Any, smollm: str) -> None:
    (worker,) = workers(1, "-m", "20")
    assert worker.endpoint in refused(*run(smollm, worker.endpoint), code=1)
    assert worker.running()


def test_no_library(tmp_path: Path, tiny_model: str) -> None:
    nothing = str(tmp_path / "nothing.so")
    assert nothing in refused("run", "-m", tiny_model, "-p", "hello", "--ggml", nothing, code=1)


def test_unknown_build(tiny_model: str) -> None:
    """A llama.cpp newer than this release: its structs may have changed, so nothing of it is called."""
    library = str(stock("8") / "llama_cpp_py_sync")
    sentence = refused("run", "-m", tiny_model, "-p", "hello", "-n", "2", "--ggml", library, code=1)
    assert "b11739" in sentence
    assert "b11549" in sentence, "what is supported must be named"


@contextmanager
def impostor(answer: bytes) -> Iterator[str]:
    """A peer that answers whatever is sent first with these bytes, then closes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                with peer:
                    try:
                        peer.recv(33)
                        peer.sendall(answer)
                        peer.settimeout(2)
                        peer.recv(1)
                    except OSError:
                        pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
    thread.join(timeout=5)


def hello(major: int, minor: int, patch: int) -> bytes:
    return struct.pack("<Q4B24x", 28, major, minor, patch, 0)


@pytest.mark.parametrize("version", [(10, 0, 0), (200, 1, 2), (2, 0, 0)], ids=str)
def test_unknown_major_version(version: tuple[int, int, int], tiny_model: str) -> None:
    with impostor(hello(*version)) as endpoint:
        sentence = refused(*run(tiny_model, endpoint), code=1)
    assert endpoint in sentence
    assert f"{version[0]}.{version[1]}" in sentence
    assert "8.0" in sentence, "what is spoken here must be named"


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", struct.pack("<Q", 1 << 62)], ids=["closes", "http", "huge"]
)
def test_something_else_listens_there(answer: bytes, tiny_model: str) -> None:
    with impostor(answer) as endpoint:
        assert endpoint in refused(*run(tiny_model, endpoint), code=1)


def test_open_address_needs_a_word(tiny_model: str) -> None:
    del tiny_model
    assert "--insecure" in refused("worker", "-H", "0.0.0.0", "-p", "0", code=2)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("nonsense",),
        ("run",),
        ("run", "-m", "x.gguf", "--no-such-flag"),
        ("worker", "-p", "70000"),
        ("worker", "--protocol", "1.7"),
        ("worker", "-t", "0"),
        ("bench", "-m", "x.gguf", "-p", "many"),
        ("run", "-m", "x.gguf", "-ts", "1/x"),
    ],
    ids=" ".join,
)
def test_usage(arguments: tuple[str, ...]) -> None:
    outcome = wireherd(*arguments)
    assert outcome.code == 2
    assert "Traceback" not in outcome.err
    assert outcome.err.strip()
