"""Ctrl-C while native code runs.

Python notices a signal only between two steps of its own, and one call into llama.cpp may take minutes. The C half of
Python's signal handling, though, writes a byte to the wakeup descriptor at once: a watching thread reads it and stops
the native call through what that call offers (an abort flag that ggml polls, a cancel sent to the workers). No
KeyboardInterrupt may be raised inside a callback from C, so within `native` the handler only takes a note; it is
raised when the native call is over. Outside of it, Ctrl-C is Python's own.

    first Ctrl-C     the running call is told to stop, then KeyboardInterrupt
    second Ctrl-C    the process ends, whatever the call does
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Final

from wireherd.ggml.interrupt import Interrupts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType, TracebackType

    from typing_extensions import Self

#: how long the gentle way (a flag that ggml polls between two operations) may take before the workers are told, which
#: costs the session
GENTLE_S: Final = 0.3
#: the same for what ends by itself before long: a single token
PATIENT_S: Final = 5.0
#: how long Python's handler waits for the watching thread, which only has to read a byte
_WATCHER_S: Final = 0.2
EXIT_CODE: Final = 128 + signal.SIGINT


class _Region:
    """One native call that can be stopped: first `abort`, then `cancel`."""

    def __init__(self, abort: Callable[[], None], cancel: Callable[[], None], gentle_s: float) -> None:
        self.abort = abort
        self.cancel = cancel
        self.gentle_s = gentle_s
        self.over = threading.Event()
        self.interrupted = False


class CtrlC:
    """Context manager of a command line: makes Ctrl-C stop the native work of sessions in the main thread."""

    active: CtrlC | None = None

    def __init__(self, on_exit: Callable[[], None] | None = None) -> None:
        """`on_exit` runs before a second Ctrl-C ends the process: it must be quick."""
        self._on_exit = on_exit
        self._region: _Region | None = None
        self._watched = threading.Event()

    def __enter__(self) -> Self:
        self._read, self._write = socket.socketpair()
        self._write.setblocking(False)
        self._previous = signal.signal(signal.SIGINT, self._handle)
        self._previous_fd = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        self._watcher = threading.Thread(target=self._watch, name="wireherd-ctrl-c", daemon=True)
        self._watcher.start()
        CtrlC.active = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        CtrlC.active = None
        signal.set_wakeup_fd(self._previous_fd)
        signal.signal(signal.SIGINT, self._previous)
        self._write.close()
        self._watcher.join(timeout=1.0)
        self._read.close()

    @contextlib.contextmanager
    def native(self, abort: Callable[[], None], cancel: Callable[[], None], gentle_s: float) -> Iterator[None]:
        """Mark a native call; see `native` of this module."""
        region = _Region(abort, cancel, gentle_s)
        self._region = region
        try:
            yield
        finally:
            self._region = None
            region.over.set()
            if region.interrupted:
                raise KeyboardInterrupt

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        region = self._region
        # a watcher that reads this signal's byte later would take it for the next native call's
        self._watched.wait(_WATCHER_S)
        self._watched.clear()
        if region is None:
            raise KeyboardInterrupt
        region.interrupted = True

    def _watch(self) -> None:
        while signals := self._receive():
            if signal.SIGINT in signals:
                self._stop(self._region)
                self._watched.set()

    def _stop(self, region: _Region | None) -> None:
        """Stop a native call, the first time gently; if there is none, Python's handler does all."""
        if region is not None:
            if region.interrupted and region.abort is _nothing:
                self._leave()
            region.interrupted = True
            region.abort()
            region.abort = _nothing  # a second one finds it used up
            threading.Thread(target=self._insist, args=(region,), name="wireherd-cancel", daemon=True).start()

    def _receive(self) -> bytes:
        try:
            return self._read.recv(64)
        except OSError:
            return b""

    @staticmethod
    def _insist(region: _Region) -> None:
        if not region.over.wait(region.gentle_s):
            region.cancel()

    def _leave(self) -> None:
        """End the process from the watching thread: the main one may never come back."""
        with contextlib.suppress(Exception):
            if self._on_exit:
                self._on_exit()
        with contextlib.suppress(OSError, ValueError):
            if sys.stderr.isatty():
                sys.stderr.write("\x1b[?25h\n")  # a progress bar may have hidden the cursor
                sys.stderr.flush()
        os._exit(EXIT_CODE)


def _nothing() -> None:
    """Stop nothing: the abort of a region that was told already."""


@contextlib.contextmanager
def native(abort: Callable[[], None], cancel: Callable[[], None], gentle_s: float = GENTLE_S) -> Iterator[None]:
    """Mark a call into native code that Ctrl-C shall be able to stop.

    Both functions are called from another thread: `abort` at once, `cancel` if the call still runs
    after `gentle_s`.
    In the main thread without an active `CtrlC`, both are called as soon as C enters Python again; in another thread
    signals never arrive, and nothing is done.

    Raises:
        KeyboardInterrupt: when the call is over, if Ctrl-C came meanwhile.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop() -> None:
        abort()
        cancel()

    guard = CtrlC.active
    with Interrupts(stop) if guard is None else guard.native(abort, cancel, gentle_s):
        yield
