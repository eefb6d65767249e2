"""Two servers that add up a tensor as stock 8.0 does, so that stock clients and servers can have it with ours.

The rules are stock's (COMM_INIT and COMM_ALLREDUCE in `ggml/src/ggml-rpc/ggml-rpc.cpp`): rank 0 listens at a port of
its own and rank 1 dials it; 24 bytes of capabilities go each way, rank 1's first, all zero where there is no RDMA; then
bare data, without head or number: rank 0 sends before it receives, rank 1 after. From `BF16_ELEMENTS` on it travels as
BF16, while each keeps its own part unrounded, so the two sums may differ in their last bits. That is how stock does it.

What stock lacks is added where the other end does not notice: limits on every wait, and a look at who connects.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import numpy as np

from wireherd.collective.allreduce import SLOWEST
from wireherd.collective.reduce import add_in_order
from wireherd.errors import ConnectError, PeerLost, ReadTimeout, TransportError
from wireherd.obs.log import get_logger
from wireherd.transport import Address, connect, listen

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from wireherd.transport import Stream

log = get_logger(__name__)

CAPS_SIZE: Final = 24
#: tensors with at least as many elements travel as BF16
BF16_ELEMENTS: Final = 32768
#: for the other server to show up, and for its data
JOIN_S: Final = 5.0
IO_S: Final = 30.0
_RETRY_S: Final = 0.05


class Pair:
    """One end of a standing pair. `shutdown` may come from any thread."""

    def __init__(self, stream: Stream, rank: int) -> None:
        """Exchange capabilities over a fresh connection.

        Raises:
            TransportError: the other server left or was silent.
        """
        self._stream = stream
        self._rank = rank
        stream.settimeout(JOIN_S)
        mine, theirs = bytes(CAPS_SIZE), memoryview(bytearray(CAPS_SIZE))
        if rank:
            stream.sendall([mine])
            self._fill(theirs)
        else:
            self._fill(theirs)
            stream.sendall([mine])
        stream.settimeout(IO_S)

    def reduce(self, part: memoryview) -> None:
        """Add the other server's part to `part`, writable bytes of f32[n].

        Raises:
            PeerLost: it left, or was silent for `IO_S`.
        """
        own = np.frombuffer(part, np.float32)
        short = len(own) >= BF16_ELEMENTS
        data = to_bf16(own).data.cast("B") if short else part
        came = memoryview(bytearray(len(data)))
        try:
            if self._rank:
                self._fill(came)
                self._stream.sendall([data])
            else:
                self._stream.sendall([data])
                self._fill(came)
        except TransportError as error:
            raise PeerLost.of(1 - self._rank, self._stream.peer, f"left the pair of servers: {error}") from error
        other = from_bf16(np.frombuffer(came, np.uint16)) if short else np.frombuffer(came, np.float32)
        add_in_order([own, other], own)

    def _fill(self, view: memoryview) -> None:
        end = time.monotonic() + IO_S + len(view) / SLOWEST
        while view:
            if time.monotonic() >= end:
                raise ReadTimeout(f"it sends less than {SLOWEST >> 10} KiB/s")
            count = self._stream.recv_into(view)
            if not count:
                raise ConnectError("it closed the connection")
            view = view[count:]

    def shutdown(self) -> None:
        """End the pair and wake whoever waits on it."""
        self._stream.shutdown()

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()


def await_pair(own: Address, permitted: Callable[[Address], str | None]) -> Pair:
    """Be rank 0: listen at `own` until the other server has come, at most `JOIN_S`.

    Args:
        own: an address of this machine, never a wildcard, with the port of the pair.
        permitted: says why a server at an address is not wanted, or None.

    Raises:
        TransportError: it cannot be listened there, or nobody came.
    """
    end = time.monotonic() + JOIN_S
    with listen(own) as listener:
        while (left := end - time.monotonic()) > 0:
            stream = listener.accept(left)
            why = permitted(Address.parse(stream.peer))
            if why is None:
                try:
                    return _pair(stream, 0)
                except TransportError as error:  # somebody who looked in; the other server may still come
                    log.info("%s connected, but not as a server: %s", stream.peer, error)
                    continue
            log.warning("%s wants to be the second of two servers and %s", stream.peer, why)
            stream.close()
    raise ReadTimeout(f"the other server did not come within {JOIN_S:g} s")


def dial_pair(address: Address) -> Pair:
    """Be rank 1: dial rank 0, which may not listen yet, for at most `JOIN_S`.

    Raises:
        TransportError: it cannot be reached.
    """
    end = time.monotonic() + JOIN_S
    while True:
        try:
            return _pair(connect(address, max(_RETRY_S, end - time.monotonic())), 1)
        except ConnectError:
            if time.monotonic() + _RETRY_S >= end:
                raise
            time.sleep(_RETRY_S)


def _pair(stream: Stream, rank: int) -> Pair:
    try:
        return Pair(stream, rank)
    except BaseException:
        stream.close()
        raise


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of the nearest BF16, to even; a NaN stays one (`ggml_fp32_to_bf16`)."""
    bits = values.view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    result: NDArray[np.uint16] = np.where(nan, (bits >> np.uint32(16)) | np.uint32(64), rounded).astype(np.uint16)
    return result


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The values of BF16 bits."""
    result: NDArray[np.float32] = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return result
