"""Addresses as users spell them, taken apart once.

host:port             TCP; without ":port" the port of llama.cpp's rpc-server
[v6]:port             TCP over IPv6; a bare IPv6 address is taken too, then without a port
host:port@eth1        TCP through that network interface of this machine
host:port@10.0.0.1    TCP from that address of this machine
unix:/path            a unix socket
device:/path          connections over a byte-stream device (POSIX)
memory:name           inside this process, for tests

One peer may have several addresses, joined by "+", a character that no host name contains and no shell touches:
a:50052+10.0.0.2:50052@thunderbolt0. What follows a scheme is a path or name to the end, "+" and "@" included.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from wireherd import config
from wireherd.errors import UsageError

TCP: Final = "tcp"
UNIX: Final = "unix"
MEMORY: Final = "memory"
DEVICE: Final = "device"

_SCHEMES: Final = (f"{UNIX}:", f"{DEVICE}:", f"{MEMORY}:")
#: between several addresses of one peer
SEPARATOR: Final = "+"
#: more ways to one peer than any machine has interfaces for
MAX_ALTERNATIVES: Final = 16
#: an interface's name has at most 15 bytes (IFNAMSIZ of Linux and macOS, less the closing zero)
_INTERFACE: Final = re.compile(r"[A-Za-z0-9_.-]{1,15}")

#: sun_path of the strictest system we serve (macOS: 104 bytes with the closing zero)
_MAX_UNIX_PATH: Final = 103


@dataclass(frozen=True, slots=True)
class Address:
    """Where a peer is.

    Attributes:
        scheme: one of the constants above.
        host: for TCP.
        port: for TCP.
        name: path or name, for the others.
        via: for TCP: interface or address of this machine to go through; empty: as the system routes.
    """

    scheme: str
    host: str = ""
    port: int = 0
    name: str = ""
    via: str = ""

    @classmethod
    def parse_all(cls, text: str) -> tuple[Address, ...]:
        """Take apart the addresses of one peer, joined by "+"; the same one twice counts once.

        Raises:
            UsageError: one of them is none, or there are more than anybody needs.
        """
        found: dict[Address, None] = {}
        rest: str | None = text
        while rest is not None:
            if rest.lstrip().startswith(_SCHEMES):
                piece, rest = rest, None
            else:
                piece, more, after = rest.partition(SEPARATOR)
                rest = after if more else None
            if not piece.strip():
                raise UsageError(f"{text!r} has an empty address between two '{SEPARATOR}'" if text else "no address")
            found[cls.parse(piece)] = None
        if len(found) > MAX_ALTERNATIVES:
            raise UsageError(f"{len(found)} addresses of one worker, at most {MAX_ALTERNATIVES} are tried")
        return tuple(found)

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
        if spelled.startswith("device:"):
            path = spelled.removeprefix("device:")
            if not path or "\0" in path:
                raise UsageError(f"{text!r} lacks the path of a device after 'device:'")
            return cls(DEVICE, name=path)
        return _tcp(text, spelled)

    def __str__(self) -> str:
        if self.scheme == TCP:
            place = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
            return f"{place}@{self.via}" if self.via else place
        return f"{self.scheme}:{self.name}"


def _unix(text: str, path: str) -> Address:
    if not path or "\0" in path:
        raise UsageError(f"{text!r} lacks the path of a socket after 'unix:'")
    if len(path.encode()) > _MAX_UNIX_PATH:
        raise UsageError(f"the path in {text!r} is longer than the {_MAX_UNIX_PATH} bytes a unix socket may have")
    return Address(UNIX, name=path)


def _tcp(text: str, spelled: str) -> Address:
    spelled, through, via = spelled.partition("@")
    if through:
        via = _via(text, via)
    if _is_ipv6(spelled):
        return Address(TCP, spelled, config.DEFAULT_PORT, via=via)
    if spelled.startswith("["):
        host, bracket, rest = spelled[1:].partition("]")
        if not bracket or not _is_ipv6(host) or (rest and not rest.startswith(":")):
            raise UsageError(f"{text!r} is no address: an IPv6 address is spelled [::1]:{config.DEFAULT_PORT}")
        port = rest[1:] if rest else None
    else:
        host, colon, after = spelled.partition(":")
        port = after if colon else None
    if not host or any(c.isspace() or c in ":/\0,@?#+" for c in host.partition("%")[0] if not _is_ipv6(host)):
        raise UsageError(f"{text!r} is no address: give host:port, [v6]:port or unix:/path")
    return Address(TCP, host, config.DEFAULT_PORT if port is None else _port(text, port), via=via)


def _via(text: str, spelled: str) -> str:
    bare = spelled[1:-1] if spelled.startswith("[") and spelled.endswith("]") else spelled
    if _is_ipv6(bare) or _INTERFACE.fullmatch(spelled):
        return bare
    raise UsageError(f"{text!r}: after '@' comes an interface or an address of this machine, such as eth1 or 10.0.0.1")


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
