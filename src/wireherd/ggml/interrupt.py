"""Ctrl-C while C runs and calls back into Python.

CPython's own SIGINT handler raises KeyboardInterrupt at the next instruction of the main thread. If that is the entry
of a callback, the exception arises before the callback's first line: no wall can catch it, ctypes prints it, and C
gets an arbitrary number for an answer. So while C may call back, SIGINT must not raise: it asks the work to stop, and
KeyboardInterrupt is raised when C has returned.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType


class Interrupts:
    """Context manager around native calls; outside the main thread it does nothing (signals never arrive there).

    Args:
        on_interrupt: called once, at the first SIGINT, on the main thread between two instructions: it asks the work
            to stop (set an abort flag, cancel a cluster) and must neither block nor raise. A third SIGINT ends the
            process in the system's own way, for work that does not stop.
    """

    def __init__(self, on_interrupt: Callable[[], object]) -> None:
        self._on_interrupt = on_interrupt
        self._previous: Any = None
        self._count = 0

    @property
    def interrupted(self) -> bool:
        """Whether SIGINT arrived inside the block."""
        return self._count > 0

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self._count += 1
        if self._count == 1:
            with contextlib.suppress(Exception):
                self._on_interrupt()
        elif self._count > 2:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def __enter__(self) -> Interrupts:  # noqa: PYI034  Self is not in 3.10's typing
        self._count = 0
        self._previous = None
        if threading.current_thread() is threading.main_thread():
            previous = signal.getsignal(signal.SIGINT)
            # None: somebody installed a handler from C; SIG_IGN: the user does not want to be interrupted
            if previous is not None and previous is not signal.SIG_IGN:
                self._previous = previous
                signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
            self._previous = None
        if self._count and not isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt from error
