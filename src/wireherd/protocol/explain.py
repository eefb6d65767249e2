"""Read a captured connection aloud: one line a frame.

A stock answer does not say what it answers, so both directions are needed; where they are cut off, what can be read is
read and the rest is counted.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

import numpy as np

from wireherd.errors import RemoteProtocolError, VersionMismatch
from wireherd.protocol.dialect import Dialect, dialect_for, opcode_name
from wireherd.protocol.fields import Tensors, layout, printable
from wireherd.protocol.framing import HERD, REPLY, STOCK_REQUEST, STOCK_RESPONSE, Frame, HeaderFormat
from wireherd.protocol.messages_herd import HerdHelloResponse
from wireherd.protocol.messages_stock import CONN_CAPS_SIZE, HelloResponse
from wireherd.protocol.numbering import STOCK_NUMBERING, Numbering
from wireherd.protocol.table import Bulk, Opcode, Reply
from wireherd.protocol.tensor import HERD_TENSOR, STOCK_TENSOR
from wireherd.protocol.version import NEWEST, SUPPORTED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wireherd.protocol.fields import Message

#: how many items of a long value a line shows
_SHOWN = 6
_EMPTY = Numbering((), (), (), ())


class _Side:
    """One direction of the capture."""

    def __init__(self, name: str, data: bytes, header: HeaderFormat) -> None:
        self.name = name
        self.view = memoryview(data)
        self.header = header
        self.at = 0
        self.frames = 0

    def peek(self) -> Frame | None:
        """Give the next header; None where the capture ends before its payload does."""
        start = self.at + self.header.size
        if start > len(self.view):
            return None
        frame = self.header.unpack(self.view, self.at)
        return frame if frame.size <= len(self.view) - start else None

    def take(self, frame: Frame) -> tuple[str, memoryview]:
        """Step over the frame that `peek` gave; give how its line begins, and its payload."""
        head = f"{self.name} {self.at:#010x}"
        start = self.at + self.header.size
        self.at = start + frame.size
        self.frames += 1
        return head, self.view[start : self.at]


class _Reader:
    """What is known while the capture is read."""

    def __init__(self, c2s: bytes, s2c: bytes) -> None:
        self.client = _Side("c2s", c2s, STOCK_REQUEST)
        self.server = _Side("s2c", s2c, STOCK_RESPONSE)
        self.dialect: Dialect = dialect_for(NEWEST)
        self.numbering = _EMPTY
        #: whether the server's version is known; without it nothing after HELLO can be read
        self.met = False
        self.lost = False

    def lines(self) -> Iterator[str]:
        while (frame := self.client.peek()) is not None:
            if not self.met and (frame.opcode != Opcode.HELLO or self.lost):
                if not self.lost:
                    raise RemoteProtocolError(f"the capture begins with {opcode_name(frame.opcode)}, not with HELLO")
                break
            yield from self.exchange(frame)
        if self.server.header is HERD:
            yield from self.unasked()
        for side in (self.client, self.server):
            left = len(side.view) - side.at
            tail = f", {left} bytes left that are no whole frame" if left else ""
            yield f"{side.name}: {side.frames} frames, {side.at} of {len(side.view)} bytes{tail}"

    def exchange(self, frame: Frame) -> Iterator[str]:
        """Tell one request and what came back for it."""
        if frame.opcode == Opcode.HELLO and frame.size != CONN_CAPS_SIZE:
            self.dialect = dialect_for(SUPPORTED[0])
        row = self.dialect.row(frame.opcode)
        head, payload = self.client.take(frame)
        bulk = 0
        if row.command.bulk is Bulk.REQUEST:
            bulk = len(payload) - row.request_min
            payload = payload[: row.request_min]
        message = self.dialect.decode_request(frame.opcode, payload)
        yield f"{head} {row.command.name}{self.number(frame)}{self.fields(message)}{_data(bulk)}"
        if row.reply is not Reply.NONE:
            yield from self.answer(row.command.name, frame.opcode, row.reply)

    def answer(self, name: str, opcode: int, reply: Reply) -> Iterator[str]:
        """Tell an answer, if the capture holds it."""
        if self.server.header is HERD:
            yield from self.unasked()
        frame = self.server.peek()
        if frame is None:
            self.lost = self.lost or not self.met
            return
        head, payload = self.server.take(frame)
        start = f"{head} {name}{self.number(frame)} ->"
        if frame.status:
            yield f"{start} status {frame.status}: {printable(bytes(payload).decode('utf-8', 'replace'))}"
        elif reply is Reply.RAW:
            yield f"{start}{_data(frame.size)}"
        elif reply is Reply.EMPTY:
            if frame.size:
                raise RemoteProtocolError(f"{name} was answered with {frame.size} bytes where none belong")
            yield f"{start} ok"
        else:
            message = self.dialect.decode_response(opcode, payload)
            yield f"{start}{self.fields(message)}"
            self.learn(message)

    def unasked(self) -> Iterator[str]:
        """Tell errors and progress that stand next in the server's direction."""
        while (frame := self.server.peek()) is not None and not frame.flags & REPLY:
            head, payload = self.server.take(frame)
            message = self.dialect.decode_response(frame.opcode, payload)
            yield f"{head} {opcode_name(frame.opcode)}{self.fields(message)}"

    def learn(self, message: Message) -> None:
        """Take what an answer says about everything after it."""
        if isinstance(message, HelloResponse):
            line = message.version.line
            if line not in {version.line for version in SUPPORTED}:
                raise VersionMismatch(f"the captured server speaks ggml RPC {message.version}, which is not known here")
            self.dialect = dialect_for(message.version)
            self.numbering = STOCK_NUMBERING.get(message.version, _EMPTY)
            self.met = True
        elif isinstance(message, HerdHelloResponse) and not message.status:
            self.dialect = dialect_for(NEWEST, herd=True)
            self.client.header = self.server.header = HERD
            self.numbering = Numbering.of(message.ops, message.unary_ops, message.glu_ops, message.types)

    def number(self, frame: Frame) -> str:
        return f" #{frame.sequence}" if frame.sequence else ""

    def fields(self, message: Message) -> str:
        """Give a message's fields for people."""
        parts = []
        for name, declared in layout(type(message)):
            value = getattr(message, name)
            if isinstance(declared.kind, Tensors):
                parts.append(f"{name}={self.tensors(value)}")
            elif isinstance(value, np.ndarray):
                parts.append(f"{name}={self.array(value)}")
            else:
                parts.append(f"{name}={_value(value)}")
        return "".join(f" {part}" for part in parts)

    def tensors(self, raw: bytes) -> str:
        """Give raw tensor records for people; empty ones are left out."""
        rows = [row for row in np.frombuffer(raw, self.dialect.tensor_dtype) if row["id"]]
        if len(raw) == self.dialect.tensor_dtype.itemsize:
            return self.tensor(rows[0]) if rows else "none"
        return "[" + ", ".join(self.tensor(row) for row in rows) + "]"

    def tensor(self, row: Any) -> str:
        """Give one tensor for people."""
        label = bytes(row["name"]).split(b"\0", 1)[0].decode("utf-8", "replace")
        shape = "x".join(str(int(n)) for n in row["ne"])
        kind = _name(self.numbering.types, int(row["type"]))
        op = "" if not row["op"] else f" {self.op(row)}"
        return f"<{label!r} {kind} {shape}{op} buffer={int(row['buffer']):#x} data={int(row['data']):#x}>"

    def op(self, row: Any) -> str:
        """Give a node's operation by name."""
        name = _name(self.numbering.ops, int(row["op"]))
        detail = {"UNARY": self.numbering.unary_ops, "GLU": self.numbering.glu_ops}.get(name)
        return name if detail is None else f"{name}:{_name(detail, int(row['op_params'][0]))}"

    def array(self, rows: Any) -> str:
        """Give ids as their number, tensor records as a count of each operation."""
        if rows.dtype not in {STOCK_TENSOR, HERD_TENSOR, self.dialect.tensor_dtype}:
            return str(len(rows))
        counts = collections.Counter(self.op(row) for row in rows if row["op"])
        words = " ".join(f"{name}*{count}" for name, count in counts.most_common(_SHOWN))
        more = " ..." if len(counts) > _SHOWN else ""
        return f"{len(rows)} ({words}{more})" if counts else str(len(rows))


def _data(size: int) -> str:
    return f" + {size} bytes" if size else ""


def _name(names: tuple[str, ...], number: int) -> str:
    return names[number] if 0 <= number < len(names) and names[number] else f"#{number}"


def _value(value: Any) -> str:
    if isinstance(value, int):
        return hex(value) if value >= 1 << 32 else str(value)
    if isinstance(value, bytes):
        stripped = value.rstrip(b"\0")
        if not stripped:
            return "0"
        return (
            stripped.hex() if len(stripped) <= 4 * _SHOWN else f"{stripped[: 4 * _SHOWN].hex()}... ({len(value)} bytes)"
        )
    if isinstance(value, tuple):
        return f"[{', '.join(value[:_SHOWN])}{', ...' if len(value) > _SHOWN else ''}]"
    return repr(value)


def explain(c2s: bytes, s2c: bytes) -> Iterator[str]:
    """Decode both directions of one captured connection, request and answer by turns; the last two lines count bytes.

    Raises:
        RemoteProtocolError: bytes that break the protocol; the lines before it were given.
    """
    return _Reader(c2s, s2c).lines()
