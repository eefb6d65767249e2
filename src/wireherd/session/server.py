"""The server's side: one peer's loop, from whatever state its connection is in to its end.

Theory of operation. A header is checked against the message table before anything of the frame is read or reserved. A
command without data is read whole and handled. Data that follows a command goes straight into memory that the
dispatcher offers, after it has seen the command: it is the one to say whether offset, size and buffer are right, and a
size that nobody vouches for reserves nothing.

Failures. To our own client a refused call is answered with a status, and life goes on. A command without an answer
that fails ends the session: an ERROR frame names it, and all that follows is dropped until the client leaves. So does
a frame that breaks the protocol. A stock client understands neither: its connection is closed, and the log says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from wireherd.errors import (
    BadRequest,
    InternalError,
    LocalProtocolError,
    OutOfMemory,
    RemoteError,
    RemoteProtocolError,
    TransportError,
    WireherdError,
)
from wireherd.obs.log import get_logger
from wireherd.protocol.fields import Message
from wireherd.protocol.messages_herd import HerdHelloResponse
from wireherd.protocol.table import Bulk, Opcode, Reply
from wireherd.session.frames import FrameStream

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from wireherd.protocol.connection import Incoming, ServerConnection
    from wireherd.protocol.framing import Frame
    from wireherd.transport import Stream

log = get_logger(__name__)

#: after a failure the client has this long of silence to take it in and leave
LINGER_S: Final = 30.0


class Dispatcher(Protocol):
    """What a server does with commands. Raise a `RemoteError` to refuse one."""

    def handle(self, opcode: Opcode, message: Message, connection: ServerConnection) -> Message | Buffer | None:
        """Run a command: give the message that answers it, the data it asked for, or None.

        HERD_HELLO comes here too; HELLO does not. Arrays in `message` are views that end when this returns.
        """

    def sink(self, opcode: Opcode, message: Message, size: int) -> memoryview:
        """Give the writable memory, exactly `size` bytes, into which the data behind a command goes."""

    def received(self, opcode: Opcode, message: Message, view: memoryview) -> Message | None:
        """The data is there, in the memory that `sink` gave."""

    def failed(self, error: RemoteError) -> None:
        """A command without an answer failed: the session takes no more commands."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Patience with one peer.

    Attributes:
        idle_timeout_s: how long it may say nothing between frames; None: for ever.
        stall_timeout_s: how long a frame that has begun, or an answer that it does not take, may stand still.
    """

    idle_timeout_s: float | None = None
    stall_timeout_s: float = 60.0


class _Failed(Exception):  # noqa: N818 - carries an error, is none
    """The session cannot go on; the peer has been told where it can be."""


def serve(
    stream: Stream,
    connection: ServerConnection,
    dispatcher: Dispatcher,
    *,
    received: bytes = b"",
    options: ServeOptions | None = None,
) -> str:
    """Serve one peer until it leaves; the caller closes the stream.

    Args:
        stream: to the peer.
        connection: in the state that the peer's bytes have brought it to.
        dispatcher: runs the commands.
        received: bytes that were read from the stream before, from a frame boundary on.
        options: patience.

    Returns:
        Why it ended, for the log.

    Raises:
        PeerClosed: the peer left in the middle of a frame.
        ReadTimeout: it stood still for too long.
        RemoteProtocolError: it broke the protocol.
    """
    return _Loop(stream, connection, dispatcher, received, options or ServeOptions()).run()


class _Loop:
    def __init__(
        self,
        stream: Stream,
        connection: ServerConnection,
        dispatcher: Dispatcher,
        received: bytes,
        options: ServeOptions,
    ) -> None:
        self._stream = stream
        self._connection = connection
        self._dispatcher = dispatcher
        self._frames = FrameStream(
            stream, connection.incoming, idle_s=options.idle_timeout_s, stall_s=options.stall_timeout_s
        )
        self._frames.reader.feed(received)

    def run(self) -> str:
        frames, connection = self._frames, self._connection
        frame: Frame | None = None
        try:
            while (frame := frames.frame()) is not None:
                incoming = connection.check(frame)
                message = connection.request(frame, frames.take(incoming.fixed_size))
                if incoming.command.bulk is Bulk.REQUEST:
                    self._take_data(frame, incoming, message)
                else:
                    self._handle(frame, incoming, message)
        except RemoteProtocolError as error:
            self._broken(frame, error)
            raise
        except _Failed as failure:
            return str(failure)
        finally:
            connection.close()
        return "the peer left"

    def _handle(self, frame: Frame, incoming: Incoming, message: Message) -> None:
        opcode = incoming.command.opcode
        result: Message | Buffer | None
        try:
            if opcode is Opcode.HELLO:
                result = self._connection.hello_response()
            else:
                result = self._dispatcher.handle(opcode, message, self._connection)
            answer = self._answer(frame, incoming, message, result)
        except TransportError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever happens becomes a status, never a crash
            self._refuse(frame, incoming, _refusal(incoming, error))
            return
        if answer:
            self._frames.send(answer)
        if opcode is Opcode.HERD_HELLO:
            if isinstance(result, HerdHelloResponse) and result.status:
                raise _Failed(f"HERD_HELLO was refused: {result.build}")
            self._frames.reader.switch(self._connection.incoming)

    def _answer(
        self, frame: Frame, incoming: Incoming, message: Message, result: Message | Buffer | None
    ) -> list[bytes | memoryview]:
        """The pieces to send; none for a command that is not answered."""
        connection = self._connection
        kind = connection.reply_kind(frame)
        if kind is Reply.NONE:
            return []
        if kind is Reply.RAW:
            if result is None or isinstance(result, Message):
                raise LocalProtocolError(f"no data for {incoming.command.name}")
            view = memoryview(result).cast("B")
            wanted = incoming.command.bulk_size
            if wanted is not None and len(view) != wanted(message):
                raise LocalProtocolError(f"{len(view)} bytes for {incoming.command.name}, not {wanted(message)}")
            return [connection.reply(frame, None, len(view)), view]
        if kind is Reply.EMPTY:
            return [connection.reply(frame)]
        if not isinstance(result, Message):
            raise LocalProtocolError(f"no message answers {incoming.command.name}")
        return [connection.reply(frame, result)]

    def _take_data(self, frame: Frame, incoming: Incoming, message: Message) -> None:
        """Let data land where the dispatcher wants it."""
        opcode, size = incoming.command.opcode, incoming.bulk_size
        try:
            view = self._dispatcher.sink(opcode, message, size)
            if view.nbytes != size or view.readonly:
                raise LocalProtocolError(
                    f"{incoming.command.name} was offered {view.nbytes} bytes of memory, not {size}"
                )
            view = view.cast("B")
        except Exception as error:  # noqa: BLE001 - whatever happens becomes a status, never a crash
            refusal = _refusal(incoming, error)
            if self._connection.reply_kind(frame) is not Reply.NONE:
                self._frames.skip(size)
            self._refuse(frame, incoming, refusal)
            return
        self._frames.into(view)
        try:
            result = self._dispatcher.received(opcode, message, view)
            answer = self._answer(frame, incoming, message, result)
        except Exception as error:  # noqa: BLE001 - whatever happens becomes a status, never a crash
            self._refuse(frame, incoming, _refusal(incoming, error))
            return
        if answer:
            self._frames.send(answer)

    def _refuse(self, frame: Frame, incoming: Incoming, error: RemoteError) -> None:
        """Tell the peer what failed; go on if it was a call, else end the session."""
        connection, name = self._connection, incoming.command.name
        if incoming.command.opcode is Opcode.HERD_HELLO:
            refusal = HerdHelloResponse(status=error.status, build=str(error))
            self._frames.send([connection.reply(frame, refusal)])
        elif not connection.herd:
            log.warning("%s: %s failed, closing the connection: %s", self._stream.peer, name, error)
        elif connection.reply_kind(frame) is not Reply.NONE:
            log.info("%s: %s refused: %s", self._stream.peer, name, error)
            self._frames.send([connection.error_reply(frame, error)])
            return
        else:
            log.warning("%s: %s failed, the session ends: %s", self._stream.peer, name, error)
            self._dispatcher.failed(error)
            self._frames.send([connection.error_frame(frame, error)])
            self._frames.discard(LINGER_S)
        raise _Failed(f"{name} failed: {error}")

    def _broken(self, frame: Frame | None, error: RemoteProtocolError) -> None:
        """The peer broke the protocol: one of ours is told why, then nothing more of it is understood."""
        log.warning("%s: %s", self._stream.peer, error)
        if frame is None or not self._connection.herd:
            return
        try:
            self._frames.send([self._connection.error_frame(frame, BadRequest(str(error)))])
            self._frames.discard(LINGER_S)
        except WireherdError as failure:
            log.debug("%s: %s", self._stream.peer, failure)


def _refusal(incoming: Incoming, error: Exception) -> RemoteError:
    """The status that stands for a failure."""
    if isinstance(error, RemoteError):
        return error
    if isinstance(error, RemoteProtocolError):
        return BadRequest(str(error))
    if isinstance(error, MemoryError):
        return OutOfMemory("this machine has no memory left")
    log.error("%s met a fault", incoming.command.name, exc_info=error)
    if isinstance(error, WireherdError):
        return InternalError(str(error))
    return InternalError(f"the worker met a fault of its own ({type(error).__name__})")
