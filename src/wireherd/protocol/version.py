"""Versions of the ggml RPC protocol and which of them this release speaks."""

from __future__ import annotations

from typing import NamedTuple

from wireherd.errors import UsageError


class Version(NamedTuple):
    """A protocol version as HELLO carries it: three bytes.

    Major and minor decide the layout of every message; the patch only says which operation numbers
    the peer was built with (upstream raises it when `enum ggml_op` changes and never compares it).
    """

    major: int
    minor: int
    patch: int = 0

    @classmethod
    def parse(cls, text: str) -> Version:
        """Read `8`, `5.0` or `4.0.3`; parts left out are taken from the newest version known to match.

        Raises:
            UsageError: not a version.
        """
        parts = text.strip().split(".")
        if not 1 <= len(parts) <= 3 or not all(part.isascii() and part.isdigit() for part in parts):
            raise UsageError(f"{text!r} is not a protocol version: write it as 8.0 or 5.1")
        numbers = tuple(int(part) for part in parts)
        if max(numbers) > 255:
            raise UsageError(f"{text!r} is not a protocol version: each part is at most 255")
        for known in reversed(SUPPORTED):
            if known[: len(numbers)] == numbers:
                return known
        return cls(*numbers, *(0,) * (2 - len(numbers)))

    @property
    def line(self) -> tuple[int, int]:
        """Major and minor: what decides the layout."""
        return self.major, self.minor

    @property
    def short(self) -> str:
        """Major and minor as text, as a user writes it."""
        return f"{self.major}.{self.minor}"

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


#: every version with a dialect, oldest first, each with the newest patch known
SUPPORTED: tuple[Version, ...] = (
    Version(3, 6, 1),
    Version(4, 0, 3),
    Version(5, 0, 0),
    Version(5, 1, 0),
    Version(6, 0, 0),
    Version(7, 0, 0),
    Version(8, 0, 0),
)

NEWEST = SUPPORTED[-1]

#: number of our own extension, sent in HERD_HELLO
EXTENSION = 1

#: for people: where a server of that version is found
RELEASES: dict[tuple[int, int], str] = {
    (4, 0): "llama.cpp b10068",
    (5, 0): "llama.cpp b10434",
    (5, 1): "llama.cpp b10605",
    (7, 0): "llama-cpp-python 0.3.36 built with RPC",
    (8, 0): "llama.cpp b11739",
}
