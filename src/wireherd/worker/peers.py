"""Other workers: where they reach this one, and to which addresses this one may open links.

A client names the addresses; nothing says that they are workers. So a worker dials only where its owner's network is:
one that listens on loopback dials this machine only, one on the network (`--insecure`) private and link-local ranges
too; one that only its own user can ask, at a unix socket, may dial whatever that user may. `--peers` replaces these
ranges. Names are never dialled: they may lead elsewhere at the next look.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys
from typing import TYPE_CHECKING, Final

from wireherd.obs.log import get_logger
from wireherd.transport import Address
from wireherd.worker.listen import spell, spell_address
from wireherd.worker.settings import address_ranges, is_loopback

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wireherd.transport import Stream
    from wireherd.worker.settings import WorkerSettings

log = get_logger(__name__)

_LOOPBACK: Final = ("127.0.0.0/8", "::1/128")
_PRIVATE: Final = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "fc00::/7", "fe80::/10")
#: no worker is there, but a cloud machine's secrets are: only an owner who names ranges may mean it
_METADATA: Final = ipaddress.ip_address("169.254.169.254")
_ANYWHERE: Final = ("0.0.0.0/0", "::/0")
_WILDCARDS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 (compared, not bound)
_SIOCGIFADDR: Final = 0x8915
_IFREQ: Final = struct.Struct("16s16s")


class Permitted:
    """Says which addresses may be dialled."""

    def __init__(self, settings: WorkerSettings) -> None:
        ranges = settings.peers
        if ranges is None:
            ranges = _default_ranges(settings)
        #: a socket's path means nothing to other machines, so only a client of this one has a reason to name it
        self._paths = all(host.startswith("unix:") or is_loopback(host) for host in settings.hosts)
        self._networks = address_ranges(ranges)
        self._shown = ", ".join(ranges)
        self._never = _METADATA if settings.peers is None else None

    def __call__(self, address: Address) -> str | None:
        """Why `address` must not be dialled; None if it may."""
        if address.scheme == "unix":
            return None if self._paths else "is a path, and this worker serves other machines"
        try:
            ip = ipaddress.ip_address(address.host.partition("%")[0])
        except ValueError:
            return "is a name, and only addresses are dialled"
        mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
        meant = mapped or ip
        if meant != self._never and any(meant in network for network in self._networks):
            return None
        return f"lies outside the ranges in which this worker opens links ({self._shown or 'none'}); see --peers"


def _default_ranges(settings: WorkerSettings) -> tuple[str, ...]:
    hosts = [host for host in settings.hosts if not host.startswith("unix:")]
    if not hosts:
        return _ANYWHERE  # only its own user can ask it for anything
    return _LOOPBACK if all(is_loopback(host) for host in hosts) else (*_LOOPBACK, *_PRIVATE)


def own_addresses(stream: Stream, listening: Sequence[str]) -> tuple[str, ...]:
    """Where other workers reach this one: the address that the client came in on first, then all others.

    Args:
        stream: the client's.
        listening: the addresses of the worker's listening sockets, as the system spells them.
    """
    found: dict[str, None] = {}
    number = stream.fileno()
    if number >= 0:
        with socket.socket(fileno=socket.dup(number)) as sock:
            found[spelled(sock.getsockname())] = None
    for text in listening:
        address = Address.parse(text)
        if address.host in _WILDCARDS:
            others = [host for host in _interfaces() if not is_loopback(host)]
            found |= dict.fromkeys(spell(host, address.port) for host in others)
        else:
            found[text] = None
    return tuple(text for text in found if text)


def spelled(address: object) -> str:
    """An address of a socket as `Address.parse` takes it; empty if it has none."""
    if isinstance(address, tuple):
        return spell_address(address)
    path = address.decode("utf-8", "replace") if isinstance(address, bytes) else str(address)
    return f"unix:{path}" if path else ""


def _interfaces() -> list[str]:
    """IPv4 addresses of this machine's interfaces, where the system says (Linux)."""
    if sys.platform != "linux":
        return []
    import fcntl  # noqa: PLC0415 (POSIX only)

    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, _IFREQ.pack(name.encode()[:15], b""))
            except OSError:
                continue  # an interface without an IPv4 address
            found.append(socket.inet_ntoa(answer[20:24]))
    return found
