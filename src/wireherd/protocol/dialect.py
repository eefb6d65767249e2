"""What each version of the protocol changes, compiled into one table a dialect.

The stock versions differ in fields (`since` in the messages), in answers that were dropped (`silent_since` in the
table), in commands (`since` in the table) and in the tail of the tensor record. Ours is 8.0 with a tensor record of
its own and the commands from 128 up.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from wireherd.errors import LocalProtocolError, UnknownCommand
from wireherd.protocol.codec import Codec, derive
from wireherd.protocol.messages_stock import EmptyResponse
from wireherd.protocol.table import COMMANDS, Bulk, Command, Opcode, Reply
from wireherd.protocol.tensor import HERD_TENSOR, STOCK_TENSOR, STOCK_TENSOR_OLD, layout_of
from wireherd.protocol.version import NEWEST, SUPPORTED, Version

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from wireherd.protocol.fields import Message


class Row(NamedTuple):
    """A command as one dialect has it."""

    command: Command
    reply: Reply
    request: Codec[Any] | None
    response: Codec[Any] | None
    #: exact payload of a request; None where it varies
    request_size: int | None
    #: least and largest payload of a request
    request_min: int
    request_max: int
    #: exact payload of an answer; None where it varies
    response_size: int | None
    response_max: int


#: first version whose tensor record ends in a use count
_USE_COUNT_SINCE = Version(5, 1)
#: first version all of whose builds know GGML_TENSOR_FLAG_COMPUTE
_MARKS_SINCE = Version(4, 0)


class Dialect:
    """The protocol of one version, or ours over the newest one (`herd`). Get one from `dialect_for`."""

    def __init__(self, version: Version, herd: bool, answered_sets: bool) -> None:
        self.version = version
        self.herd = herd
        #: whether SET_TENSOR is answered, as before protocol 2.0
        self.answered_sets = answered_sets
        #: numpy dtype of the tensor record
        self.tensor_dtype = HERD_TENSOR if herd else STOCK_TENSOR if version >= _USE_COUNT_SINCE else STOCK_TENSOR_OLD
        #: whether every ggml of that version marks the nodes that are to run, and leaves the others out; 3.6.0 is older
        self.marks_nodes = version >= _MARKS_SINCE
        self.tensor_layout = layout_of(self.tensor_dtype)
        self.rows: dict[int, Row] = {}
        self.codecs: dict[type[Message], Codec[Any]] = {}
        for command in COMMANDS.values():
            if (command.herd and not herd) or version < command.since:
                continue
            row = self._row(command)
            self.rows[int(command.opcode)] = row
            for cls, codec in ((command.request, row.request), (command.response, row.response)):
                if cls is not None and codec is not None:
                    self.codecs[cls] = codec

    def _row(self, command: Command) -> Row:
        silent = command.silent_since is not None and self.version >= command.silent_since
        reply = Reply.NONE if silent else command.reply
        if self.answered_sets and command.opcode is Opcode.SET_TENSOR:
            reply = Reply.EMPTY
        request = None if command.request is None else derive(command.request, self.version, self.tensor_dtype)
        response = None
        if command.response is not None and not silent:
            response = derive(command.response, self.version, self.tensor_dtype)
        request_size = None
        request_min = request_max = 0
        if request is not None:
            request_size = None if command.bulk is Bulk.REQUEST else request.size
            request_min = request.minimum
            request_max = max(request_min, command.max_size) if request_size is None else request_size
        response_size: int | None = 0
        if response is not None:
            response_size = response.size
        elif reply is Reply.RAW:
            response_size = None
        response_max = command.max_size if response_size is None else response_size
        return Row(
            command, reply, request, response, request_size, request_min, request_max, response_size, response_max
        )

    def __str__(self) -> str:
        return f"ggml RPC {self.version}" + (" with the herd extension" if self.herd else "")

    def __repr__(self) -> str:
        return f"<Dialect {self.version.short}{' herd' if self.herd else ''}>"

    def row(self, opcode: int) -> Row:
        """Look a command up.

        Raises:
            UnknownCommand: this dialect does not have it.
        """
        try:
            return self.rows[opcode]
        except KeyError:
            raise UnknownCommand(f"{self} has no command {opcode_name(opcode)}") from None

    def command(self, opcode: int) -> Command:
        """Look a command's row of the message table up.

        Raises:
            UnknownCommand: this dialect does not have it.
        """
        return self.row(opcode).command

    def has(self, opcode: int) -> bool:
        """Whether this dialect has the command."""
        return opcode in self.rows

    def reply_kind(self, command: Command) -> Reply:
        """What comes back in this dialect."""
        return self.row(command.opcode).reply

    def fixed_size(self, opcode: int) -> int | None:
        """Bytes of a request without its bulk; None where arrays or texts make it vary."""
        request = self.row(opcode).request
        return None if request is None else request.size

    def encode(self, message: Message) -> bytes:
        """Give the bytes of a message, without header and bulk.

        Raises:
            LocalProtocolError: the dialect does not have the message, or a value does not fit.
        """
        codec = self.codecs.get(type(message))
        if codec is None:
            raise LocalProtocolError(f"{self} has no {type(message).__name__}")
        return codec.encode(message)

    def decode_request(self, opcode: int, view: Buffer) -> Message:
        """Read a request's fixed part.

        Raises:
            RemoteProtocolError: unknown command, or bytes that are no such message.
        """
        codec = self.row(opcode).request
        if codec is None:
            raise UnknownCommand(f"{opcode_name(opcode)} is no command")
        message: Message = codec.decode(view)
        return message

    def decode_response(self, opcode: int, view: Buffer) -> Message:
        """Read an answer that is a message, or an unasked frame.

        Raises:
            RemoteProtocolError: unknown command, or bytes that are no such message.
        """
        codec = self.row(opcode).response
        if codec is None:
            raise UnknownCommand(f"{opcode_name(opcode)} has no answer that is a message")
        message: Message = codec.decode(view)
        return message


def opcode_name(opcode: int) -> str:
    """Give a command's name, or its number where nobody knows it."""
    try:
        return Opcode(opcode).name
    except ValueError:
        return str(opcode)


#: the answer to commands that return nothing but are answered
EMPTY = EmptyResponse()


@functools.cache
def _dialect(version: Version, herd: bool, answered_sets: bool) -> Dialect:
    return Dialect(version, herd, answered_sets)


def dialect_for(version: Version, herd: bool = False, *, answered_sets: bool = False) -> Dialect:
    """Give the dialect of a version (its patch does not matter); with `herd`, our extension, which is over 8.0 only.

    `answered_sets` has SET_TENSOR answered, as it was before protocol 2.0.

    Raises:
        LocalProtocolError: no such dialect.
    """
    if herd and version.line != NEWEST.line:
        version = NEWEST
    for known in SUPPORTED:
        if known.line == version.line:
            return _dialect(known, herd, answered_sets)
    raise LocalProtocolError(f"there is no dialect for protocol version {version}")
