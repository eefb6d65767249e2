"""The worker's log: one line for each client that comes and goes, every step when asked for."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from wireherd import config
from wireherd.obs import log as obs_log

if TYPE_CHECKING:
    from wireherd.worker.settings import WorkerSettings


def start_logging(settings: WorkerSettings) -> None:
    """Set up the log of this process. The environment's WIREHERD_LOG wins over the usual level, not over verbose."""
    if settings.verbose or config.setting(config.LOG_VARIABLE):
        obs_log.setup(settings.verbose)
    else:
        obs_log.setup(level=logging.INFO)
