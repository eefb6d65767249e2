"""Which way a TCP connection leaves this machine: through a named interface, or from one of its addresses.

Linux restricts a socket to an interface with SO_BINDTODEVICE (without privileges since 5.7; socket(7)); where that is
denied the socket is bound to the interface's address, which decides the route wherever the peer is on its network.
macOS has IP_BOUND_IF and IPV6_BOUND_IF (netinet/in.h, netinet6/in6.h), which Python does not name. Windows' interface
names are not the ones its users see, so there an address must be given.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wireherd.errors import ConnectError

if TYPE_CHECKING:
    from typing import Any

#: linux/sockios.h
_SIOCGIFADDR: Final = 0x8915
#: struct ifreq: the name, then a union as large as its largest member
_IFREQ: Final = struct.Struct("16s24x")
#: netinet/in.h and netinet6/in6.h of macOS
_IP_BOUND_IF: Final = 25
_IPV6_BOUND_IF: Final = 125
_INET6: Final = Path("/proc/net/if_inet6")


def is_address(via: str) -> bool:
    """Whether `via` is an IP address, not the name of an interface."""
    try:
        ipaddress.ip_address(via)
    except ValueError:
        return False
    return True


def check(via: str) -> None:
    """Refuse what this machine does not have before anything is tried.

    Raises:
        ConnectError: no such interface, or this system cannot choose one by name.
    """
    if is_address(via):
        return
    if sys.platform == "win32":
        raise ConnectError(f"on Windows give an address of this machine after '@', not the name {via!r}")
    try:
        socket.if_nametoindex(via)
    except OSError as error:
        raise ConnectError(f"this machine has no network interface {via!r}") from error


def route(sock: socket.socket, via: str, where: Any) -> Any:
    """Make a fresh TCP socket leave through `via`; return the peer's socket address, with the scope it needs there.

    Raises:
        OSError: the interface has no address of that family, or the address is not one of this machine.
    """
    if is_address(via):
        _from_address(sock, via)
        return where
    index = socket.if_nametoindex(via)
    if sock.family == socket.AF_INET6 and ipaddress.ip_address(str(where[0]).partition("%")[0]).is_link_local:
        where = (where[0], where[1], 0, index)
    if sys.platform == "darwin":
        six = sock.family == socket.AF_INET6
        level, option = (socket.IPPROTO_IPV6, _IPV6_BOUND_IF) if six else (socket.IPPROTO_IP, _IP_BOUND_IF)
        sock.setsockopt(level, option, index)
    elif not _bind_to_device(sock, via):
        _from_interface(sock, via, index)
    return where


def _from_address(sock: socket.socket, via: str) -> None:
    family = socket.AF_INET6 if ":" in via else socket.AF_INET
    if sock.family != family:
        raise OSError(errno.EAFNOSUPPORT, f"{via} and the peer are of different IP versions")
    row = socket.getaddrinfo(via, 0, family, socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0]
    sock.bind(row[4])


def _bind_to_device(sock: socket.socket, name: str) -> bool:
    option = getattr(socket, "SO_BINDTODEVICE", None)
    if option is None:
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, option, name.encode() + b"\0")
    except PermissionError:
        return False
    return True


def _from_interface(sock: socket.socket, name: str, index: int) -> None:
    if sock.family == socket.AF_INET6:
        found = sorted(_addresses_v6(name), key=lambda address: address.is_link_local)
        if found:
            sock.bind((str(found[0]), 0, 0, index if found[0].is_link_local else 0))
            return
        raise OSError(errno.EAFNOSUPPORT, f"the interface {name} has no IPv6 address")
    address = _address_v4(sock, name)
    if address is None:
        raise OSError(errno.EAFNOSUPPORT, f"the interface {name} has no IPv4 address")
    sock.bind((address, 0))


def _address_v4(sock: socket.socket, name: str) -> str | None:
    if sys.platform == "win32":
        return None
    import fcntl  # noqa: PLC0415 - POSIX only

    try:
        answer = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, _IFREQ.pack(name.encode()))
    except OSError:
        return None
    return socket.inet_ntoa(answer[20:24])  # behind the name: family, port, address of a sockaddr_in


def _addresses_v6(name: str) -> list[ipaddress.IPv6Address]:
    """Addresses of an interface by Linux's list: address, index, prefix, scope, flags, name."""
    try:
        lines = _INET6.read_text().splitlines()
    except OSError:
        return []
    rows = [line.split() for line in lines]
    return [ipaddress.IPv6Address(int(row[0], 16)) for row in rows if len(row) == 6 and row[5] == name]
