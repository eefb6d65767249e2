"""Addresses as users spell them, taken apart once.

host:port        TCP; without ":port" the port of llama.cpp's rpc-server
[v6]:port        TCP over IPv6; a bare IPv6 address is taken too, then without a port
unix:/path       a unix socket
memory:name      inside this process, for tests
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

from wireherd import config
from wireherd.errors import UsageError

TCP: Final = "tcp"
UNIX: Final = "unix"
MEMORY: Final = "memory"

#: sun_path of the strictest system we serve (macOS: 104 bytes with the closing zero)
_MAX_UNIX_PATH: Final = 103


@dataclass(frozen=True, slots=True)
class Address:
    """Where a peer is. `host` and `port` mean something for TCP, `name` (path or name) for the others."""

    scheme: str
    host: str = ""
    port: int = 0
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Take an address apart.

        Raises:
            UsageError: it is none; the sentence says what was expected.
        """
        spelled = text.strip()
        if "://" in spelled:
            raise UsageError(f"{text!r} is a URL: give host:port without a scheme")
        if spelled.startswith("unix:"):
            return _unix(text, spelled.removeprefix("unix:"))
        if spelled.startswith("memory:"):
            name = spelled.removeprefix("memory:")
            if not name:
                raise UsageError(f"{text!r} lacks a name after 'memory:'")
            return cls(MEMORY, name=name)
        return _tcp(text, spelled)

    def __str__(self) -> str:
        if self.scheme == TCP:
            return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        return f"{self.scheme}:{self.name}"


def _unix(text: str, path: str) -> Address:
    if not path or "\0" in path:
        raise UsageError(f"{text!r} lacks the path of a socket after 'unix:'")
    if len(path.encode()) > _MAX_UNIX_PATH:
        raise UsageError(f"the path in {text!r} is longer than the {_MAX_UNIX_PATH} bytes a unix socket may have")
    return Address(UNIX, name=path)


def _tcp(text: str, spelled: str) -> Address:
    if _is_ipv6(spelled):
        return Address(TCP, spelled, config.DEFAULT_PORT)
    if spelled.startswith("["):
        host, bracket, rest = spelled[1:].partition("]")
        if not bracket or not _is_ipv6(host) or (rest and not rest.startswith(":")):
            raise UsageError(f"{text!r} is no address: an IPv6 address is spelled [::1]:{config.DEFAULT_PORT}")
        port = rest[1:] if rest else None
    else:
        host, colon, after = spelled.partition(":")
        port = after if colon else None
    if not host or any(c.isspace() or c in ":/\0,@?#" for c in host.partition("%")[0] if not _is_ipv6(host)):
        raise UsageError(f"{text!r} is no address: give host:port, [v6]:port or unix:/path")
    return Address(TCP, host, config.DEFAULT_PORT if port is None else _port(text, port))


def _port(text: str, digits: str) -> int:
    if not digits.isascii() or not digits.isdigit() or len(digits) > 5 or int(digits) > 0xFFFF:
        raise UsageError(f"the port in {text!r} must be a number from 0 to 65535")
    return int(digits)


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
