"""Sessions that belong together: what one waits for may depend on commands that another still holds back.

Before any of them waits, all are flushed. Where the kernel does not take everything at once, all are moved on in turn,
reading what is due meanwhile: one worker may read no further until another one got its commands or got rid of its
answers.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from wireherd.session.client import ClientSession

#: how long one stuck session is waited for before the others get their turn
_TURN_S: Final = 0.005
_ALONE_S: Final = 0.05


class SessionGroup:
    """The sessions of one cluster; safe from any thread."""

    def __init__(self) -> None:
        self._sessions: tuple[ClientSession, ...] = ()
        self._lock = threading.Lock()

    @property
    def sessions(self) -> tuple[ClientSession, ...]:
        """Members, in the order they came."""
        return self._sessions

    def add(self, session: ClientSession) -> None:
        """Take a session in."""
        with self._lock:
            self._sessions = (*self._sessions, session)

    def remove(self, session: ClientSession) -> None:
        """Let a session go."""
        with self._lock:
            self._sessions = tuple(each for each in self._sessions if each is not session)

    def flush(self) -> None:
        """Send everything that is held back anywhere. A session that fails meanwhile keeps that for its own user."""
        stuck = [session for session in self._sessions if session.holding and not session.push()]
        while stuck:
            turn_s = _ALONE_S if len(self._sessions) == 1 else _TURN_S
            stuck = [session for session in self._sessions if not session.push(turn_s)]

    def nudge(self) -> None:
        """Send what can be sent without waiting."""
        for session in self._sessions:
            if session.holding:
                session.push()
