"""Linked pairs of streams of every kind, and the plain reading and writing that tests do with them."""

from __future__ import annotations

import socket
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wireherd.errors import ConnectError, PeerClosed
from wireherd.transport import Address, connect, device, listen, memory, tcp
from wireherd.transport.sockets import PortableStream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wireherd.transport import Listener, Stream

#: kinds of streams that `linked` makes: the transports, and the stream that systems without sendmsg get
KINDS: Final = (
    ("memory", "tcp", "tcp6", "portable")
    if sys.platform == "win32"
    else (
        "memory",
        "tcp",
        "tcp6",
        "portable",
        "unix",
        "handed",
        "device-pty",
        "device-socketpair",
    )
)


@contextmanager
def listening(scheme: str) -> Iterator[Listener]:
    """A listener at a free address of a transport: memory, tcp, tcp6 or unix."""
    if scheme == "unix":
        with tempfile.TemporaryDirectory(prefix="wireherd-") as folder, listen(f"unix:{Path(folder) / 's'}") as found:
            yield found
        return
    address = {"memory": "memory:0", "tcp": "127.0.0.1:0", "tcp6": "[::1]:0"}[scheme]
    with listen(address) as found:
        yield found


@contextmanager
def linked(kind: str) -> Iterator[tuple[Stream, Stream]]:
    """Two ends of one connection: the connecting and the accepting one. Closed at the end.

    "portable" are the streams of systems without sendmsg; "handed" is a socket taken over with `tcp.from_socket`;
    "device-pty" and "device-socketpair" are connections over a byte-stream device, for which those stand in.
    """
    if kind.startswith("device-"):
        with (
            device_ends(kind.removeprefix("device-")) as paths,
            listen(f"device:{paths[1]}") as listener,
            connect(f"device:{paths[0]}") as left,
            listener.accept(5.0) as right,
        ):
            yield left, right
        return
    if kind in {"portable", "handed"}:
        near, far = socket.socketpair()
        near.settimeout(3)  # as somebody else may have left it
        ends: tuple[Stream, Stream] = (
            (PortableStream(near, "portable"), PortableStream(far, "portable"))
            if kind == "portable"
            else (tcp.from_socket(near), tcp.from_socket(far))
        )
        with ends[0], ends[1]:
            yield ends
        return
    with listening(kind) as listener, connect(listener.address) as left, listener.accept(5.0) as right:
        yield left, right


@contextmanager
def device_ends(kind: str) -> Iterator[tuple[str, str]]:
    """The two ends of a byte-stream device, as paths: of a pseudo-terminal ("pty") or a socket pair ("socketpair")."""
    if sys.platform == "win32":
        raise ConnectError("this system has no such devices")
    import os  # noqa: PLC0415 - POSIX only
    import pty  # noqa: PLC0415

    if kind == "pty":
        far, near = pty.openpty()
        try:
            yield os.ttyname(near), f"/dev/fd/{far}"
        finally:
            device.close_links()  # the names come back as those of other devices
            os.close(near)
            os.close(far)
        return
    one, other = socket.socketpair()
    with one, other:
        try:
            yield f"/dev/fd/{one.fileno()}", f"/dev/fd/{other.fileno()}"
        finally:
            device.close_links()


def memory_pair(capacity: int = memory.CAPACITY) -> tuple[Stream, Stream]:
    """Two linked ends in memory that each hold `capacity` bytes a direction."""
    return memory.pair(capacity)


def read_exactly(stream: Stream, size: int) -> bytes:
    """Receive `size` bytes.

    Raises:
        PeerClosed: the stream ended before.
    """
    data = bytearray(size)
    view = memoryview(data)
    while view:
        received = stream.recv_into(view)
        if not received:
            raise PeerClosed(f"the stream ended {len(view)} bytes early")
        view = view[received:]
    return bytes(data)


def read_to_end(stream: Stream) -> bytes:
    """Receive until the stream ends."""
    data = bytearray()
    chunk = memoryview(bytearray(1 << 16))
    while received := stream.recv_into(chunk):
        data += chunk[:received]
    return bytes(data)


def has_ipv6() -> bool:
    """Whether this machine has IPv6 on loopback."""
    try:
        with listen(Address("tcp", "::1", 0)):
            return True
    except OSError:
        return False
    except Exception:  # noqa: BLE001 - any failure to listen means no
        return False
