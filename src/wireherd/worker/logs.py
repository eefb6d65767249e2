"""The worker's log: one line for each client that comes and goes, every step when asked for.

Clients decide how much there is to log: one refused command after the other, one connection after the other. So that
no client can fill a disk, a process writes only so many lines a second for long; what it leaves out it counts.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from wireherd import config
from wireherd.obs import log as obs_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from wireherd.worker.settings import WorkerSettings

#: lines that may come at once, and lines a second in the long run
_BURST: Final = 200
_RATE: Final = 5.0


class Throttle(logging.Filter):
    """Lets records pass at a bounded rate; the first one after a gap says how many were left out."""

    def __init__(self, burst: int = _BURST, rate: float = _RATE, clock: Callable[[], float] = time.monotonic) -> None:
        """Set the bounds: `burst` lines at once, `rate` lines a second."""
        super().__init__()
        self._burst = float(burst)
        self._rate = rate
        self._clock = clock
        self._left = self._burst
        self._looked = clock()
        self._dropped = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether there is room for the record."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._looked) * self._rate)
        self._looked = now
        if self._left < 1:
            self._dropped += 1
            return False
        self._left -= 1
        if self._dropped:
            record.msg, record.args = f"{record.getMessage()} ({self._dropped} lines before this were left out)", ()
            self._dropped = 0
        return True


def start_logging(settings: WorkerSettings) -> None:
    """Set up the log of this process. The environment's WIREHERD_LOG wins over the usual level, not over verbose."""
    if settings.verbose or config.setting(config.LOG_VARIABLE):
        obs_log.setup(settings.verbose)
        return
    obs_log.setup(level=logging.INFO)
    for handler in logging.getLogger(obs_log.ROOT).handlers:
        handler.addFilter(Throttle())
