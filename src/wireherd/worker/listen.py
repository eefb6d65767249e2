"""The listening sockets of a worker: IPv4, IPv6, a name, or a unix socket."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from typing import TYPE_CHECKING, Final

from wireherd.errors import ConnectError, UsageError
from wireherd.transport import Address, unix

if TYPE_CHECKING:
    from wireherd.worker.settings import WorkerSettings

_BACKLOG: Final = 1024


def open_listeners(settings: WorkerSettings) -> list[socket.socket]:
    """Bind and listen at every address of the settings; give them back to `close_listeners`.

    Raises:
        ConnectError: an address is taken, not ours, or not to be resolved.
        UsageError: a name that looked local leads to an address that other machines can reach.
    """
    listeners: list[socket.socket] = []
    try:
        for host in settings.socket_hosts:
            listeners.append(open_listener(settings, host))  # noqa: PERF401 - what is open must be closed on failure
    except BaseException:
        close_listeners(listeners)
        raise
    return listeners


def close_listeners(listeners: list[socket.socket]) -> None:
    """Stop listening; the paths of unix sockets are removed."""
    for sock in listeners:
        if sock.fileno() < 0:
            continue
        address = sock.getsockname()
        sock.close()
        if isinstance(address, str):
            unix.remove(address)


def open_listener(settings: WorkerSettings, host: str | None = None) -> socket.socket:
    """Bind and listen, non-blocking. A name that stands for several addresses binds the first that can be bound.

    Args:
        settings: port, and whether other machines may reach it.
        host: one of the settings' addresses; None for the first.

    Raises:
        ConnectError: the address is taken, not ours, or not to be resolved.
        UsageError: a name that looked local leads to an address that other machines can reach.
    """
    spelled = settings.hosts[0] if host is None else host
    if spelled.startswith("unix:"):
        return _open_unix(spelled)
    host = spelled.strip("[]")
    try:
        found = socket.getaddrinfo(host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConnectError(f"cannot listen on {spelled}: {_reason(error)}") from error
    failure: OSError | None = None
    for family, kind, number, _, address in found:
        if not settings.insecure and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
            raise UsageError(f"{spelled} leads to {address[0]}, which other machines can reach: add --insecure")
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
    raise ConnectError(f"cannot listen on {spell(spelled, settings.port)}: {reason}") from failure


def _open_unix(spelled: str) -> socket.socket:
    try:
        sock = unix.bind(Address.parse(spelled))
    except ConnectError as error:
        raise ConnectError(f"cannot listen on {spelled}: {error}") from error
    sock.listen(_BACKLOG)
    sock.setblocking(False)
    return sock


def endpoint(listener: socket.socket, host: str) -> str:
    """What clients of this machine give to `--rpc`: the address as it was asked for, with the port that it got."""
    address = listener.getsockname()
    if isinstance(address, str):
        return f"unix:{os.path.abspath(address)}"  # noqa: PTH100 - links in the path are kept as spelled
    return spell(host, int(address[1]))


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
