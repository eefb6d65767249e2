"""The server's end of a connection; `connection.py` has the rules and the client's end."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from wireherd.errors import (
    BadLength,
    FrameTooLarge,
    LocalProtocolError,
    OutOfOrder,
    RemoteError,
    RemoteProtocolError,
    UnknownCommand,
)
from wireherd.protocol.dialect import Dialect, dialect_for, opcode_name
from wireherd.protocol.framing import HERD, REPLY, STOCK_REQUEST, STOCK_RESPONSE, Frame, HeaderFormat, write_frame
from wireherd.protocol.messages_herd import (
    ErrorNotice,
    Feature,
    HerdHelloRequest,
    HerdHelloResponse,
    ProgressNotice,
    Purpose,
)
from wireherd.protocol.messages_stock import HelloResponse
from wireherd.protocol.table import STATE_FOR, Bulk, Command, Opcode, Reply, State
from wireherd.protocol.version import NEWEST, Version

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from wireherd.protocol.fields import Message

#: longest reason in an answer with a status, bytes
MAX_REASON = 4096
SEQUENCE_MASK = (1 << 32) - 1


class Incoming(NamedTuple):
    """A request that may be read: first `fixed_size` bytes for the message, then `bulk_size` bytes of data."""

    command: Command
    fixed_size: int
    bulk_size: int


class ServerConnection:
    """The server's end.

    A session that takes a connection over mid-way starts in the state it is in: `ServerConnection(version,
    state=State.HELLO)` after the supervisor answered HELLO.
    """

    def __init__(
        self, version: Version = NEWEST, *, state: State = State.NEW, herd: bool = True, max_frame: int = 1 << 40
    ) -> None:
        self.state = state
        self.dialect: Dialect = dialect_for(version)
        self.incoming: HeaderFormat = STOCK_REQUEST
        self.outgoing: HeaderFormat = STOCK_RESPONSE
        self.features = 0
        self.sequence = 0
        self._version = version
        self._herd_allowed = herd
        self._max_frame = max_frame
        self._purpose = Purpose.STREAM

    @property
    def herd(self) -> bool:
        """Whether the extension is spoken."""
        return self.incoming is HERD

    def hello_response(self) -> HelloResponse:
        """The answer to HELLO: our version, and whether HERD_HELLO is understood."""
        major, minor, patch = self.dialect.version
        return HelloResponse(major, minor, patch, int(self._herd_allowed and self._version.major >= 4))

    def check(self, frame: Frame) -> Incoming:
        """Tell whether a command may come now and with that size; nothing was read of it yet.

        Raises:
            RemoteProtocolError: it may not.
        """
        opcode, flags, status, sequence, size = frame
        row = self.dialect.rows.get(opcode)
        if row is None or row.request is None:
            raise UnknownCommand(f"{self.dialect} has no command {opcode_name(opcode)}")
        command = row.command
        if self.state not in command.states:
            raise OutOfOrder(f"{command.name} came in state {self.state.value}")
        if self.incoming is HERD:
            self._check_herd(command, flags, status, sequence)
        elif opcode == Opcode.HERD_HELLO and not self._herd_allowed:
            raise UnknownCommand("HERD_HELLO was not offered")
        exact = row.request_size
        if exact is not None:
            if size != exact:
                raise BadLength(f"{command.name} has {size} bytes where {exact} belong")
            return Incoming(command, size, 0)
        if size < row.request_min:
            raise BadLength(f"{command.name} has {size} bytes, at least {row.request_min} belong")
        if size > row.request_max or size > self._max_frame:
            raise FrameTooLarge(f"{command.name} declares {size} bytes, at most {row.request_max} are taken")
        if command.bulk is Bulk.REQUEST:
            return Incoming(command, row.request_min, size - row.request_min)
        return Incoming(command, size, 0)

    def _check_herd(self, command: Command, flags: int, status: int, sequence: int) -> None:
        if flags or status:
            raise RemoteProtocolError(f"{command.name} came with flags {flags} and status {status}")
        expected = (self.sequence + 1) & SEQUENCE_MASK
        if sequence != expected:
            raise OutOfOrder(f"{command.name} came as number {sequence} where {expected} is due")
        if command.feature and int(command.feature) & ~self.features:  # not as a flag: that takes longer than the rest
            raise UnknownCommand(f"{command.name} was not agreed")
        self.sequence = expected

    def request(self, frame: Frame, view: Buffer) -> Message:
        """Read the fixed part of a request that `check` let pass, and take its effect on the state.

        Raises:
            RemoteProtocolError: the bytes are no such message, or its data has another size than it says.
        """
        opcode = frame.opcode
        row = self.dialect.row(opcode)
        message = self.dialect.decode_request(opcode, view)
        command = row.command
        if command.bulk is Bulk.REQUEST and command.bulk_size is not None:
            implied, bulk = command.bulk_size(message), frame.size - row.request_min
            if implied != bulk:
                raise BadLength(f"{command.name} carries {bulk} bytes of data where {implied} belong")
        if opcode == Opcode.HELLO:
            self.state = State.HELLO
        elif isinstance(message, HerdHelloRequest):
            self._purpose = Purpose(message.purpose) if message.purpose in STATE_FOR else Purpose.STREAM
        elif self.state is State.HELLO:
            self.state = State.STREAM
        return message

    def reply_kind(self, frame: Frame) -> Reply:
        """What is to be sent back for a request."""
        return self.dialect.row(frame.opcode).reply

    def reply(self, frame: Frame, message: Message | None = None, bulk_size: int = 0) -> bytes:
        """Give header and fixed part of an answer, to be followed by `bulk_size` bytes.

        Without message and data the answer is empty. An agreeing `HerdHelloResponse` switches the connection.

        Raises:
            LocalProtocolError: that is no answer to this request.
        """
        row = self.dialect.row(frame.opcode)
        kind = row.reply
        body = b""
        if kind is Reply.RECORD and message is not None and type(message) is row.command.response:
            body = self.dialect.encode(message)
        elif kind not in {Reply.EMPTY, Reply.RAW} or (message is not None and kind is Reply.RAW):
            raise LocalProtocolError(f"{type(message).__name__} does not answer {row.command.name}")
        if bulk_size and kind is not Reply.RAW:
            raise LocalProtocolError(f"{row.command.name} is not answered with data")
        header = self.outgoing.pack(frame.opcode, REPLY, 0, frame.sequence, len(body) + bulk_size)
        if isinstance(message, HerdHelloResponse):
            self._switch(message)
        return header + body

    def _switch(self, message: HerdHelloResponse) -> None:
        if message.status:
            self.state = State.CLOSED
            return
        self.features = message.features
        self.dialect = dialect_for(NEWEST, herd=True, answered_sets=bool(message.features & Feature.ANSWERED_SETS))
        self.incoming = self.outgoing = HERD
        self.state = STATE_FOR[self._purpose]

    def error_reply(self, frame: Frame, error: RemoteError) -> bytes:
        """Give a whole answer that says why there is none.

        Raises:
            LocalProtocolError: stock knows no such thing, or the command is not answered at all.
        """
        if not self.herd or self.reply_kind(frame) is Reply.NONE:
            raise LocalProtocolError(f"{opcode_name(frame.opcode)} has no answer that could carry an error")
        reason = _reason(error)
        return (
            write_frame(HERD, frame.opcode, len(reason), sequence=frame.sequence, status=error.status, flags=REPLY)
            + reason
        )

    def error_frame(self, frame: Frame, error: RemoteError) -> bytes:
        """Give a whole unasked frame that says which command failed and why."""
        reason = _reason(error).decode("utf-8", "replace")
        return self._notice(Opcode.ERROR, ErrorNotice(frame.opcode, error.status, frame.sequence, reason))

    def progress_frame(self, frame: Frame, done: int, total: int) -> bytes:
        """Give a whole unasked frame that says how far a command is."""
        return self._notice(Opcode.PROGRESS, ProgressNotice(frame.opcode, frame.sequence, done, total))

    def _notice(self, opcode: Opcode, message: Message) -> bytes:
        if not self.herd:
            raise LocalProtocolError(f"a stock peer takes no {opcode.name}")
        body = self.dialect.encode(message)
        return write_frame(HERD, opcode, len(body)) + body

    def close(self) -> None:
        """End it."""
        self.state = State.CLOSED


def _reason(error: RemoteError) -> bytes:
    return str(error).encode("utf-8", "replace")[:MAX_REASON]
