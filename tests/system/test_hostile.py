"""Whatever arrives, the worker serves the others, and its memory stays where it was."""

from __future__ import annotations

import contextlib
import json
import random
from typing import Any

import pytest

from fuzz.frames import ALLOWED_GROWTH, MEMORY_LIMIT_MIB, attack, settled_bytes
from fuzz.wire import Closed, Wire, honest
from support import processes
from support.cli import GREEDY, wireherd
from wireherd.protocol.table import Opcode

FRAMES = 4000

pytestmark = pytest.mark.skipif(not processes.HAVE_PROC, reason="watches memory through /proc")


def _tokens(model: str, endpoint: str) -> list[int]:
    outcome = wireherd("run", "--json", "-m", model, "--rpc", endpoint, "-p", "hello", "-n", "4", *GREEDY)
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)["tokens"]


def _fuzz(frames: int, workers: Any, tiny_model: str) -> None:
    (worker,) = workers(1, "-m", str(MEMORY_LIMIT_MIB))
    expected = _tokens(tiny_model, worker.endpoint)
    attack(worker.endpoint, 100, seed=2)
    before = settled_bytes(worker)
    tally = attack(worker.endpoint, frames, seed=1)
    assert tally.frames >= frames
    assert tally.connections < frames / 10, "most frames were to go over few connections"
    assert tally.honest > 0
    assert len(tally.statuses) > 3, f"the frames were not refused for different reasons: {tally}"
    assert worker.running()
    growth = settled_bytes(worker) - before
    assert growth < ALLOWED_GROWTH, f"{growth >> 20} MiB more than before"
    assert _tokens(tiny_model, worker.endpoint) == expected


def test_hostile_frames(workers: Any, tiny_model: str) -> None:
    _fuzz(FRAMES, workers, tiny_model)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_hostile_frames(workers: Any, tiny_model: str) -> None:
    _fuzz(100_000, workers, tiny_model)


@pytest.mark.parametrize("herd", [True, False], ids=["herd", "stock"])
@pytest.mark.parametrize("size", [1 << 62, 12 << 30, (1 << 64) - 1], ids=["2^62", "12 GiB", "2^64-1"])
@pytest.mark.parametrize(
    "opcode", [Opcode.SET_TENSOR, Opcode.GRAPH_COMPUTE, Opcode.SET_TENSOR_2D, Opcode.ALLOC_BUFFER], ids=lambda o: o.name
)
def test_a_declared_size_allocates_nothing(opcode: Opcode, size: int, herd: bool, shared_worker: Any) -> None:
    with Wire(shared_worker.endpoint, herd=herd) as wire:
        handle, base = wire.buffer(4096)
        before = processes.resident_bytes(shared_worker.pid)
        wire.send(wire.frame(opcode, wire.row(handle, base) + bytes(16), size=size))
        wire.socket.settimeout(0.3)
        # an answer, or the end; a worker that waits for the rest is right too, as long as it holds no memory for it
        with contextlib.suppress(OSError):
            wire.socket.recv(1 << 16)
        assert processes.resident_bytes(shared_worker.pid) < before + (16 << 20)
    honest(shared_worker.endpoint)


@pytest.fixture(scope="module")
def shared_worker() -> Any:
    from support.workers import Worker

    worker = Worker()
    yield worker
    worker.stop()


def test_half_a_frame_blocks_nobody(shared_worker: Any) -> None:
    """Connections that began something and stopped there, at each stage."""
    idle = []
    try:
        for cut in (0, 1, 5, 9, 20):
            wire = Wire(shared_worker.endpoint, handshake=False)
            idle.append(wire)
            wire.send(bytes([Opcode.HELLO, 24, 0, 0, 0, 0, 0, 0, 0] + [0] * 24)[:cut])
        for herd in (True, False):
            wire = Wire(shared_worker.endpoint, herd=herd)
            idle.append(wire)
            wire.send(wire.frame(Opcode.ALLOC_BUFFER, bytes(12))[:7])
        honest(shared_worker.endpoint)
        honest(shared_worker.endpoint, herd=False)
    finally:
        for wire in idle:
            wire.close()


def test_noise_before_the_handshake(shared_worker: Any) -> None:
    rng = random.Random(3)
    for size in (1, 8, 9, 10, 33, 1000, 100_000):
        try:
            with Wire(shared_worker.endpoint, handshake=False) as wire:
                wire.send(rng.randbytes(size))
        except Closed:
            continue
    honest(shared_worker.endpoint)


def test_a_foreign_handle_is_refused(shared_worker: Any) -> None:
    """One client's buffer is nothing to another."""
    from wireherd.protocol.messages_stock import GetTensorRequest

    with Wire(shared_worker.endpoint) as owner, Wire(shared_worker.endpoint) as stranger:
        handle, base = owner.buffer(4096)
        stranger.buffer(4096)
        with pytest.raises(Closed, match="status"):
            stranger.call(GetTensorRequest(stranger.row(handle, base), 0, 1024))
        owner.call(GetTensorRequest(owner.row(handle, base), 0, 1024))
