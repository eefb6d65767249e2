"""Commands about buffers: make, find, clear, free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from wireherd.errors import OutOfMemory
from wireherd.obs.log import get_logger
from wireherd.protocol.messages_stock import (
    AllocBufferRequest,
    AllocBufferResponse,
    BufferClearRequest,
    BufferGetBaseRequest,
    BufferGetBaseResponse,
    FreeBufferRequest,
)
from wireherd.protocol.table import Opcode

if TYPE_CHECKING:
    from collections.abc import Callable

    from wireherd.worker.state import State

log = get_logger(__name__)


def alloc_buffer(state: State, message: AllocBufferRequest) -> AllocBufferResponse:
    """Make a buffer. Stock has an answer for "no room": a handle of zero."""
    device = state.devices.get(message.device)
    try:
        buffer = state.buffers.alloc(device, message.size)
    except OutOfMemory as error:
        if state.herd:
            raise
        log.warning("a buffer was refused: %s", error)
        return AllocBufferResponse(0, 0)
    return AllocBufferResponse(buffer.handle, buffer.size)


def get_base(state: State, message: BufferGetBaseRequest) -> BufferGetBaseResponse:
    """Where a buffer begins, in the session's made-up address space."""
    return BufferGetBaseResponse(state.buffers.get(message.remote_ptr).base)


def free_buffer(state: State, message: FreeBufferRequest) -> None:
    """Give a buffer back, and drop the graphs and reductions that touch it."""
    state.graphs.forget(state.buffers.get(message.remote_ptr))
    state.groups.forget()
    state.buffers.free(message.remote_ptr)


def buffer_clear(state: State, message: BufferClearRequest) -> None:
    """Fill a buffer with one byte."""
    state.buffers.get(message.remote_ptr).native.clear(message.value)


HANDLERS: Final[dict[Opcode, Callable[[State, Any], Any]]] = {
    Opcode.ALLOC_BUFFER: alloc_buffer,
    Opcode.BUFFER_GET_BASE: get_base,
    Opcode.FREE_BUFFER: free_buffer,
    Opcode.BUFFER_CLEAR: buffer_clear,
}
