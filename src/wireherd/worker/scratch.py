"""Single tensors as structs, for devices whose memory is not this process's: one struct, filled again for each call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from wireherd.bridge.rebuild import Block
from wireherd.ggml import memory
from wireherd.worker.facts import FLAGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wireherd.protocol.tensor import TensorRecord
    from wireherd.worker.buffers import Span
    from wireherd.worker.facts import Types

#: a tensor and its sources
_STRUCTS: Final = 11
#: largest staging memory that is kept for the next call, bytes
_KEEP: Final = 4 << 20


class Scratch:
    """Tensor structs for one call at a time."""

    def __init__(self) -> None:
        self._block = Block(_STRUCTS)
        self._staging: np.ndarray[tuple[int], np.dtype[np.uint8]] = np.empty(0, np.uint8)

    def staging(self, size: int) -> memoryview:
        """Memory of this process for `size` bytes, valid until the next call; a large piece is not kept."""
        if size > _KEEP:
            return np.empty(size, np.uint8).data
        if len(self._staging) < size:
            self._staging = np.empty(size, np.uint8)
        return self._staging.data[:size]

    def _clear(self) -> None:
        self._block.rows.view(np.uint8)[:] = 0

    def _write(self, index: int, record: TensorRecord, number: int, strides: Sequence[int]) -> int:
        row = self._block.rows[index]
        row["type"] = number
        row["ne"] = record.ne
        row["nb"] = strides
        row["op_params"] = record.op_params
        row["flags"] = record.flags & FLAGS
        row["name"] = record.name[:63]
        return self._block.at(index)

    def whole(self, span: Span) -> int:
        """Address of a struct that shows a placed tensor as a row of bytes would not: with its type and shape."""
        self._clear()
        address = self._write(0, span.record, span.type, span.strides)
        row = self._block.rows[0]
        row["buffer"] = span.buffer.native.ptr
        row["data"] = span.buffer.native.base + span.start
        return address

    def bytes_of(self, span: Span, types: Types) -> int:
        """Address of a struct that shows a placed tensor's span as plain bytes, whatever its strides."""
        self._clear()
        row = self._block.rows[0]
        row["type"] = types.i8
        row["ne"] = (span.nbytes, 1, 1, 1)
        row["nb"] = (1, span.nbytes, span.nbytes, span.nbytes)
        row["buffer"] = span.buffer.native.ptr
        row["data"] = span.buffer.native.base + span.start
        return self._block.at(0)

    def unplaced(self, op: int, parts: Sequence[tuple[TensorRecord, int, Sequence[int]] | None]) -> int:
        """Address of a struct with sources, none of them placed: (record, type, strides) of it, then of its sources."""
        self._clear()
        for index, part in enumerate(parts):
            if part is not None:
                address = self._write(index, *part)
                if index:
                    self._block.rows[0]["src"][index - 1] = address
        self._block.rows[0]["op"] = op
        return self._block.at(0)


def write(scratch: Scratch, types: Types, span: Span, start: int, data: memoryview) -> None:
    """Write bytes into a buffer on a device; `start` counts from the start of the buffer."""
    size = data.nbytes
    if size:
        tensor = scratch.bytes_of(span, types)
        span.buffer.native.tensor_set(tensor, memory.address_of(data), start - span.start, size)


def read(scratch: Scratch, types: Types, span: Span, start: int, size: int) -> memoryview:
    """Read bytes of a buffer on a device into memory of this process."""
    data = memoryview(bytearray(size))
    if size:
        tensor = scratch.bytes_of(span, types)
        span.buffer.native.tensor_get(tensor, memory.address_of(data), start - span.start, size)
    return data
