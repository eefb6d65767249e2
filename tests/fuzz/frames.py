#!/usr/bin/env python3
"""Hostile frames against a live worker: nothing but an answer, an error or a closed connection may come of them.

    frames.py --frames 100000 [--seed 1]                 against a worker that it starts
    frames.py --frames 100000 --endpoint HOST:PORT       against one that runs

Most frames are sent after a valid handshake, many over one connection: requests of every kind that were honest before
some of their fields were replaced. A part goes to stock framing, and a small part is noise before any handshake. While
that goes on an honest client must be served. Prints what was done, and the worker's memory before and after.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fuzz.seeds import Seeds, mutated
from fuzz.wire import Closed, Wire, honest
from support import processes
from support.workers import Worker
from wireherd.protocol.messages_herd import PingRequest
from wireherd.protocol.table import Opcode

BATCH = 40
#: of the connections, so many speak stock framing, where one bad frame ends the connection
STOCK_SHARE = 0.15
#: of the frames, so many are noise before any handshake
NOISE_SHARE = 0.002
#: of the frames, so many are commands without an answer, or of a wrong size, that end a session if they are refused
FATAL_SHARE = 0.002
MEMORY_LIMIT_MIB = 64
ALLOWED_GROWTH = 50 << 20


@dataclass
class Tally:
    """What a run did."""

    frames: int = 0
    connections: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    honest: int = 0


class Attacker:
    """Sends frames until so many are out; deterministic for a seed as far as the worker's answers are."""

    def __init__(self, endpoint: str, seed: int) -> None:
        self.endpoint = endpoint
        self.random = random.Random(seed)
        self.tally = Tally()

    def run(self, frames: int) -> None:
        while self.tally.frames < frames:
            dice = self.random.random()
            if dice < NOISE_SHARE * BATCH:
                self._noise()
            else:
                self._session(herd=dice > STOCK_SHARE, frames=frames)

    def _noise(self) -> None:
        """Bytes without any handshake."""
        self.tally.connections += 1
        self.tally.frames += 1
        try:
            with Wire(self.endpoint, handshake=False) as wire:
                wire.send(self.random.randbytes(self.random.choice((1, 9, 33, 300, 5000))))
        except Closed:
            pass
        self.tally.ends["noise"] += 1

    def _session(self, *, herd: bool, frames: int) -> None:
        """One connection after a valid handshake, until the worker ends it or all frames are out."""
        self.tally.connections += 1
        try:
            with Wire(self.endpoint, herd=herd) as wire:
                seeds = Seeds(wire, self.random)
                while self.tally.frames < frames:
                    if herd:
                        self._batch(wire, seeds)
                    else:
                        self._stock(wire, seeds)
        except Closed:
            self.tally.ends["herd" if herd else "stock"] += 1

    def _batch(self, wire: Wire, seeds: Seeds) -> None:
        """A batch of frames and a ping behind them, whose answer says that the session got that far."""
        out = []
        fatal = self.random.random() < FATAL_SHARE * BATCH
        dtype = wire.dialect.tensor_dtype
        for number in range(BATCH):
            breaking = fatal and number == BATCH // 2
            opcode, payload = seeds.draw(answered=not breaking or self.random.random() < 0.3)
            out.append(wire.frame(opcode, mutated(self.random, payload, dtype, opcode, breaking=breaking)))
        if fatal and self.random.random() < 0.2:
            lie = self.random.choice((0, 1, 7, 1 << 32, 12 << 30, 1 << 62, (1 << 64) - 1))
            out.append(wire.frame(self.random.randrange(256), self.random.randbytes(64), size=lie))
        nonce = self.random.getrandbits(64)
        out.append(wire.request(PingRequest(nonce)))
        self.tally.frames += len(out)
        wire.send(b"".join(out))
        while True:
            frame = wire.read_herd()
            self.tally.statuses[frame.status] += 1
            if frame.opcode == Opcode.ERROR:
                raise Closed("the session failed")
            if frame.opcode == Opcode.PING and frame.sequence == wire.sequence:
                return

    def _stock(self, wire: Wire, seeds: Seeds) -> None:
        """One tampered frame in stock framing; what comes back is read until the worker waits or hangs up."""
        opcode, payload = seeds.draw(answered=self.random.random() < 0.5)
        broken = mutated(self.random, payload, wire.dialect.tensor_dtype, opcode, breaking=self.random.random() < 0.2)
        self.tally.frames += 1
        wire.send(wire.frame(opcode, broken))
        wire.socket.settimeout(0.05)
        try:
            while wire.socket.recv(1 << 16):
                pass
        except TimeoutError:
            wire.socket.settimeout(30)
            return
        except OSError as error:
            raise Closed(str(error)) from error
        raise Closed("end of stream")


def attack(endpoint: str, frames: int, seed: int) -> Tally:
    """Send hostile frames while an honest client works beside; returns the tally.

    Raises:
        AssertionError: the worker hung, or did not serve the honest client.
    """
    attacker = Attacker(endpoint, seed)
    stop = threading.Event()
    failures: list[BaseException] = []

    def serve_me() -> None:
        while not stop.wait(0.5):
            try:
                honest(endpoint, herd=attacker.tally.honest % 2 == 0)
            except BaseException as error:  # noqa: BLE001 - told to the main thread
                failures.append(error)
                return
            attacker.tally.honest += 1

    thread = threading.Thread(target=serve_me, daemon=True)
    thread.start()
    try:
        attacker.run(frames)
    finally:
        stop.set()
        thread.join(timeout=60)
    assert not thread.is_alive(), "the honest client was not served"
    assert not failures, f"the honest client failed: {failures[0]!r}"
    honest(endpoint)
    honest(endpoint, herd=False)
    return attacker.tally


def settled_bytes(worker: Worker) -> int:
    """Memory of a worker once its finished sessions are gone and the next one is warm: lowest of a few looks."""
    looks = []
    for _ in range(8):
        time.sleep(0.25)
        looks.append(processes.resident_bytes(worker.pid))
    return min(looks)


def main() -> int:
    parser = argparse.ArgumentParser(description="Hostile frames against a live worker.")
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--endpoint", help="a running worker; without it one is started and its memory watched")
    arguments = parser.parse_args()
    start = time.monotonic()
    if arguments.endpoint:
        print(attack(arguments.endpoint, arguments.frames, arguments.seed))
        return 0
    worker = Worker("-m", str(MEMORY_LIMIT_MIB))
    try:
        attack(worker.endpoint, 200, arguments.seed + 1)
        before = settled_bytes(worker)
        tally = attack(worker.endpoint, arguments.frames, arguments.seed)
        after = settled_bytes(worker)
    finally:
        worker.stop()
    print(tally)
    print(f"{time.monotonic() - start:.0f} s; memory {before >> 20} MiB before, {after >> 20} MiB after")
    return int(after - before > ALLOWED_GROWTH)


if __name__ == "__main__":
    sys.exit(main())
