"""A control connection, from the session's side: PING is answered at once, CANCEL stops what runs."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from wireherd.errors import NotAllowed, RemoteProtocolError
from wireherd.protocol.messages_herd import (
    FEATURES,
    CancelRequest,
    HerdHelloRequest,
    HerdHelloResponse,
    PingRequest,
    PingResponse,
)
from wireherd.protocol.negotiate import agree_features

if TYPE_CHECKING:
    from collections.abc import Callable

    from wireherd.errors import RemoteError
    from wireherd.protocol.connection import ServerConnection
    from wireherd.protocol.fields import Message


class ControlDispatcher:
    """Carries out the commands of one control connection; runs on that connection's thread."""

    def __init__(self, session: bytes, cancel: Callable[[], None]) -> None:
        """Set what it speaks for.

        Args:
            session: name of the session, 16 bytes.
            cancel: stops the graph that runs now; called from this connection's thread.
        """
        self._session = session
        self._cancel = cancel

    def handle(self, opcode: int, message: Message, connection: ServerConnection) -> Message | None:
        """Carry out one command.

        Raises:
            NotAllowed: a command that has no place on a control connection.
            RemoteProtocolError: a handshake that makes no sense.
        """
        del opcode, connection
        if isinstance(message, PingRequest):
            return PingResponse(message.nonce)
        if isinstance(message, CancelRequest):
            self._cancel()
            return None
        if isinstance(message, HerdHelloRequest):
            if not hmac.compare_digest(message.session, self._session):
                raise RemoteProtocolError("a control connection of another session")
            return HerdHelloResponse(features=agree_features(message, int(FEATURES)), session=self._session)
        raise NotAllowed("a control connection carries PING and CANCEL only")

    def sink(self, opcode: int, message: Message, size: int) -> memoryview:
        """No command here carries data.

        Raises:
            NotAllowed: always.
        """
        del opcode, message, size
        raise NotAllowed("a control connection carries no data")

    def received(self, opcode: int, message: Message, view: memoryview) -> None:
        """Never called: `sink` refuses."""
        del opcode, message, view

    def failed(self, error: RemoteError) -> None:
        """Nobody else depends on this connection."""
        del error
