"""The collectives of stock 8.0: exactly two servers, one of which dials the other (COMM_INIT in ggml-rpc.cpp).

The rules are the stock client's: rank 0 listens on its RPC port plus 1,000, rank 1 dials the host as the client spells
it, and only sums to which both have a part go this way. The servers check nothing of that by themselves: tensors that
differ would leave both waiting for ever.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from wireherd.errors import WireherdError
from wireherd.obs.log import get_logger
from wireherd.protocol.messages_stock import CommAllreduceRequest, CommFreeRequest, CommInitRequest
from wireherd.protocol.table import Opcode
from wireherd.transport import connect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wireherd.client.device import RemoteDevice
    from wireherd.client.endpoint import Endpoint
    from wireherd.protocol.fields import Message
    from wireherd.transport import Address

log = get_logger(__name__)

RANKS: Final = 2
#: from the RPC port to the port of the group
_PORT_OFFSET: Final = 1000
_MAX_PORT: Final = 65535
_HOST_BYTES: Final = 64
_WAKE_S: Final = 2.0


def possible(endpoints: Sequence[Endpoint]) -> bool:
    """Whether these are two stock servers that have collectives."""
    return len(endpoints) == RANKS and all(
        not endpoint.herd and endpoint.dialect.has(Opcode.COMM_INIT) for endpoint in endpoints
    )


def form(members: Sequence[RemoteDevice]) -> tuple[StockReducer | None, str]:
    """Let the two link up; the group, or None and why not.

    Raises:
        WorkerError: one of them died.
    """
    first, second = (member.endpoint for member in members)
    address = first.session.address
    host = address.host.encode()
    if not host or len(host) >= _HOST_BYTES or address.port + _PORT_OFFSET > _MAX_PORT:
        return None, f"server {first.name} cannot be dialled by another one"
    port = address.port + _PORT_OFFSET
    asked = [
        (
            member.endpoint,
            member.endpoint.session.begin(
                CommInitRequest(member.facts.index, rank, RANKS, port, host.ljust(_HOST_BYTES, b"\0"))
            ),
        )
        for rank, member in enumerate(members)
    ]
    group = StockReducer(members)
    reached = bool(second.session.finish(asked[1][1]).ok)
    if not reached:
        _wake(replace(address, port=port))
    if bool(first.session.finish(asked[0][1]).ok) and reached:
        log.info("servers %s and %s add up tensors among themselves", first.name, second.name)
        return group, ""
    group.close()
    return None, f"server {second.name} cannot reach {address.host}:{port} of server {first.name}"


class StockReducer:
    """A group of two stock servers."""

    def __init__(self, members: Sequence[RemoteDevice]) -> None:
        self.endpoints: Sequence[Endpoint] = [member.endpoint for member in members]
        self._devices = [member.facts.index for member in members]

    def messages(self, tensors: Sequence[int], computed: Sequence[bool]) -> Sequence[Message] | None:
        """One COMM_ALLREDUCE each, where both have a part: the servers add whatever is there."""
        if not all(computed):
            return None
        return [
            CommAllreduceRequest(device, endpoint.records.record(tensor))
            for endpoint, device, tensor in zip(self.endpoints, self._devices, tensors, strict=True)
        ]

    def close(self) -> None:
        """Leave the group."""
        for endpoint, device in zip(self.endpoints, self._devices, strict=True):
            if endpoint.alive:
                try:
                    endpoint.post(CommFreeRequest(device), flush=True)
                except WireherdError as error:
                    endpoint.fail(error)


def _wake(address: Address) -> None:
    """Rank 0 waits for ever for a peer that cannot come: dial it and hang up, and it gives up."""
    try:
        connect(address, _WAKE_S).close()
    except WireherdError as error:
        log.debug("rank 0 at %s cannot be woken: %s", address, error)
