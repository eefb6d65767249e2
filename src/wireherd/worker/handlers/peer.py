"""Commands of groups: link up with other workers, add a tensor over them. Every token of a tensor split adds dozens."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from wireherd.collective.pair import Pair, await_pair, dial_pair
from wireherd.errors import BadRequest, NotAllowed, TransportError
from wireherd.obs.log import get_logger
from wireherd.protocol.messages_peer import (
    GroupCloseRequest,
    GroupJoinRequest,
    GroupJoinResponse,
    GroupOpenRequest,
    GroupOpenResponse,
    GroupReduceRequest,
)
from wireherd.protocol.messages_stock import (
    CommAllreduceRequest,
    CommFreeRequest,
    CommInitRequest,
    CommInitResponse,
)
from wireherd.protocol.table import Opcode
from wireherd.transport import Address
from wireherd.transport.address import TCP
from wireherd.worker import scratch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wireherd.worker.buffers import Span
    from wireherd.worker.state import State

log = get_logger(__name__)

#: of a stock pair: its ranks, and how far its port lies above the RPC port
_RANKS: Final = 2
_PORT_OFFSET: Final = 1000
_MAX_PORT: Final = 65535


def group_open(state: State, message: GroupOpenRequest) -> GroupOpenResponse:
    """Take a rank; links from higher ranks may come from now on."""
    state.devices.get(message.device)
    state.groups.open(message.slot, message.group, message.rank, message.world)
    return GroupOpenResponse(state.addresses)


def group_join(state: State, message: GroupJoinRequest) -> GroupJoinResponse:
    """Link up with the other members."""
    group = state.groups.get(message.slot)
    reason = group.join(message.sessions, message.addresses, state.permitted)
    if reason:
        log.warning("group %d was not formed: %s", message.slot, reason)
        return GroupJoinResponse(0, reason)
    log.info("group %d: rank %d of %d", message.slot, group.rank, group.world)
    return GroupJoinResponse(1, "")


def group_reduce(state: State, message: GroupReduceRequest) -> None:
    """Add the tensor over the group. What it takes is bound at the first sight of a tensor and a mask."""
    group = state.groups.get(message.slot)
    bound = group.reduction(message.tensor, message.mask)
    if bound is not None:
        group.run(bound)
        return
    span = _row(state, message.tensor)
    start, stop = span.start, span.start + span.nbytes
    if span.buffer.view is not None:
        group.run(group.bind(message.tensor, message.mask, span.buffer.view[start:stop]))
        return
    part = scratch.read(state.scratch, state.types, span, start, span.nbytes)
    group.run(group.bind(message.tensor, message.mask, part, keep=False))
    scratch.write(state.scratch, state.types, span, start, part)


def _row(state: State, raw: bytes) -> Span:
    """A tensor that can be added as one row of numbers."""
    span = state.buffers.resolve(raw)
    if span.type != state.types.f32:
        raise BadRequest(f"tensor {span.record.label!r} is not F32: only that is added over workers")
    if not _contiguous(span.record.ne, span.strides):
        raise BadRequest(f"tensor {span.record.label!r} is not contiguous: it cannot be added over workers")
    return span


def _contiguous(ne: Sequence[int], strides: Sequence[int]) -> bool:
    dense = 4
    for count, stride in zip(ne, strides, strict=True):
        if count > 1 and stride != dense:
            return False
        dense *= count
    return True


def group_close(state: State, message: GroupCloseRequest) -> None:
    """Leave a group."""
    state.groups.close(message.slot)


def comm_init(state: State, message: CommInitRequest) -> CommInitResponse:
    """Link up with one other server as stock 8.0 does. A stock client takes a no, and adds by itself.

    The client's word opens no port but this worker's own plus 1,000, and leads nowhere that links may not go.
    """
    _stock_only(state)
    state.devices.get(message.device)
    try:
        if state.pair is not None or message.world != _RANKS or message.rank >= _RANKS:
            raise BadRequest("two servers at a time can form a pair")
        state.pair = _form(state, message)
    except (BadRequest, TransportError) as error:
        log.warning("no pair of servers: %s", error)
        return CommInitResponse(0)
    log.info("rank %d of a pair of servers", message.rank)
    return CommInitResponse(1)


def _form(state: State, message: CommInitRequest) -> Pair:
    if message.rank:
        host = message.host.split(b"\0", 1)[0].decode("ascii", "replace")
        address = Address(TCP, "127.0.0.1" if host == "localhost" else host, message.port)
        why = state.permitted(address)
        if why is not None or not 1024 <= message.port <= _MAX_PORT:
            raise BadRequest(f"{address} {why or 'is no port for a pair'}")
        return dial_pair(address)
    own = next((Address.parse(text) for text in state.addresses), None)
    if own is None or own.scheme != TCP or own.port + _PORT_OFFSET > _MAX_PORT:
        raise BadRequest("this worker's client did not come over TCP")
    if message.port != own.port + _PORT_OFFSET:
        raise BadRequest(f"a pair is formed at port {own.port + _PORT_OFFSET}, not {message.port}")
    return await_pair(replace(own, port=message.port), state.permitted)


def comm_allreduce(state: State, message: CommAllreduceRequest) -> None:
    """Add a tensor over the pair."""
    _stock_only(state)
    if state.pair is None:
        raise BadRequest("there is no other server to add a tensor with")
    span = _row(state, message.tensor)
    start = span.start
    view = span.buffer.view
    if not span.nbytes:
        return
    if view is not None:
        state.pair.reduce(view[start : start + span.nbytes])
        return
    part = scratch.read(state.scratch, state.types, span, start, span.nbytes)
    state.pair.reduce(part)
    scratch.write(state.scratch, state.types, span, start, part)


def comm_free(state: State, message: CommFreeRequest) -> None:
    """Leave the pair."""
    del message
    _stock_only(state)
    state.leave_pair()


def _stock_only(state: State) -> None:
    if state.herd:
        raise NotAllowed("wireherd's own clients form groups, not pairs")


HANDLERS: Final[dict[Opcode, Callable[[State, Any], Any]]] = {
    Opcode.GROUP_OPEN: group_open,
    Opcode.GROUP_JOIN: group_join,
    Opcode.GROUP_REDUCE: group_reduce,
    Opcode.GROUP_CLOSE: group_close,
    Opcode.COMM_INIT: comm_init,
    Opcode.COMM_ALLREDUCE: comm_allreduce,
    Opcode.COMM_FREE: comm_free,
}
