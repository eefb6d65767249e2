"""ggml's and llama.cpp's log, routed to Python logging as "wireherd.ggml.native".

The libraries are talkative and call warnings what a user need not know, so everything moves down: debug and info
become DEBUG, warnings and errors become INFO. An error is not lost: the last ones are kept, and whoever gets a NULL
from C puts them into the exception that the user does see.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from wireherd.ggml.enums import LogLevel
from wireherd.ggml.functions import address
from wireherd.ggml.vtable import callback_of

if TYPE_CHECKING:
    from wireherd.ggml.functions import Functions

_CALLBACK: Final = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
_LEVELS: Final[dict[int, int]] = {
    LogLevel.DEBUG: logging.DEBUG,
    LogLevel.INFO: logging.DEBUG,
    LogLevel.WARN: logging.INFO,
    LogLevel.ERROR: logging.INFO,
}

logger = logging.getLogger("wireherd.ggml.native")


class NativeLog:
    """The log callback of one library."""

    def __init__(self, c: Functions) -> None:
        self._c = c
        self._level: int = LogLevel.INFO
        self._text = ""
        self._errors: deque[str] = deque(maxlen=8)
        self._callback = callback_of(_CALLBACK, self._line, slot="log", failure=0, on_error=lambda *_: None)
        self.listen()
        # C may log after the interpreter is gone, when our callback is too: from then on nobody listens
        atexit.register(self.silence)

    def listen(self) -> None:
        """Make the library log here; a library has one listener at a time."""
        self._install(address(self._callback))

    def _install(self, function: int) -> None:
        if self._c.has("llama_log_set"):
            self._c.llama_log_set(function, 0)
        else:
            self._c.ggml_log_set(function, 0)

    def _line(self, level: int, text: bytes | None, _data: int) -> None:
        if level != LogLevel.CONT:
            self._level = level
        if self._level <= LogLevel.INFO and not logger.isEnabledFor(logging.DEBUG):
            return
        self._text += (text or b"").decode("utf-8", "replace")
        if not self._text.endswith("\n") and len(self._text) < 4096:
            return
        line, self._text = self._text.strip(), ""
        # llama.cpp draws its loading bar with dots
        if not line.strip("."):
            return
        if self._level == LogLevel.ERROR:
            self._errors.append(line)
        logger.log(_LEVELS.get(self._level, logging.DEBUG), "%s", line)

    def errors(self) -> list[str]:
        """The last error lines, oldest first, and forget them."""
        found = list(self._errors)
        self._errors.clear()
        return found

    def silence(self) -> None:
        """Stop listening: the library then logs into a function of its own that looks at nothing."""
        self._install(address(self._c.ggml_time_us))
