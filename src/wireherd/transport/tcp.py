"""TCP: names and IPv6, every address of a name tried, no delay, keepalive.

Whoever connects guards its waits by itself (a sign of life, a timeout), so its sockets carry keepalive only. An
accepted socket also gives up after data stays unconfirmed for `UNCONFIRMED_S`: a client that was cut off must not
hold a worker's memory. The connecting side must not have that limit: Linux applies it to a peer that confirms but
does not read, and a worker that computes for a minute while data waits is just that.
"""

from __future__ import annotations

import errno
import selectors
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

from wireherd.errors import ConnectError, ConnectTimeout
from wireherd.transport import interface
from wireherd.transport.address import TCP, Address
from wireherd.transport.sockets import SocketListener, SocketStream, connect_error

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, TypeAlias

    from wireherd.transport.stream import Stream

    #: family, kind, protocol and socket address of one way to reach a peer
    Target: TypeAlias = tuple[int, int, int, Any]

KEEPALIVE_IDLE_S: Final = 5
KEEPALIVE_INTERVAL_S: Final = 2
KEEPALIVE_COUNT: Final = 3
UNCONFIRMED_S: Final = 30

#: the next address of a name is tried beside the first ones after this long (as RFC 8305 recommends)
_STAGGER_S: Final = 0.25


def connect(address: Address, timeout_s: float) -> SocketStream:
    """Open a TCP connection, trying every address of a name.

    Raises:
        ConnectTimeout: nobody answered within `timeout_s`.
        ConnectError: the peer refused, or cannot be reached, or not through the interface that the address names.
    """
    end = time.monotonic() + timeout_s
    if address.via:
        interface.check(address.via)
    sock = _first(_resolve(address, timeout_s), end, timeout_s, address.via)
    tune(sock)
    return SocketStream(sock, str(address))


def listen(address: Address) -> TcpListener:
    """Listen at an address of this machine.

    Raises:
        ConnectError: it is in use, or not an address of this machine.
    """
    if address.via:
        raise ConnectError(f"listen on an address of this machine, without '@{address.via}'")
    targets = _resolve(address, timeout_s=5.0)
    family, kind, proto, where = targets[0]
    sock = socket.socket(family, kind, proto)
    try:
        if sys.platform == "win32":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
        return TcpListener(sock, Address(TCP, address.host, sock.getsockname()[1]))
    except OSError as error:
        sock.close()
        raise connect_error(error) from error


def from_socket(sock: socket.socket, peer: str | None = None) -> Stream:
    """Take over a connected socket of any family, as the accepting side; the stream owns it from now on.

    Raises:
        ConnectError: the socket is not connected any more.
    """
    try:
        name = _peer_name(sock) if peer is None else peer
        if sock.family in {socket.AF_INET, socket.AF_INET6}:
            tune(sock, unconfirmed_s=UNCONFIRMED_S)
        return SocketStream(sock, name)
    except OSError as error:
        sock.close()
        raise connect_error(error) from error


class TcpListener(SocketListener):
    """Accepts TCP connections; a stream's `peer` is the client's address."""

    def _stream(self, sock: socket.socket, peer: object) -> Stream:
        return from_socket(sock, _spell(peer))


def tune(sock: socket.socket, unconfirmed_s: float | None = None) -> None:
    """Set what every TCP connection of ours has; options that a system lacks are left out."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    wanted = {
        "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE": KEEPALIVE_IDLE_S,  # macOS's name
        "TCP_KEEPINTVL": KEEPALIVE_INTERVAL_S,
        "TCP_KEEPCNT": KEEPALIVE_COUNT,
    }
    if unconfirmed_s is not None:
        wanted["TCP_USER_TIMEOUT"] = round(unconfirmed_s * 1000)
    for name, value in wanted.items():
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _resolve(address: Address, timeout_s: float) -> list[Target]:
    """Look the name up without hanging on a dead name server longer than `timeout_s`."""
    try:
        return _lookup(address, socket.AI_NUMERICHOST)
    except (socket.gaierror, UnicodeError):
        pass  # a name
    found: list[Target] = []
    failed: list[OSError] = []

    def look() -> None:
        try:
            found.extend(_lookup(address, 0))
        except (OSError, UnicodeError) as error:
            failed.append(error if isinstance(error, OSError) else OSError(str(error)))

    thread = threading.Thread(target=look, name=f"lookup {address.host}", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        raise ConnectTimeout(f"the name service did not answer for {timeout_s:g} s")
    if not found:
        reason = failed[0].strerror if failed and failed[0].strerror else "it has no address"
        raise ConnectError(f"the name {address.host!r} is not known ({reason})")
    return found


def _lookup(address: Address, flags: int) -> list[Target]:
    rows = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=flags)
    return [(family, kind, proto, where) for family, kind, proto, _, where in rows]


def _first(targets: Sequence[Target], end: float, timeout_s: float, via: str) -> socket.socket:
    """Connect to all targets, one after the other begun, and keep the first that answers."""
    waiting = list(targets)
    last: OSError | None = None
    begun = 0.0
    with selectors.DefaultSelector() as selector:
        try:
            while waiting or selector.get_map():
                now = time.monotonic()
                if now >= end:
                    raise ConnectTimeout(f"no answer to the attempt to connect for {timeout_s:g} s")
                if waiting and (not selector.get_map() or now - begun >= _STAGGER_S):
                    begun = now
                    try:
                        selector.register(_begin(waiting.pop(0), via), selectors.EVENT_WRITE)
                    except OSError as error:
                        last = error
                    continue
                pause = end - now
                if waiting:
                    pause = min(pause, begun + _STAGGER_S - now)
                for key, _ in selector.select(pause):
                    sock = key.fileobj
                    if not isinstance(sock, socket.socket):
                        continue
                    selector.unregister(sock)
                    error_number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if not error_number and not _met_itself(sock):
                        return sock
                    sock.close()
                    last = OSError(error_number or errno.ECONNREFUSED, "")
        finally:
            for key in list(selector.get_map().values()):
                if isinstance(key.fileobj, socket.socket):
                    key.fileobj.close()
    raise connect_error(last or OSError(errno.EHOSTUNREACH, ""))


def _begin(target: Target, via: str) -> socket.socket:
    family, kind, proto, where = target
    sock = socket.socket(family, kind, proto)
    try:
        if via:
            where = interface.route(sock, via, where)
        sock.setblocking(False)
        number = sock.connect_ex(where)
        if number not in {0, errno.EINPROGRESS, errno.EWOULDBLOCK, getattr(errno, "WSAEWOULDBLOCK", 0)}:
            raise OSError(number, "")
    except BaseException:
        sock.close()
        raise
    return sock


def _met_itself(sock: socket.socket) -> bool:
    """On one machine a connection to a free port may pick that very port as its own and meet itself."""
    try:
        return bool(sock.getsockname() == sock.getpeername())
    except OSError:
        return True


def _peer_name(sock: socket.socket) -> str:
    return _spell(sock.getpeername())


def _spell(peer: object) -> str:
    if isinstance(peer, tuple) and len(peer) >= 2:
        return str(Address(TCP, str(peer[0]), int(peer[1])))
    return f"unix:{peer}" if peer else "unix"
