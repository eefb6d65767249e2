"""What travels beside a client's socket when it changes hands."""

from __future__ import annotations

import json
from dataclasses import dataclass

from wireherd.protocol.messages_herd import Purpose


@dataclass(frozen=True, slots=True)
class Handover:
    """What a process must know about a socket it is given; the bytes already read travel beside it.

    Attributes:
        purpose: what the connection is for.
        session: name of the session, hex: the new one, or the one a control connection or link joins.
        peer: the client's address, for logs.
        number: counts sessions of this worker, for logs.
        listening: addresses of the worker's listening sockets; told to new sessions.
    """

    purpose: Purpose
    session: str
    peer: str
    number: int
    listening: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Encode for `from_json`."""
        return json.dumps([int(self.purpose), self.session, self.peer, self.number, self.listening])

    @classmethod
    def from_json(cls, text: str) -> Handover:
        """Decode what `to_json` wrote."""
        purpose, session, peer, number, listening = json.loads(text)
        return cls(Purpose(purpose), session, peer, number, tuple(listening))
