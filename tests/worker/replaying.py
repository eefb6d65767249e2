"""Captured stock sessions, carried out again by a `Dispatcher` in this process: the captured server's handles and
addresses are replaced by those that the dispatcher gives out."""

from __future__ import annotations

import dataclasses
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from wireherd import ggml
from wireherd.protocol.dialect import Dialect, dialect_for
from wireherd.protocol.fields import Tensors, layout
from wireherd.protocol.framing import STOCK_REQUEST, STOCK_RESPONSE
from wireherd.protocol.messages_graph import GraphComputeRequest
from wireherd.protocol.messages_stock import HelloResponse
from wireherd.protocol.table import Bulk, Opcode, Reply
from wireherd.protocol.version import Version
from wireherd.worker.dispatch import Dispatcher
from wireherd.worker.settings import WorkerSettings

SESSIONS = Path(__file__).parents[1] / "data" / "sessions"
NAMES = sorted(path.name[: -len(".c2s.bin.xz")] for path in SESSIONS.glob("*.c2s.bin.xz"))


@dataclasses.dataclass
class Step:
    """One captured command: its message, the data that came along, and what the captured server answered."""

    opcode: int
    message: Any
    data: memoryview | None
    answer: memoryview | None


def _frames(raw: bytes, header: Any) -> Iterator[tuple[int, memoryview]]:
    view, at = memoryview(raw), 0
    while at < len(view):
        frame = header.unpack(view, at)
        at += header.size
        yield frame.opcode, view[at : at + frame.size]
        at += frame.size


def captured(name: str) -> tuple[Dialect, list[Step]]:
    """The commands of a captured session."""
    c2s, s2c = (lzma.decompress((SESSIONS / f"{name}.{side}.bin.xz").read_bytes()) for side in ("c2s", "s2c"))
    requests, answers = _frames(c2s, STOCK_REQUEST), _frames(s2c, STOCK_RESPONSE)
    dialect = dialect_for(Version(8, 0))
    steps: list[Step] = []
    for opcode, payload in requests:
        row = dialect.row(opcode)
        bulk = row.command.bulk is Bulk.REQUEST
        message = dialect.decode_request(opcode, payload[: row.request_min] if bulk else payload)
        data = payload[row.request_min :] if bulk else None
        answer = None if row.reply is Reply.NONE else next(answers)[1]
        if opcode == Opcode.HELLO:
            hello = dialect.decode_response(opcode, answer)
            assert isinstance(hello, HelloResponse)
            dialect = dialect_for(hello.version)
            continue
        steps.append(Step(opcode, message, data, answer))
    return dialect, steps


class Replay:
    """Runs captured steps; `translate` shows what a step becomes, for tests that change it first."""

    def __init__(self, name: str, settings: WorkerSettings | None = None) -> None:
        self.dialect, self.steps = captured(name)
        self.dispatcher = Dispatcher(ggml.load(), settings or WorkerSettings(threads=1), self.dialect)
        self.handles: dict[int, int] = {}
        self.bases: list[tuple[int, int, int]] = []
        self._sizes: dict[int, int] = {}

    def close(self) -> None:
        self.dispatcher.close()

    def _address(self, address: int) -> int:
        for theirs, size, ours in self.bases:
            if theirs <= address <= theirs + size:
                return address - theirs + ours
        return address

    def rows(self, rows: np.ndarray) -> np.ndarray:
        """Records with our handles and addresses."""
        rows = rows.copy()
        rows["buffer"] = [self.handles.get(int(handle), int(handle)) for handle in rows["buffer"]]
        rows["data"] = [self._address(int(address)) if address else 0 for address in rows["data"]]
        return rows

    def translate(self, message: Any) -> Any:
        """The message with our handles and addresses."""
        changes: dict[str, Any] = {}
        for name, wire in layout(type(message)):
            value = getattr(message, name)
            if isinstance(wire.kind, Tensors):
                changes[name] = self.rows(np.frombuffer(value, self.dialect.tensor_dtype)).tobytes()
            elif name == "remote_ptr":
                changes[name] = self.handles[value]
            elif name == "tensors":
                changes[name] = self.rows(value)
        return dataclasses.replace(message, **changes)

    def run(self, step: Step) -> Any:
        """Carry out one step; gives the answer as a message or bytes."""
        message = self.translate(step.message)
        if step.data is not None:
            sink = self.dispatcher.sink(step.opcode, message, len(step.data))
            sink[:] = step.data
            self.dispatcher.received(step.opcode, message, sink)
            return None
        answer = self.dispatcher.handle(step.opcode, message, None)
        if step.opcode == Opcode.ALLOC_BUFFER:
            theirs = self.dialect.decode_response(step.opcode, step.answer)
            self.handles[theirs.remote_ptr] = answer.remote_ptr
            self._sizes[theirs.remote_ptr] = theirs.remote_size
        elif step.opcode == Opcode.BUFFER_GET_BASE:
            theirs = self.dialect.decode_response(step.opcode, step.answer)
            self.bases.append((theirs.base_ptr, self._sizes[step.message.remote_ptr], answer.base_ptr))
        return answer

    def graphs(self) -> Iterator[GraphComputeRequest]:
        """Run all steps, and stop before each graph to show it translated."""
        for step in self.steps:
            if step.opcode == Opcode.GRAPH_COMPUTE:
                yield self.translate(step.message)
            self.run(step)
