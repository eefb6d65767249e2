"""The transport room: bytes from one end to the other, over TCP, unix sockets, byte-stream devices or memory.

A `Stream` is a blocking, ordered, reliable stream of bytes with timeouts; a `Listener` accepts streams; an `Address`
names either. This room hides what platforms lack and turns every operating system error into a `TransportError`.
It must never know a command, a frame or a version.

Start at `stream.py` (the interface), then `dial.py` (`connect` and `listen` by address) and `tcp.py`; devices begin at
`device.py`.
"""

from __future__ import annotations

from wireherd.transport.address import Address
from wireherd.transport.dial import connect, listen
from wireherd.transport.stream import Listener, Stream

__all__ = ["Address", "Listener", "Stream", "connect", "listen"]
