"""Every command of the message table to the function that carries it out. `session.server.serve` calls this.

The state of a session is in `state.py`, the work in `handlers/`. Here is only what stands between: which command goes
where, what is refused outright, and the handshake of our extension.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from wireherd.errors import InternalError, NotAllowed, UnknownCommand
from wireherd.protocol.dialect import dialect_for, opcode_name
from wireherd.protocol.messages_herd import (
    FEATURES,
    NO_SESSION,
    ON_REQUEST,
    HerdHelloRequest,
    HerdHelloResponse,
    PingRequest,
    PingResponse,
    Purpose,
)
from wireherd.protocol.negotiate import agree_features
from wireherd.protocol.table import COMMANDS, Opcode
from wireherd.worker.handlers import buffer, device, graph, peer, tensor
from wireherd.worker.state import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from wireherd.errors import RemoteError
    from wireherd.ggml import Library
    from wireherd.protocol.connection import ServerConnection
    from wireherd.protocol.dialect import Dialect
    from wireherd.protocol.fields import Message
    from wireherd.worker.buffers import Memory
    from wireherd.worker.settings import WorkerSettings

#: bytes a client may have in flight; a large tensor's upload must not wait for its own start to be taken
WINDOW: Final = 64 << 20


class Dispatcher:
    """Carries out the commands of one session.

    Args:
        lib: the library.
        settings: the worker's settings.
        dialect: what the peer speaks; HERD_HELLO switches to our extension.
        session: name of the session, 16 bytes, told in the answer to HERD_HELLO.
        account: the owner's memory limit, shared with other sessions; None takes `settings.memory_limit` alone.
    """

    def __init__(
        self,
        lib: Library,
        settings: WorkerSettings,
        dialect: Dialect,
        *,
        session: bytes = NO_SESSION,
        account: Memory | None = None,
    ) -> None:
        self.session = session
        self.state = State(lib, settings, account)
        self.state.speak(dialect)
        self._handlers: dict[int, Callable[[Any], Any]] = {
            **{opcode: partial(handler, self.state) for opcode, handler in _HANDLERS.items()},
            Opcode.PING: _pong,
            Opcode.CANCEL: self._cancel,
            Opcode.HERD_HELLO: self._herd_hello,
        }
        self._sinks: dict[int, Callable[[Any, int], memoryview]] = {
            opcode: partial(sink, self.state) for opcode, sink in tensor.SINKS.items()
        }
        self._receivers: dict[int, Callable[[Any, memoryview], None]] = {
            opcode: partial(receiver, self.state) for opcode, receiver in tensor.RECEIVERS.items()
        }

    def handle(self, opcode: int, message: Message, connection: ServerConnection) -> Any:
        """Carry out a command that brings no data along.

        Returns:
            The answer as a message or as bytes (a view of a tensor's memory: send it before the next command), or None.

        Raises:
            RemoteError: it was refused or failed.
        """
        if opcode == Opcode.HELLO:
            return connection.hello_response()
        handler = self._handlers.get(opcode)
        if handler is None:
            raise UnknownCommand(f"a worker does not carry out {opcode_name(opcode)}")
        return handler(message)

    def sink(self, opcode: int, message: Message, size: int) -> memoryview:
        """Where to put the `size` bytes of data that follow a request.

        Raises:
            RemoteError: they have no place; nothing was allocated for them.
        """
        sink = self._sinks.get(opcode)
        if sink is None:
            raise NotAllowed(f"{opcode_name(opcode)} brings no data along")
        return sink(message, size)

    def received(self, opcode: int, message: Message, view: memoryview) -> None:
        """The data is where `sink` said.

        Raises:
            RemoteError: the command failed.
        """
        self._receivers[opcode](message, view)

    def cancel(self) -> None:
        """Stop the running graph and refuse all later ones; from any thread."""
        self.state.cancel()

    def failed(self, error: RemoteError) -> None:
        """The session takes no more commands: those that wait for it must know."""
        self.state.groups.fail(error)

    def close(self) -> None:
        """Give all memory back."""
        self.state.close()

    def _cancel(self, message: Message) -> None:
        del message
        self.cancel()

    def _herd_hello(self, message: HerdHelloRequest) -> HerdHelloResponse:
        features = agree_features(message, int(FEATURES | ON_REQUEST))
        if message.purpose != Purpose.STREAM:
            raise NotAllowed("this connection can only be a stream")
        dialect = self.state.dialect
        if dialect is None or dialect.herd:
            raise InternalError("HERD_HELLO was said already")
        self.state.speak(dialect_for(dialect.version, herd=True))
        numbering = self.state.numbering
        return HerdHelloResponse(
            features=features,
            session=self.session,
            window=WINDOW,
            build=self.state.lib.build,
            ops=numbering.ops,
            unary_ops=numbering.unary_ops,
            glu_ops=numbering.glu_ops,
            types=numbering.types,
        )


class Prober(Dispatcher):
    """Answers what needs no session, and refuses everything else."""

    def handle(self, opcode: int, message: Message, connection: ServerConnection) -> Any:
        """Answer a stateless command.

        Raises:
            NotAllowed: the command needs a session.
            RemoteError: it was refused.
        """
        if opcode not in COMMANDS or not COMMANDS[opcode].stateless:
            raise NotAllowed(f"{opcode_name(opcode)} needs a session")
        return super().handle(opcode, message, connection)

    def sink(self, opcode: int, message: Message, size: int) -> memoryview:
        """No stateless command brings data along.

        Raises:
            NotAllowed: always.
        """
        del message, size
        raise NotAllowed(f"{opcode_name(opcode)} needs a session")


def _pong(message: PingRequest) -> PingResponse:
    return PingResponse(message.nonce)


_HANDLERS: Final[dict[Opcode, Callable[[State, Any], Any]]] = {
    **device.HANDLERS,
    **buffer.HANDLERS,
    **tensor.HANDLERS,
    **graph.HANDLERS,
    **peer.HANDLERS,
}
