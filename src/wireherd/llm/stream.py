"""Bytes of tokens in, text fit to be shown out.

A token may end in the middle of a UTF-8 character, and a stop string may begin in one token and end in another: both
are held back until the next token decides.
"""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class TextStream:
    """Text of one answer as it grows; `stopped` once a stop string was met, which itself is never given out."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.stopped = False

    def feed(self, piece: bytes) -> str:
        """Take the bytes of one token; returns the text that is certain now, often empty."""
        if self.stopped:
            return ""
        return self._release(self._decoder.decode(piece))

    def finish(self) -> str:
        """End of the answer: returns what was held back. A character that never came whole becomes U+FFFD."""
        if self.stopped:
            return ""
        text = self._release(self._decoder.decode(b"", final=True))
        if not self.stopped:
            text += self._held
        self._held = ""
        return text

    def _release(self, text: str) -> str:
        self._held += text
        hits = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if hits:
            out, self._held, self.stopped = self._held[: min(hits)], "", True
            return out
        keep = max((self._overlap(stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        out, self._held = self._held[:cut], self._held[cut:]
        return out

    def _overlap(self, stop: str) -> int:
        """Length of the longest end of the held text that a stop string begins with."""
        for length in range(min(len(stop) - 1, len(self._held)), 0, -1):
            if self._held.endswith(stop[:length]):
                return length
        return 0


_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
_ESCAPE = re.compile(r"""\\(?:x([0-9A-Fa-f]{2})|([nrt'"\\]))""")


def unescape(text: str) -> str:
    r"""Turn the escapes that llama.cpp's tools know (``\n``, ``\t``, ``\x41`` ...) into characters."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else _ESCAPES[found[2]], text)
