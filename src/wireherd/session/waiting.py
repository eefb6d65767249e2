"""How a client's session waits, and how it fails: the half of `ClientSession` that no caller sees.

Every wait is made of slices. After a slice without a byte it looks whether the session was cancelled, sends what other
sessions hold back, and asks for a sign of life: bytes that moved, or an answer to PING on the control connection. A
stock server has no such connection; there only a long timeout helps.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from wireherd.errors import (
    LocalProtocolError,
    ProtocolError,
    ReadTimeout,
    RemoteError,
    TransportError,
    WireherdError,
    WorkerError,
    WorkerLost,
    WorkerRefused,
)
from wireherd.obs.log import get_logger
from wireherd.session.pipe import Pipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from wireherd.session.control import Control
    from wireherd.session.group import SessionGroup
    from wireherd.session.handshake import Opened
    from wireherd.session.options import ClientOptions

log = get_logger(__name__)

#: one wait in the kernel: within this time signals, cancellation and dead peers are seen
SLICE_S: Final = 0.05

#: how often the control thread looks for commands held back: soon after the last flush, and later
_TEND_S: Final = 0.05
_TEND_IDLE_S: Final = 0.5
_BUSY_S: Final = 2.0
#: when the control connection ends, the stream may still hold the reason for this long
_LAST_WORDS_S: Final = 0.25

_clock: Final = time.perf_counter


class WaitingSession:
    """Waits and failures of one session; methods other than `push` expect the lock to be held."""

    def __init__(self, endpoint: str, opened: Opened, options: ClientOptions, group: SessionGroup) -> None:
        self.endpoint = endpoint
        self.group = group
        self.options = options
        self._pipe = Pipe(opened, SLICE_S)
        self._lock = threading.RLock()
        self._control: Control | None = None
        self._failure: WorkerError | None = None
        self._failure_lock = threading.RLock()  # a signal handler may cancel while its own thread fails
        self._moved = (0, 0, 0)
        self._quiet_since = 0.0

    def check(self) -> None:
        """Raise the failure of this session, if there is one.

        Raises:
            WorkerError: the first failure.
        """
        if self._failure is not None:
            raise self._again(self._failure)

    def push(self, wait_s: float = 0.0) -> bool:
        """Send what can be sent, and read what is due, within `wait_s`; whether nothing is left to send.

        For the group, from any thread: it never raises for a failed session, which keeps that for its own user.
        """
        if not self._lock.acquire(blocking=False):
            return True  # its owner is sending or waiting, and flushes by itself
        try:
            pipe = self._pipe
            if self._failure is not None:
                return True
            if pipe.out:
                pipe.send()
            if wait_s and (pipe.out or pipe.connection.pending):
                self._turn(wait_s if pipe.out else 0.0)
        except BaseException as error:
            try:
                self._fault(error)
            except WorkerError:
                return True
            raise
        else:
            return not pipe.out
        finally:
            self._lock.release()

    def _await(self, arrived: Callable[[], bool]) -> None:
        """Flush the group, then read until `arrived`."""
        if arrived():
            return
        self.group.flush()
        stats = self._pipe.stats
        stats.round_trips += 1
        begun = _clock()
        try:
            while not arrived():
                try:
                    self._pipe.receive()
                except ReadTimeout:
                    self._quiet()
        finally:
            stats.wait_s += _clock() - begun
        self.check()  # what came after `cancel` is no answer any more

    def _send_all(self, bulk: memoryview | None = None) -> None:
        """Send everything that is held back, then `bulk`; reads what is due while the kernel has no room."""
        pipe = self._pipe
        while True:
            bulk = pipe.send(bulk)
            if bulk is None and not pipe.out:
                return
            self._turn(SLICE_S)

    def _turn(self, wait_s: float) -> None:
        """Wait until there is room to write or something to read, and read it."""
        if wait_s:
            self.group.nudge()
        stream = self._pipe.stream
        readable, writable = stream.wait(read=True, write=bool(wait_s), timeout_s=wait_s)
        if readable:
            self._pipe.receive()
        elif not writable and wait_s:
            self._quiet()

    def _quiet(self) -> None:
        """A slice has passed without a byte: is there a reason to go on waiting?"""
        self.check()
        self.group.nudge()
        pipe = self._pipe
        now = time.monotonic()
        moved = (pipe.stats.bytes_sent, pipe.stats.bytes_received, pipe.stream.unsent())
        progress = moved != self._moved
        self._moved = moved
        if self._control is not None:
            if progress:
                self._control.alive(now)
            silent_s = self._control.silence(now)
            if silent_s > self.options.liveness_s:
                self._fail(f"no sign of life for {silent_s:.1f} s")
            return
        if progress:
            self._quiet_since = now
        elif now - self._quiet_since > self.options.stock_timeout_s:
            self._fail(f"no answer for {self.options.stock_timeout_s:g} s (a stock server cannot say that it lives)")

    def _tend(self) -> float:
        """Control thread: nobody waits, so send what has been held back too long; the pause until the next look."""
        if self._pipe.out:
            self.push()
        return _TEND_S if _clock() - self._pipe.last_flush < _BUSY_S else _TEND_IDLE_S

    def _control_ended(self, reason: str) -> None:
        """Control thread: the worker's process is gone, or the machine; the stream may still say why."""
        end = time.monotonic() + _LAST_WORDS_S
        while self._failure is None and time.monotonic() < end:
            if not self._lock.acquire(timeout=SLICE_S):
                continue  # who waits reads the last words by itself
            try:
                if self._pipe.stream.wait(read=True, write=False, timeout_s=SLICE_S)[0]:
                    self._pipe.receive()
            except WireherdError as error:
                try:
                    self._fault(error)
                except WireherdError:
                    break
            finally:
                self._lock.release()
        self._keep(self._lost(reason))
        self._pipe.stream.shutdown()

    def _fault(self, error: BaseException) -> None:
        """Turn what went wrong during an operation into the session's failure and raise that, where it is one."""
        if isinstance(error, (WorkerError, LocalProtocolError)):
            return
        if self._failure is not None and isinstance(error, WireherdError):
            raise self._again(self._failure) from error  # its cause: somebody shut the stream down
        if isinstance(error, RemoteError):
            self._give_up(WorkerRefused(self.endpoint, str(error)), error)
        elif isinstance(error, TransportError):
            self._last_words()
            self._give_up(self._lost(str(error)), error)
        elif isinstance(error, ProtocolError):
            self._give_up(self._lost(f"it broke the protocol: {error}"), error)
        else:  # the interpreter interrupted us between two steps that belong together: Ctrl-C
            self._keep(WorkerLost(self.endpoint, "interrupted by this client"))
            if self._control is not None:
                self._control.cancel()
            self._pipe.stream.shutdown()

    def _last_words(self) -> None:
        """A write failed: the worker may have said why before it closed."""
        try:
            while self._pipe.stream.wait(read=True, write=False, timeout_s=0.0)[0]:
                self._pipe.receive()
        except RemoteError as refusal:
            self._give_up(WorkerRefused(self.endpoint, str(refusal)), refusal)
        except WireherdError as error:
            log.debug("worker %s: %s", self.endpoint, error)

    def _fail(self, reason: str) -> None:
        self._give_up(self._lost(reason), None)

    def _give_up(self, failure: WorkerError, cause: BaseException | None) -> None:
        failure.__cause__ = cause
        self._keep(failure)
        self._pipe.stream.shutdown()
        raise self._again(self._failure or failure) from cause

    def _keep(self, failure: WorkerError) -> None:
        """Keep the first failure."""
        with self._failure_lock:
            if self._failure is None:
                self._failure = failure
                log.debug("%s", failure)

    @staticmethod
    def _again(failure: WorkerError) -> WorkerError:
        """The same failure as a fresh exception: one instance would gather the traces of all its raisers."""
        again = type(failure)(failure.endpoint, failure.reason)
        again.__cause__ = failure.__cause__
        return again

    def _lost(self, reason: str) -> WorkerLost:
        try:
            oldest = self._pipe.connection.oldest
        except IndexError:  # the answer came just now, in another thread
            oldest = None
        while_what = f" while {oldest.command.name} was pending" if oldest is not None else ""
        return WorkerLost(self.endpoint, f"lost{while_what}: {reason}")
