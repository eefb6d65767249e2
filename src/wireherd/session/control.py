"""The control connection: tells a busy worker from a dead one.

Theory of operation. While a worker computes, its stream is honestly silent for seconds. Beside the stream runs a small
connection to the same session, answered by a thread of its process. Whoever waits on the stream calls `silence` now
and then; that sends PING while nothing is outstanding, and tells for how long one has gone unanswered. A thread reads
the answers here, so that the waiting thread need not look in two places; the end of this connection means that the
worker's process is gone.

A gap between two looks (nobody waited, or this machine slept) starts the count anew: silence counts only while watched.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from wireherd.errors import WireherdError
from wireherd.obs.log import get_logger
from wireherd.protocol.messages_herd import CancelRequest, PingRequest, PingResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from wireherd.protocol.fields import Message
    from wireherd.session.handshake import Opened

log = get_logger(__name__)

#: pause between an answer and the next PING, while somebody waits
PING_PAUSE_S: Final = 0.1
#: looks further apart than this do not belong to one wait
_GAP_S: Final = 0.5
_JOIN_S: Final = 2.0


class Control:
    """A control connection with its reading thread; safe from any thread."""

    def __init__(
        self,
        opened: Opened,
        *,
        on_end: Callable[[str], None],
        on_quiet: Callable[[], float],
    ) -> None:
        """Start reading.

        Args:
            opened: the connection after its handshake.
            on_end: called once, from the thread, with the reason, when the connection ends by itself.
            on_quiet: called from the thread when nothing has come for a while: for work that nobody waits for.
                It returns the seconds until it is called again.
        """
        self._connection = opened.connection
        self._frames = opened.frames
        self._on_end = on_end
        self._on_quiet = on_quiet
        self._quiet_s = 0.0
        self._closed = False
        self._lock = threading.RLock()  # a signal handler may cancel while its own thread looks
        self._looked = 0.0
        self._asked: float | None = None  # when the PING that is not answered was sent, or watching it began
        self._answered = 0.0
        self._nonce = 0
        self._frames.idle_s = None
        self._thread = threading.Thread(target=self._read, name=f"control {opened.connection.end}", daemon=True)
        self._thread.start()

    def silence(self, now: float) -> float:
        """Seconds for which a PING has gone unanswered while being watched; sends one if none is outstanding."""
        with self._lock:
            if self._asked is not None and now - self._looked > _GAP_S:
                self._asked = now
            self._looked = now
            if self._asked is None:
                if now - self._answered >= PING_PAUSE_S:
                    self._nonce += 1
                    self._asked = now
                    self._send(PingRequest(self._nonce))
                return 0.0
            return now - self._asked

    def alive(self, now: float) -> None:
        """The worker showed a sign of life in another way."""
        with self._lock:
            if self._asked is not None:
                self._asked = now

    def cancel(self) -> None:
        """Ask the worker to stop what it computes."""
        with self._lock:
            self._send(CancelRequest())

    def close(self) -> None:
        """End the connection and its thread."""
        self._closed = True
        self._frames.stream.shutdown()
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_S)
        if not self._thread.is_alive():
            self._frames.stream.close()

    def _send(self, message: Message) -> None:
        """Send if it fits: it always does unless the worker has stopped reading, and then silence tells."""
        try:
            self._frames.stream.send_nowait([self._connection.request(message)])
        except WireherdError as error:
            log.debug("%s: %s", self._connection.end, error)

    def _read(self) -> None:
        reason = "its control connection ended"
        try:
            while self._step():
                pass
        except WireherdError as error:
            reason = f"its control connection failed ({error})"
        if not self._closed:
            self._on_end(reason)

    def _step(self) -> bool:
        """Read one frame, or one slice of silence; False at the end."""
        frames = self._frames
        if not frames.ready(self._quiet_s):
            self._quiet_s = self._on_quiet()
            return True
        frame = frames.frame()
        if frame is None:
            return False
        with self._lock:
            pending = self._connection.match(frame)
        message = self._connection.response(pending, frame, frames.take(frame.size))
        if isinstance(message, PingResponse):
            with self._lock:
                if message.nonce == self._nonce:
                    self._asked = None
                    self._answered = time.monotonic()
        return True
