"""Logging: standard library loggers under "wireherd", one line each on stderr.

A library stays silent until its user says otherwise, so the root of our loggers holds a null handler; the command
line and the worker's processes call `setup`, once each.
"""

from __future__ import annotations

import logging
import sys
from typing import Final

from wireherd import config

ROOT: Final = "wireherd"
_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s[%(process)d]: %(message)s"
_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

logging.getLogger(ROOT).addHandler(logging.NullHandler())


def get_logger(name: str) -> logging.Logger:
    """Logger for a module; pass `__name__`. Names outside "wireherd" are put under it."""
    return logging.getLogger(name if name == ROOT or name.startswith(ROOT + ".") else f"{ROOT}.{name}")


def setup(verbose: bool = False, *, level: int | None = None) -> None:
    """Write our log to stderr; calling it again replaces the handler instead of adding one.

    The level is, in this order: `level`, debug if `verbose`, the environment's WIREHERD_LOG, warning.
    """
    if level is None:
        named = (config.setting(config.LOG_VARIABLE) or "").lower()
        level = logging.DEBUG if verbose else _LEVELS.get(named, logging.WARNING)
    root = logging.getLogger(ROOT)
    for handler in list(root.handlers):
        root.removeHandler(handler)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT, datefmt="%H:%M:%S"))
    root.addHandler(handler)
    root.setLevel(level)
    root.propagate = False
