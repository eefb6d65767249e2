"""Commands of groups: link up with other workers, add a tensor over them. Every token of a tensor split adds dozens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from wireherd.errors import BadRequest
from wireherd.obs.log import get_logger
from wireherd.protocol.messages_peer import (
    GroupCloseRequest,
    GroupJoinRequest,
    GroupJoinResponse,
    GroupOpenRequest,
    GroupOpenResponse,
    GroupReduceRequest,
)
from wireherd.protocol.table import Opcode
from wireherd.worker import scratch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wireherd.worker.buffers import Span
    from wireherd.worker.state import State

log = get_logger(__name__)


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
    span = state.buffers.resolve(message.tensor)
    _check(state, span)
    start, stop = span.start, span.start + span.nbytes
    if span.buffer.view is not None:
        group.run(group.bind(message.tensor, message.mask, span.buffer.view[start:stop]))
        return
    part = memoryview(bytearray(scratch.read(state.scratch, state.types, span, start, span.nbytes)))
    group.run(group.bind(message.tensor, message.mask, part, keep=False))
    scratch.write(state.scratch, state.types, span, start, part)


def _check(state: State, span: Span) -> None:
    """Refuse what cannot be added as one row of numbers."""
    if span.type != state.types.f32:
        raise BadRequest(f"tensor {span.record.label!r} is not F32: only that is added over a group")
    if not _contiguous(span.record.ne, span.strides):
        raise BadRequest(f"tensor {span.record.label!r} is not contiguous: it cannot be added over a group")


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


HANDLERS: Final[dict[Opcode, Callable[[State, Any], Any]]] = {
    Opcode.GROUP_OPEN: group_open,
    Opcode.GROUP_JOIN: group_join,
    Opcode.GROUP_REDUCE: group_reduce,
    Opcode.GROUP_CLOSE: group_close,
}
