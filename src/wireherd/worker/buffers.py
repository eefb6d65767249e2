"""Buffers of one session: handles, synthetic addresses, and every bounds check of a single tensor.

Nothing the peer says is an address of this process. Handles are random; each buffer gets a range of a made-up address
space with gaps between, in which the client computes as if it were real, and from which only `Span`s and the columns
for graphs lead back to memory. One place checks bounds: `resolve` for a tensor, `validate.py` for a graph.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

from wireherd.errors import GgmlFailed, LimitExceeded, NoSuchBuffer, OutOfBounds, OutOfMemory
from wireherd.ggml import memory
from wireherd.protocol import tensor
from wireherd.worker.records import ADDRESS_LIMIT, tensor_span, tensor_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from wireherd.ggml import NativeBuffer
    from wireherd.protocol.dialect import Dialect
    from wireherd.protocol.tensor import TensorRecord
    from wireherd.worker.devices import Device
    from wireherd.worker.facts import Types

#: where made-up addresses begin, how they are aligned, and how far apart two buffers are at least
_FIRST_BASE: Final = 1 << 32
_PAGE: Final = 4096
_GAP: Final = 1 << 20
#: buffers one session may have at once
MAX_BUFFERS: Final = 4096
#: records remembered; a model has a few thousand tensors, a token a dozen
_MAX_MEMO: Final = 16384
#: least memory behind a buffer, so that an empty one has an address too
_LEAST: Final = 64


class Memory(Protocol):
    """The account that all sessions share: the owner's limit on buffers."""

    def reserve(self, size: int) -> bool:
        """Take `size` bytes from the limit; False if they are not there."""

    def release(self, size: int) -> None:
        """Give them back."""

    def free(self) -> int | None:
        """Bytes left; None without a limit."""


class OwnMemory:
    """A limit that this process has for itself."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._used = 0

    def reserve(self, size: int) -> bool:
        """Take `size` bytes from the limit; False if they are not there."""
        if self._limit is not None and size > self._limit - self._used:
            return False
        self._used += size
        return True

    def release(self, size: int) -> None:
        """Give them back."""
        self._used -= size

    def free(self) -> int | None:
        """Bytes left; None without a limit."""
        return None if self._limit is None else self._limit - self._used


class Buffer:
    """One buffer.

    Attributes:
        handle: what the peer calls it, random, never 0.
        base: where it begins in the session's made-up address space; a multiple of 4096.
        size: bytes.
        device: where it lies.
        native: ggml's buffer.
        view: its bytes; None if they are not this process's memory.
    """

    __slots__ = ("base", "device", "handle", "native", "size", "view")

    def __init__(self, handle: int, base: int, size: int, device: Device, native: NativeBuffer) -> None:
        self.handle = handle
        self.base = base
        self.size = size
        self.device = device
        self.native = native
        self.view: memoryview | None = native.view()[:size] if native.is_host else None


class Span(NamedTuple):
    """Where a checked tensor lies: `nbytes` bytes from `start` on in `buffer`. `type` is the library's number."""

    buffer: Buffer
    start: int
    nbytes: int
    type: int
    strides: tuple[int, int, int, int]
    record: TensorRecord


class Columns(NamedTuple):
    """All buffers by ascending handle, for looking up many tensors at once. `local` is where each one really lies."""

    buffers: tuple[Buffer, ...]
    handle: NDArray[np.uint64]
    base: NDArray[np.int64]
    size: NDArray[np.int64]
    local: NDArray[np.uint64]
    native: NDArray[np.uint64]


class Buffers:
    """The buffers of one session.

    Args:
        types: the library's types.
        account: the owner's limit.
    """

    def __init__(self, types: Types, account: Memory) -> None:
        self._types = types
        self._account = account
        self._by_handle: dict[int, Buffer] = {}
        self._memo: dict[bytes, Span] = {}
        self._columns: Columns | None = None
        self._dialect: Dialect | None = None
        self._numbers: Sequence[int] | None = None
        self._narrow = False

    def speak(self, dialect: Dialect, numbers: Sequence[int] | None) -> None:
        """Read records of `dialect` from now on; `numbers` maps the peer's type numbers, None if they are ours."""
        self._dialect = dialect
        self._numbers = numbers
        self._narrow = not dialect.herd
        self._memo.clear()

    def __len__(self) -> int:
        return len(self._by_handle)

    def alloc(self, device: Device, size: int) -> Buffer:
        """Make a buffer; nothing is touched before every limit agrees.

        Raises:
            LimitExceeded: this session has too many buffers.
            OutOfMemory: the device or the owner's limit has no room.
        """
        if len(self._by_handle) >= MAX_BUFFERS:
            raise LimitExceeded(f"a session may have {MAX_BUFFERS} buffers")
        free, total = device.memory()
        # The system counts memory as used only once it is written to, so what this session has must be added up here.
        held = sum(buffer.size for buffer in self._by_handle.values() if buffer.device is device) if device.host else 0
        if size > device.buffer_type.max_size or size > free or (device.host and held + size > total):
            raise OutOfMemory(f"{device.native.name} has no room for {size} bytes")
        base = self._place(size, max(device.buffer_type.alignment, _PAGE))
        if not self._account.reserve(size):
            raise OutOfMemory(f"{size} bytes are more than this worker's owner allows")
        try:
            native = device.buffer_type.alloc(max(size, _LEAST))
        except GgmlFailed as error:
            self._account.release(size)
            raise OutOfMemory(str(error)) from error
        buffer = Buffer(self._new_handle(), base, size, device, native)
        self._by_handle[buffer.handle] = buffer
        self._columns = None
        return buffer

    def _new_handle(self) -> int:
        while True:
            handle = secrets.randbits(64)
            if handle and handle not in self._by_handle:
                return handle

    def _place(self, size: int, alignment: int) -> int:
        """The lowest free range of the address space that holds `size` bytes and gaps around them."""
        start = _FIRST_BASE
        for buffer in sorted(self._by_handle.values(), key=lambda buffer: buffer.base):
            if start + size + _GAP <= buffer.base:
                break
            start = -(-(buffer.base + buffer.size + _GAP) // alignment) * alignment
        if start + size + _GAP > ADDRESS_LIMIT:
            raise OutOfMemory("this session's address space is full")
        return start

    def get(self, handle: int) -> Buffer:
        """The buffer of that handle.

        Raises:
            NoSuchBuffer: this session has none.
        """
        buffer = self._by_handle.get(handle)
        if buffer is None:
            raise NoSuchBuffer(f"this session has no buffer {handle:#x}")
        return buffer

    def free(self, handle: int) -> Buffer:
        """Give a buffer back; returns it (closed), so that whatever refers to it can be dropped.

        Raises:
            NoSuchBuffer: this session has none.
        """
        buffer = self.get(handle)
        del self._by_handle[handle]
        self._forget(buffer)
        return buffer

    def _forget(self, buffer: Buffer) -> None:
        self._memo.clear()
        self._columns = None
        buffer.view = None
        buffer.native.close()
        self._account.release(buffer.size)

    def close(self) -> None:
        """Give all buffers back."""
        while self._by_handle:
            self._forget(self._by_handle.popitem()[1])

    def resolve(self, raw: bytes) -> Span:
        """Check a tensor record and find its memory; remembered by the record's bytes.

        Raises:
            BadRequest: no such type, or impossible sizes.
            NoSuchBuffer: its buffer is not one of this session's.
            OutOfBounds: it does not lie wholly in its buffer.
        """
        span = self._memo.get(raw)
        return self._resolve(raw) if span is None else span

    def _resolve(self, raw: bytes) -> Span:
        if self._dialect is None:
            raise NoSuchBuffer("no dialect was agreed on")
        record = tensor.unpack(raw, self._dialect)
        buffer = self.get(record.buffer)
        number = tensor_type(self._types, self._numbers, record)
        nbytes, strides = tensor_span(self._types, number, record, narrow=self._narrow)
        start = record.data - buffer.base
        # also when it has no elements: a zero-size tensor may lie at the very end, not beyond
        if start < 0 or start > buffer.size or nbytes > buffer.size - start:
            raise OutOfBounds(f"tensor {record.label!r} lies outside its buffer")
        span = Span(buffer, start, nbytes, number, strides, record)
        if len(self._memo) >= _MAX_MEMO:
            self._memo.clear()
        self._memo[raw] = span
        return span

    def columns(self) -> Columns:
        """The buffers as columns; rebuilt only after one came or went."""
        if self._columns is None:
            buffers = tuple(self._by_handle[handle] for handle in sorted(self._by_handle))
            self._columns = Columns(
                buffers,
                np.array([buffer.handle for buffer in buffers], np.uint64),
                np.array([buffer.base for buffer in buffers], np.int64),
                np.array([buffer.size for buffer in buffers], np.int64),
                np.array([buffer.native.base for buffer in buffers], np.uint64),
                np.array([buffer.native.ptr for buffer in buffers], np.uint64),
            )
        return self._columns


def part(span: Span, offset: int, size: int) -> int:
    """Where bytes `offset` to `offset + size` of a tensor begin in its buffer.

    Raises:
        OutOfBounds: the tensor is not that long.
    """
    if offset > span.nbytes or size > span.nbytes - offset:
        raise OutOfBounds(f"tensor {span.record.label!r} has {span.nbytes} bytes, not {size} at {offset}")
    return span.start + offset


def fill(span: Span, start: int, size: int, value: int) -> None:
    """Set bytes of a buffer in this process's memory."""
    memory.fill(span.buffer.native.base + start, value, size)


def move(source: Span, destination: Span, size: int) -> None:
    """Copy bytes between buffers in this process's memory; they may overlap."""
    memory.copy(destination.buffer.native.base + destination.start, source.buffer.native.base + source.start, size)
