"""Commands that move bytes in and out of tensors. The hot ones: every token comes and goes through here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wireherd.errors import BadRequest, GgmlFailed, InternalError, OutOfBounds
from wireherd.protocol.messages_stock import (
    CopyTensorRequest,
    CopyTensorResponse,
    GetTensor2DRequest,
    GetTensorRequest,
    InitTensorRequest,
    MemsetTensorRequest,
    SetTensor2DRequest,
    SetTensorHashRequest,
    SetTensorHashResponse,
    SetTensorRequest,
)
from wireherd.protocol.table import Opcode
from wireherd.worker import buffers, scratch
from wireherd.worker.buffers import part

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from wireherd.worker.buffers import Buffer, Span
    from wireherd.worker.state import State


def set_tensor_sink(state: State, message: SetTensorRequest, size: int) -> memoryview:
    """Where the data of SET_TENSOR goes: straight into the tensor, if its memory is ours."""
    span = state.buffers.resolve(message.tensor)
    start = part(span, message.offset, size)
    view = span.buffer.view
    return state.scratch.staging(size) if view is None else view[start : start + size]


def set_tensor(state: State, message: SetTensorRequest, view: memoryview) -> None:
    """The data of SET_TENSOR is there."""
    span = state.buffers.resolve(message.tensor)
    if span.buffer.view is None:
        scratch.write(state.scratch, state.types, span, part(span, message.offset, len(view)), view)


def get_tensor(state: State, message: GetTensorRequest) -> memoryview:
    """Part of a tensor, not copied if its memory is ours: it must be sent before the next command runs."""
    span = state.buffers.resolve(message.tensor)
    size = message.size
    start = part(span, message.offset, size)
    view = span.buffer.view
    if view is None:
        return scratch.read(state.scratch, state.types, span, start, size)
    return view[start : start + size]


def memset_tensor(state: State, message: MemsetTensorRequest) -> None:
    """Fill part of a tensor with one byte."""
    span = state.buffers.resolve(message.tensor)
    start = part(span, message.offset, message.size)
    if not message.size:
        return
    if span.buffer.view is not None:
        buffers.fill(span, start, message.size, message.value)
    else:
        tensor = state.scratch.bytes_of(span, state.types)
        span.buffer.native.tensor_memset(tensor, message.value, message.offset, message.size)


def init_tensor(state: State, message: InitTensorRequest) -> None:
    """Let the device prepare a tensor; ordinary memory needs nothing."""
    span = state.buffers.resolve(message.tensor)
    if span.buffer.view is None:
        try:
            span.buffer.native.init_tensor(state.scratch.whole(span))
        except GgmlFailed as error:
            raise InternalError(str(error)) from error


def set_tensor_hash(state: State, message: SetTensorHashRequest) -> SetTensorHashResponse:
    """Nothing is kept by its hash, so the answer is no; what it asks about must still make sense."""
    part(state.buffers.resolve(message.tensor), message.offset, 0)
    return SetTensorHashResponse(0)


def copy_tensor(state: State, message: CopyTensorRequest) -> CopyTensorResponse:
    """Copy a tensor to another one; the two may overlap, and may lie on different devices."""
    source, destination = state.buffers.resolve(message.src), state.buffers.resolve(message.dst)
    if source.nbytes != destination.nbytes or source.type != destination.type:
        raise BadRequest(
            f"tensor {source.record.label!r} and {destination.record.label!r} differ in size or type: no copy"
        )
    if source.nbytes:
        if source.buffer.view is not None and destination.buffer.view is not None:
            buffers.move(source, destination, source.nbytes)
        else:
            _write_all(state, destination, _read_all(state, source))
    return CopyTensorResponse(1)


def _read_all(state: State, span: Span) -> memoryview:
    view = span.buffer.view
    if view is None:
        return scratch.read(state.scratch, state.types, span, span.start, span.nbytes)
    return view[span.start : span.start + span.nbytes]


def _write_all(state: State, span: Span, data: memoryview) -> None:
    view = span.buffer.view
    if view is None:
        scratch.write(state.scratch, state.types, span, span.start, data)
    else:
        view[span.start : span.start + span.nbytes] = data


def _rows(state: State, message: SetTensor2DRequest | GetTensor2DRequest) -> tuple[Span, int, int]:
    """Check rows at a stride; gives the tensor, where the first row begins, and all rows' bytes together."""
    span = state.buffers.resolve(message.tensor)
    size, count, stride = message.size, message.n_copies, message.stride
    if not count:
        raise BadRequest("no rows")
    if count > 1 and stride < size:
        raise BadRequest("rows overlap")
    if message.offset > span.nbytes or (count - 1) * stride + size > span.nbytes - message.offset:
        raise OutOfBounds(
            f"tensor {span.record.label!r} does not have {count} rows of {size} bytes at {message.offset}"
        )
    return span, span.start + message.offset, size * count


def _strided(buffer: Buffer, start: int, message: SetTensor2DRequest | GetTensor2DRequest) -> NDArray[np.uint8]:
    shape = (message.n_copies, message.size)
    rows: NDArray[np.uint8] = np.ndarray(shape, np.uint8, buffer.view, start, (message.stride, 1))
    return rows


def set_tensor_2d_sink(state: State, message: SetTensor2DRequest, size: int) -> memoryview:
    """Where the rows of SET_TENSOR_2D go: straight into the tensor if they lie side by side there, else beside it."""
    span, start, total = _rows(state, message)
    if size != total:
        raise BadRequest(f"{total} bytes of rows were announced, {size} came")
    view = span.buffer.view
    if view is not None and (message.stride == message.size or message.n_copies == 1):
        return view[start : start + total]
    return state.scratch.staging(total)


def set_tensor_2d(state: State, message: SetTensor2DRequest, view: memoryview) -> None:
    """The rows of SET_TENSOR_2D are there."""
    span, start, total = _rows(state, message)
    if not total:
        return
    if span.buffer.view is None:
        for row in range(message.n_copies):
            data = view[row * message.size : (row + 1) * message.size]
            scratch.write(state.scratch, state.types, span, start + row * message.stride, data)
    elif message.stride != message.size and message.n_copies > 1:
        _strided(span.buffer, start, message)[:] = np.frombuffer(view, np.uint8).reshape(message.n_copies, message.size)


def get_tensor_2d(state: State, message: GetTensor2DRequest) -> memoryview:
    """Rows of a tensor, side by side."""
    span, start, total = _rows(state, message)
    view = span.buffer.view
    if not total:
        return memoryview(b"")
    if view is not None:
        if message.stride == message.size or message.n_copies == 1:
            return view[start : start + total]
        return np.ascontiguousarray(_strided(span.buffer, start, message)).data.cast("B")
    rows = [
        scratch.read(state.scratch, state.types, span, start + row * message.stride, message.size)
        for row in range(message.n_copies)
    ]
    return memoryview(b"".join(rows))


HANDLERS: Final[dict[Opcode, Callable[[State, Any], Any]]] = {
    Opcode.SET_TENSOR_HASH: set_tensor_hash,
    Opcode.GET_TENSOR: get_tensor,
    Opcode.COPY_TENSOR: copy_tensor,
    Opcode.INIT_TENSOR: init_tensor,
    Opcode.MEMSET_TENSOR: memset_tensor,
    Opcode.GET_TENSOR_2D: get_tensor_2d,
}

SINKS: Final[dict[Opcode, Callable[[State, Any, int], memoryview]]] = {
    Opcode.SET_TENSOR: set_tensor_sink,
    Opcode.SET_TENSOR_2D: set_tensor_2d_sink,
}

RECEIVERS: Final[dict[Opcode, Callable[[State, Any, memoryview], None]]] = {
    Opcode.SET_TENSOR: set_tensor,
    Opcode.SET_TENSOR_2D: set_tensor_2d,
}
