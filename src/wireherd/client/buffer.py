"""The buffer vtable: memory on a worker (`ggml_backend_buffer_i`).

One table serves all buffers of a device; slots get the buffer's address and find its handle by it. What a slot
sends is copied before it returns, so the caller's memory is its own again at once. Slots that older peers have no
command for are missing from the table, and ggml does with the others what they would do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from wireherd.errors import RemoteError, WorkerRefused
from wireherd.ggml import memory, vtable
from wireherd.ggml.enums import Status
from wireherd.ggml.structs import TensorOffset
from wireherd.protocol.messages_stock import (
    AllocBufferRequest,
    AllocBufferResponse,
    BufferClearRequest,
    BufferGetBaseRequest,
    BufferGetBaseResponse,
    FreeBufferRequest,
    GetTensor2DRequest,
    GetTensorRequest,
    InitTensorRequest,
    MemsetTensorRequest,
    SetTensor2DRequest,
    SetTensorRequest,
)
from wireherd.protocol.table import Opcode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wireherd.client.endpoint import DeviceFacts, Endpoint
    from wireherd.client.graphs import GraphStore
    from wireherd.ggml.library import Library

#: rows and fills are made and sent in pieces of this size
PIECE_BYTES: Final = 16 << 20
#: what stock pads quantised rows to (CUDA's MATRIX_ROW_PADDING)
ROW_PADDING: Final = 512


class RemoteBuffer(NamedTuple):
    """One buffer on the worker."""

    handle: int
    #: where it begins, in the worker's address space
    base: int
    size: int


class RemoteBuffers:
    """All buffers of one device; its methods are the slots."""

    def __init__(self, lib: Library, endpoint: Endpoint, facts: DeviceFacts, graphs: GraphStore) -> None:
        self._lib = lib
        self._endpoint = endpoint
        self._device = facts.index
        self._graphs = graphs
        self._buffers: dict[int, RemoteBuffer] = {}
        self._table = vtable.bind(lib.abi.BufferInterface, self, on_error=endpoint.on_error)

    def __len__(self) -> int:
        return len(self._buffers)

    def alloc(self, buffer_type: int, size: int) -> int:
        """Make a buffer of `size` bytes for the buffer type at that address; 0 if the worker refuses."""
        endpoint = self._endpoint
        if not endpoint.alive:
            return 0
        try:
            made = endpoint.call(AllocBufferRequest(self._device, size), AllocBufferResponse)
        except RemoteError as error:
            endpoint.refuse_allocation(self._device, size, error)
            return 0
        if not made.remote_ptr:
            endpoint.refuse_allocation(self._device, size)
            return 0
        base = endpoint.call(BufferGetBaseRequest(made.remote_ptr), BufferGetBaseResponse).base_ptr
        if made.remote_size < size or not base:
            raise WorkerRefused(endpoint.name, f"it made a buffer of {made.remote_size} bytes where {size} were asked")
        pointer: int = self._lib.c.ggml_backend_buffer_init(buffer_type, self._table, 0, made.remote_size)
        self._buffers[pointer] = RemoteBuffer(made.remote_ptr, base, made.remote_size)
        endpoint.adopt_buffer(pointer, made.remote_ptr)
        return pointer

    # slots

    def free_buffer(self, buffer: int) -> None:
        """Give the memory back; graphs that touch it are forgotten on both ends."""
        gone = self._buffers.pop(buffer, None)
        if gone is None:
            return
        endpoint = self._endpoint
        with endpoint.lock:  # no graph may go out between what is forgotten here and the command
            endpoint.drop_buffer(buffer, gone.handle)
            if endpoint.alive:
                endpoint.post(FreeBufferRequest(gone.handle), flush=True)

    def get_base(self, buffer: int) -> int:
        """Where the buffer begins, in the worker's address space."""
        return self._buffers[buffer].base

    def memset_tensor(self, _buffer: int, tensor: int, value: int, offset: int, size: int) -> None:
        """Fill part of a tensor with one byte; before 5.0 by sending the bytes."""
        endpoint = self._endpoint
        if endpoint.failure is not None:
            return
        record = endpoint.records.record(tensor)
        if endpoint.dialect.has(Opcode.MEMSET_TENSOR):
            endpoint.post(MemsetTensorRequest(record, offset, size, value))
            return
        piece = bytes([value]) * min(size, PIECE_BYTES)
        for start in range(0, size, PIECE_BYTES):
            endpoint.post(SetTensorRequest(record, 0, offset + start), piece[: size - start])

    def set_tensor(self, _buffer: int, tensor: int, data: int, offset: int, size: int) -> None:
        """Write to a tensor; waits for nothing."""
        if self._endpoint.failure is None:
            self._endpoint.write(tensor, data, offset, size)

    def get_tensor(self, _buffer: int, tensor: int, data: int, offset: int, size: int) -> None:
        """Read from a tensor, now; zeros after a failure."""
        endpoint = self._endpoint
        if endpoint.failure is not None:
            memory.fill(data, 0, size)
            return
        try:
            endpoint.read(GetTensorRequest(endpoint.records.record(tensor), offset, size), memory.view(data, size))
        except BaseException:
            memory.fill(data, 0, size)
            raise

    def cpy_tensor(self, _buffer: int, source: int, destination: int) -> bool:
        """Copy a tensor within the worker; false if it lies elsewhere, and ggml reads and writes instead."""
        return self._endpoint.copy(source, destination, wait=True)

    def clear(self, buffer: int, value: int) -> None:
        """Fill the whole buffer with one byte."""
        if self._endpoint.failure is None:
            self._endpoint.post(BufferClearRequest(self._buffers[buffer].handle, value))


class RowSlots(RemoteBuffers):
    """With rows at a stride, from 8.0 on: what scatters row-split weights in one command."""

    def set_tensor_2d(
        self, _buffer: int, tensor: int, data: int, offset: int, size: int, rows: int, stride: int, stride_data: int
    ) -> None:
        """Write `rows` rows of `size` bytes, `stride` apart in the tensor and `stride_data` apart at `data`."""
        endpoint = self._endpoint
        if endpoint.failure is not None:
            return
        record = endpoint.records.record(tensor)
        source = _rows_at(data, size, rows, stride_data)
        step = max(1, PIECE_BYTES // max(size, 1)) if stride_data != size else rows
        for first in range(0, rows, step):
            piece = np.ascontiguousarray(source[first : first + step])
            message = SetTensor2DRequest(record, offset + first * stride, size, len(piece), stride)
            endpoint.post(message, piece.reshape(-1).data)

    def get_tensor_2d(
        self, _buffer: int, tensor: int, data: int, offset: int, size: int, rows: int, stride: int, stride_data: int
    ) -> None:
        """Read `rows` rows of `size` bytes, `stride` apart in the tensor, to `data` with `stride_data` between."""
        endpoint = self._endpoint
        target = _rows_at(data, size, rows, stride_data)
        if endpoint.failure is not None:
            target[:] = 0
            return
        record = endpoint.records.record(tensor)
        step = max(1, PIECE_BYTES // max(size, 1)) if stride_data != size else rows
        try:
            for first in range(0, rows, step):
                part = target[first : first + step]
                landing = part if part.flags.c_contiguous else np.empty(part.shape, np.uint8)
                message = GetTensor2DRequest(record, offset + first * stride, size, len(part), stride)
                endpoint.read(message, landing.reshape(-1).data)
                if landing is not part:
                    part[:] = landing
        except BaseException:
            target[:] = 0
            raise


class PaddedSlots(RemoteBuffers):
    """With `init_tensor`, for devices that pad quantised rows."""

    def init_tensor(self, _buffer: int, tensor: int) -> int:
        """Let the device clear the padding of a tensor that was just placed, where there is any."""
        endpoint = self._endpoint
        if endpoint.failure is None and is_padded(self._lib, tensor):
            endpoint.post(InitTensorRequest(endpoint.records.record(tensor)))
        return Status.SUCCESS


class PaddedRowSlots(PaddedSlots, RowSlots):
    """With both."""


def buffers_for(lib: Library, endpoint: Endpoint, facts: DeviceFacts, graphs: GraphStore) -> RemoteBuffers:
    """Make the table that a device's dialect and kind of memory call for."""
    rows = endpoint.dialect.has(Opcode.SET_TENSOR_2D)
    kinds = (RemoteBuffers, RowSlots) if facts.plain_alloc_size else (PaddedSlots, PaddedRowSlots)
    return kinds[rows](lib, endpoint, facts, graphs)


def is_padded(lib: Library, tensor: int) -> bool:
    """Whether a device may pad this tensor: quantised, no view, and rows that are no multiple of 512 elements.

    The same test as in `ggml_backend_rpc_buffer_init_tensor` (ggml-rpc.cpp): only then is the server asked.
    """
    if memory.read_u64(tensor + TensorOffset.NE) % ROW_PADDING == 0:
        return False
    if memory.read_u64(tensor + TensorOffset.VIEW_SRC):
        return False
    block_sizes, _ = lib.type_sizes()
    return bool(block_sizes[memory.read_i32(tensor + TensorOffset.TYPE)] > 1)


def _rows_at(address: int, size: int, rows: int, stride: int) -> NDArray[np.uint8]:
    """Memory of this process as (rows, size), `stride` bytes from row to row."""
    flat = memory.array(address, (rows - 1) * stride + size if rows else 0, np.uint8)
    return np.lib.stride_tricks.as_strided(flat, (rows, size), (stride, 1))
