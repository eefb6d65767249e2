"""What the environment sets: one place for every variable and default that more than one room reads.

Command-line flags win over the environment, and the environment wins over the defaults here. Nothing is read at
import time, so a test may change a variable and see the effect.

    WIREHERD_CACHE   folder of downloaded models and wheels (default: the user's cache folder)
    WIREHERD_GGML    the native library: a file or a folder of libraries (default: the installed wheel)
    WIREHERD_LOG     level of the log on stderr: debug, info, warning (default) or error

Where model wheels are fetched from is the model room's affair: see `wireherd.llm.models`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import platformdirs

from wireherd.errors import UsageError

#: the port of llama.cpp's rpc-server, and so of ours
DEFAULT_PORT: Final = 50052
DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_INDEX: Final = "https://pypi.org/simple"

CACHE_VARIABLE: Final = "WIREHERD_CACHE"
GGML_VARIABLE: Final = "WIREHERD_GGML"
LOG_VARIABLE: Final = "WIREHERD_LOG"


def setting(variable: str) -> str | None:
    """Value of an environment variable; unset, empty and blank all give None."""
    value = os.environ.get(variable, "").strip()
    return value or None


def cache_dir(*parts: str, variable: str = CACHE_VARIABLE) -> Path:
    """Folder for what can be fetched again; `parts` name a folder in it, which is made if it is not there.

    Args:
        parts: names of folders, one in the other.
        variable: the environment variable that may say where the outermost one lies.

    Raises:
        UsageError: the folder cannot be made.
    """
    root = setting(variable)
    base = Path(root).expanduser() if root else platformdirs.user_cache_path("wireherd", appauthor=False)
    folder = base.joinpath(*parts)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"the cache folder {folder} cannot be made ({reason}): set {variable}") from error
    return folder


def ggml_path() -> Path | None:
    """Native library chosen by the environment, or None for the installed wheel's."""
    value = setting(GGML_VARIABLE)
    return Path(value).expanduser() if value else None
