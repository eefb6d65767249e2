"""Both ends of a connection as pure state: what may be said now, and what an answer answers.

Rules of this file: it holds no socket, no clock and no handler; bytes go out as return values, headers come in as
`Frame`s that a `FrameReader` cut. Inside, a peer's fault is a `RemoteProtocolError` and ours a `LocalProtocolError`.
After HERD_HELLO was agreed both header formats change: tell the reader with `reader.switch(connection.incoming)`.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any, NamedTuple

from wireherd.errors import (
    BadLength,
    FrameTooLarge,
    LocalProtocolError,
    OutOfOrder,
    RemoteProtocolError,
    UnknownCommand,
    remote_error,
)
from wireherd.protocol.connection_server import MAX_REASON, SEQUENCE_MASK, Incoming, ServerConnection
from wireherd.protocol.dialect import Dialect, dialect_for, opcode_name
from wireherd.protocol.fields import printable
from wireherd.protocol.framing import (
    HERD,
    REPLY,
    STOCK_REQUEST,
    STOCK_RESPONSE,
    Frame,
    HeaderFormat,
)
from wireherd.protocol.messages_graph import SupportsOpRequest, SupportsOpResponse
from wireherd.protocol.messages_herd import (
    Feature,
    HerdHelloRequest,
    HerdHelloResponse,
    PingRequest,
    PingResponse,
    Purpose,
)
from wireherd.protocol.messages_stock import HelloResponse
from wireherd.protocol.negotiate import Offer, agree, client_offer
from wireherd.protocol.table import BY_MESSAGE, STATE_FOR, Bulk, Command, Opcode, Reply, State
from wireherd.protocol.version import NEWEST, Version

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from wireherd.protocol.fields import Message

__all__ = ["ClientConnection", "Incoming", "Pending", "Prepared", "ServerConnection"]


class Pending(NamedTuple):
    """An answer that is due, or the unasked frame that came instead."""

    command: Command
    reply: Reply
    sequence: int
    #: exact payload; None where it varies
    size: int | None
    #: whatever the caller gave to `request`
    tag: Any
    #: the request, for errors that must name it
    request: Message | None

    @property
    def unasked(self) -> bool:
        """Whether this answers nothing: an error or a progress report."""
        return self.request is None


class Prepared(NamedTuple):
    """A command that goes out again and again, encoded once; see `ClientConnection.prepare`."""

    opcode: int
    body: bytes


class ClientConnection:
    """The client's end.

    `version` decides only how HELLO is said; afterwards the server's answer decides.
    """

    def __init__(self, end: str = "the worker", *, version: Version = NEWEST, herd: bool = True) -> None:
        self.end = end
        self.state = State.NEW
        self.dialect: Dialect = dialect_for(version)
        self.outgoing: HeaderFormat = STOCK_REQUEST
        self.incoming: HeaderFormat = STOCK_RESPONSE
        #: whether HERD_HELLO may be sent: the server offered it and we want it
        self.herd_offered = False
        #: the server's version, once known
        self.version: Version | None = None
        #: HERD_HELLO's answer, once agreed
        self.hello: HerdHelloResponse | None = None
        self.sequence = 0
        self._want_herd = herd
        self._pending: collections.deque[Pending] = collections.deque()

    @property
    def pending(self) -> int:
        """Answers that are due."""
        return len(self._pending)

    @property
    def oldest(self) -> Pending | None:
        """The answer that is due next."""
        return self._pending[0] if self._pending else None

    def request(self, message: Message, bulk_size: int = 0, tag: Any = None) -> bytes:
        """Give header and fixed part of a request, to be followed by `bulk_size` bytes; remember what comes back.

        Raises:
            LocalProtocolError: not now, not in this dialect, or values that do not fit.
        """
        command = BY_MESSAGE.get(type(message))
        row = None if command is None else self.dialect.rows.get(command.opcode)
        if command is None or row is None or row.request is None or type(message) is not command.request:
            raise LocalProtocolError(f"{type(message).__name__} is no request of {self.dialect}")
        self._may_send(command)
        body = row.request.encode(message)
        implied = None if command.bulk_size is None else command.bulk_size(message)
        if bulk_size and (command.bulk is not Bulk.REQUEST or (implied is not None and implied != bulk_size)):
            raise LocalProtocolError(f"{command.name} does not carry {bulk_size} bytes of data")
        size = len(body) + bulk_size
        if size > row.request_max or (self.hello is not None and size > self.hello.max_frame):
            raise LocalProtocolError(f"{command.name} with {size} bytes is larger than the peer takes")
        if self.hello is not None:
            self.sequence = (self.sequence + 1) & SEQUENCE_MASK
        header = self.outgoing.pack(command.opcode, 0, 0, self.sequence, size)
        reply = row.reply
        if reply is not Reply.NONE:
            expected = implied if reply is Reply.RAW else row.response_size
            self._pending.append(Pending(command, reply, self.sequence, expected, tag, message))
        if self.state is State.HELLO and command.opcode != Opcode.HERD_HELLO:
            self.state = State.STREAM
        return header + body

    def prepare(self, message: Message) -> Prepared:
        """Encode a command without data and without an answer once, for `repeat`.

        Raises:
            LocalProtocolError: not in this dialect, values that do not fit, or a command that is answered.
        """
        command = BY_MESSAGE.get(type(message))
        row = None if command is None else self.dialect.rows.get(command.opcode)
        if command is None or row is None or row.request is None or type(message) is not command.request:
            raise LocalProtocolError(f"{type(message).__name__} is no request of {self.dialect}")
        self._may_send(command)
        if row.reply is not Reply.NONE or command.bulk is Bulk.REQUEST or State.STREAM not in command.states:
            raise LocalProtocolError(f"{command.name} cannot be prepared")
        body = row.request.encode(message)
        if len(body) > row.request_max:
            raise LocalProtocolError(f"{command.name} with {len(body)} bytes is larger than the peer takes")
        return Prepared(int(command.opcode), body)

    def repeat(self, prepared: Prepared) -> bytes:
        """Give the header of a prepared command; its body goes right behind it.

        Raises:
            LocalProtocolError: not now.
        """
        if self.state is not State.STREAM:
            if self.state is not State.HELLO:
                raise LocalProtocolError(f"no command may be sent in state {self.state.value}")
            self.state = State.STREAM
        if self.hello is not None:
            self.sequence = (self.sequence + 1) & SEQUENCE_MASK
        return self.outgoing.pack(prepared.opcode, 0, 0, self.sequence, len(prepared.body))

    def _may_send(self, command: Command) -> None:
        if self.state not in command.states:
            raise LocalProtocolError(f"{command.name} may not be sent in state {self.state.value}")
        if command.opcode == Opcode.HERD_HELLO and not self.herd_offered:
            raise LocalProtocolError(f"{self.end} does not understand HERD_HELLO")
        if self._pending and self.state in {State.NEW, State.HELLO}:
            raise LocalProtocolError(f"{command.name} may not be sent before the handshake is answered")
        if command.feature and (self.hello is None or command.feature & ~self.hello.features):
            raise LocalProtocolError(f"{self.end} did not agree to {command.name}")

    def match(self, frame: Frame) -> Pending:
        """Tell what a frame from the server is, and check its size.

        Raises:
            RemoteProtocolError: it answers nothing, or not what is due, or has the wrong size.
        """
        if self.incoming is HERD:
            if not frame.flags:
                return self._unasked(frame)
            if frame.flags != REPLY:
                raise RemoteProtocolError(f"{self.end} sent unknown flags {frame.flags}")
        if not self._pending:
            raise OutOfOrder(f"{self.end} answered {frame.size} bytes that nobody asked for")
        pending = self._pending[0]
        command = pending.command
        if self.incoming is HERD:
            if frame.opcode != command.opcode or frame.sequence != pending.sequence:
                raise OutOfOrder(
                    f"{self.end} answered {opcode_name(frame.opcode)} number {frame.sequence} "
                    f"where {command.name} number {pending.sequence} is due"
                )
            if frame.status:
                if frame.size > MAX_REASON:
                    raise FrameTooLarge(f"{self.end} gave {frame.size} bytes of reasons for {command.name}")
                return self._pending.popleft()
        size = pending.size
        if size is None:
            limit = self.dialect.row(command.opcode).response_max
            if frame.size > limit:
                raise FrameTooLarge(
                    f"{self.end} answered {command.name} with {frame.size} bytes, at most {limit} may be"
                )
        elif frame.size != size:
            raise BadLength(f"{self.end} answered {command.name} with {frame.size} bytes where {size} belong")
        return self._pending.popleft()

    def _unasked(self, frame: Frame) -> Pending:
        row = self.dialect.rows.get(frame.opcode)
        if row is None or not row.command.unasked:
            raise UnknownCommand(f"{self.end} sent {opcode_name(frame.opcode)} unasked")
        if row.response_size is not None and frame.size != row.response_size:
            raise BadLength(f"{self.end} sent {row.command.name} with {frame.size} bytes")
        if frame.size > row.response_max:
            raise FrameTooLarge(f"{self.end} sent {row.command.name} with {frame.size} bytes")
        return Pending(row.command, Reply.RECORD, frame.sequence, frame.size, None, None)

    def response(self, pending: Pending, frame: Frame, view: Buffer) -> Message:
        """Read an answer that is a message, or an unasked frame; HELLO and HERD_HELLO take effect here.

        Raises:
            RemoteError: the answer carries a status instead.
            RemoteProtocolError: the bytes are no such message; `VersionMismatch` for a server we cannot talk to.
        """
        command = pending.command
        if frame.status:
            reason = printable(bytes(view).decode("utf-8", "replace"))
            raise remote_error(frame.status, f"{command.name}: {reason}")
        message = self.dialect.decode_response(command.opcode, view)
        request = pending.request
        if isinstance(message, HelloResponse):
            self._hello(message)
        elif isinstance(message, SupportsOpResponse) and isinstance(request, SupportsOpRequest):
            asked, told = len(request.node_ids), len(message.supported)
            if asked != told:
                raise BadLength(f"{self.end} told of {told} nodes where {asked} were asked about")
        elif isinstance(message, PingResponse) and isinstance(request, PingRequest):
            if message.nonce != request.nonce:
                raise OutOfOrder(f"{self.end} answered another PING than the one that is due")
        elif isinstance(message, HerdHelloResponse):
            self._herd_hello(message, Purpose(request.purpose) if isinstance(request, HerdHelloRequest) else None)
        return message

    def _hello(self, message: HelloResponse) -> None:
        remote = Offer(self.end, (message.version,), message.herd)
        agreement = agree(client_offer(herd=self._want_herd), remote)
        self.version = message.version
        self.dialect = agreement.dialect
        self.herd_offered = agreement.herd
        self.state = State.HELLO

    def _herd_hello(self, message: HerdHelloResponse, purpose: Purpose | None) -> None:
        if message.status:
            self.state = State.CLOSED
            raise remote_error(message.status, message.build or "the worker refused HERD_HELLO")
        self.hello = message
        self.dialect = dialect_for(NEWEST, herd=True, answered_sets=bool(message.features & Feature.ANSWERED_SETS))
        self.outgoing = self.incoming = HERD
        self.state = STATE_FOR[purpose or Purpose.STREAM]

    def close(self) -> list[Pending]:
        """End it; give what was still due."""
        self.state = State.CLOSED
        left = list(self._pending)
        self._pending.clear()
        return left
