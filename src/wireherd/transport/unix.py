"""Unix sockets: another process of this machine, named by a path that only its owner's processes can open."""

from __future__ import annotations

import errno
import os
import socket
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from wireherd.errors import ConnectError, ConnectTimeout
from wireherd.transport.sockets import SocketListener, SocketStream, connect_error

if TYPE_CHECKING:
    from wireherd.transport.address import Address


def connect(address: Address, timeout_s: float) -> SocketStream:
    """Open a connection to the socket at a path.

    Raises:
        ConnectTimeout: the listener did not take it in time.
        ConnectError: there is no such socket, or nobody listens at it.
    """
    sock = _socket()
    try:
        sock.settimeout(timeout_s)
        sock.connect(address.name)
        return SocketStream(sock, str(address))
    except (TimeoutError, BlockingIOError) as error:
        sock.close()
        raise ConnectTimeout(f"no answer to the attempt to connect for {timeout_s:g} s") from error
    except OSError as error:
        sock.close()
        raise connect_error(error) from error


def listen(address: Address) -> SocketListener:
    """Listen at a path; a socket that a dead process left there is replaced, a living one is not.

    Raises:
        ConnectError: somebody listens there already, or the path cannot be used.
    """
    sock = bind(address)
    try:
        return SocketListener(sock, address, path=address.name)
    except OSError as error:
        sock.close()
        raise connect_error(error) from error


def bind(address: Address) -> socket.socket:
    """A socket bound to a path, mode 0600; whoever listens at it removes the path at the end (`remove`).

    Raises:
        ConnectError: somebody listens there already, or the path cannot be used.
    """
    sock = _socket()
    try:
        try:
            _bind_private(sock, address.name)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not _abandoned(address.name):
                raise
            Path(address.name).unlink()
            _bind_private(sock, address.name)
    except OSError as error:
        sock.close()
        raise connect_error(error) from error
    return sock


def remove(path: str) -> None:
    """Remove a socket's path, unless somebody else has begun to listen there meanwhile."""
    try:
        if _abandoned(path):
            Path(path).unlink()
    except OSError:
        return


def _bind_private(sock: socket.socket, path: str) -> None:
    """Bind so that the path never exists with wider rights: the mask decides the mode at the moment of creation."""
    mask = os.umask(0o177)
    try:
        sock.bind(path)
    finally:
        os.umask(mask)


def _socket() -> socket.socket:
    if sys.platform == "win32":
        raise ConnectError("this system's Python has no unix sockets")
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


def _abandoned(path: str) -> bool:
    """Whether a path is a socket that nobody listens at."""
    if not stat.S_ISSOCK(Path(path).stat().st_mode):
        return False
    with _socket() as probe:
        try:
            probe.settimeout(1.0)
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
