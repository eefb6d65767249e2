"""The one listening socket of a worker: IPv4, IPv6 or a name."""

from __future__ import annotations

import ipaddress
import socket
import sys
from typing import TYPE_CHECKING, Final

from wireherd.errors import ConnectError, UsageError

if TYPE_CHECKING:
    from wireherd.worker.settings import WorkerSettings

_BACKLOG: Final = 1024


def open_listener(settings: WorkerSettings) -> socket.socket:
    """Bind and listen, non-blocking. A name that stands for several addresses binds the first that can be bound.

    Raises:
        ConnectError: the address is taken, not ours, or not to be resolved.
        UsageError: a name that looked local leads to an address that other machines can reach.
    """
    host = settings.host.strip("[]")
    try:
        found = socket.getaddrinfo(host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConnectError(f"cannot listen on {settings.host}: {_reason(error)}") from error
    failure: OSError | None = None
    for family, kind, number, _, address in found:
        if not settings.insecure and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
            raise UsageError(f"{settings.host} leads to {address[0]}, which other machines can reach: add --insecure")
        try:
            sock = socket.socket(family, kind, number)
        except OSError as error:
            failure = error
            continue
        try:
            if sys.platform != "win32":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6 and str(address[0]) == "::":
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind(address)
            sock.listen(_BACKLOG)
            sock.setblocking(False)
        except OSError as error:
            sock.close()
            failure = error
            continue
        return sock
    reason = _reason(failure) if failure else "no such address"
    raise ConnectError(f"cannot listen on {spell(settings.host, settings.port)}: {reason}") from failure


def spell(host: str, port: int) -> str:
    """`host:port`, with brackets round an IPv6 address."""
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def spell_address(address: object) -> str:
    """`host:port` of a socket address as `accept` and `getsockname` give it."""
    if isinstance(address, tuple) and len(address) >= 2:
        host = str(address[0])
        return spell(host.removeprefix("::ffff:"), int(address[1]))
    return str(address) or "local"


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error)
