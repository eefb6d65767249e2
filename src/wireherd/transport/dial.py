"""Opening streams and listeners by address: the one place that knows which schemes exist."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from wireherd.transport import device, memory, tcp, unix
from wireherd.transport.address import DEVICE, MEMORY, TCP, UNIX, Address

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from wireherd.transport.stream import Listener, Stream

CONNECT_TIMEOUT_S: Final = 5.0

_CONNECT: Final[Mapping[str, Callable[[Address, float], Stream]]] = MappingProxyType(
    {
        TCP: tcp.connect,
        UNIX: unix.connect,
        MEMORY: memory.connect,
        DEVICE: device.connect,
    }
)
_LISTEN: Final[Mapping[str, Callable[[Address], Listener]]] = MappingProxyType(
    {
        TCP: tcp.listen,
        UNIX: unix.listen,
        MEMORY: memory.listen,
        DEVICE: device.listen,
    }
)


def connect(address: Address | str, timeout_s: float = CONNECT_TIMEOUT_S) -> Stream:
    """Open a stream to `address`.

    Raises:
        UsageError: `address` is a text that is no address.
        ConnectTimeout: nobody answered within `timeout_s`.
        ConnectError: the peer refused, or cannot be reached.
    """
    parsed = Address.parse(address) if isinstance(address, str) else address
    return _CONNECT[parsed.scheme](parsed, timeout_s)


def listen(address: Address | str) -> Listener:
    """Listen at `address`; port 0 takes a free port, which the listener's `address` tells.

    Raises:
        UsageError: `address` is a text that is no address.
        ConnectError: it is in use, or not an address of this machine.
    """
    parsed = Address.parse(address) if isinstance(address, str) else address
    return _LISTEN[parsed.scheme](parsed)
