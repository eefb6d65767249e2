"""Graphs for tests: tensor structs laid out by hand, as a worker lays out what it received."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from wireherd.ggml import memory
from wireherd.ggml.handles import NativeBackend, NativeBuffer
from wireherd.ggml.library import Library
from wireherd.ggml.structs import TENSOR, TENSOR_SIZE

COMPUTE = 16


class Rows:
    """`n` zeroed tensor structs side by side, 64-byte aligned."""

    def __init__(self, n: int) -> None:
        self._block = np.zeros(n * TENSOR_SIZE + 64, np.uint8)
        start = -memory.address_of(self._block) % 64
        self.rows = self._block[start : start + n * TENSOR_SIZE].view(TENSOR)
        self.address = memory.address_of(self._block) + start

    def at(self, index: int) -> int:
        return self.address + index * TENSOR_SIZE


class Chain:
    """x(0) = left + right, x(i) = x(i - 1) + right: `n` ADD nodes of `width` floats, nodes first, then left and right."""

    def __init__(self, lib: Library, buffer: NativeBuffer, n: int, width: int) -> None:
        add = lib.numbering().ops.index("ADD")
        self.n, self.width, self.block = n, width, Rows(n + 2)
        rows = self.block.rows
        rows["ne"] = [width, 1, 1, 1]
        rows["nb"] = [4, 4 * width, 4 * width, 4 * width]
        rows["buffer"] = buffer.ptr
        rows["data"] = buffer.base + np.arange(n + 2, dtype=np.uint64) * np.uint64(4 * width)
        rows["op"][:n] = add
        rows["flags"][:n] = COMPUTE
        rows["src"][:n, 0] = [self.block.at(n), *(self.block.at(i) for i in range(n - 1))]
        rows["src"][:n, 1] = self.block.at(n + 1)
        whole = np.frombuffer(buffer.view(), np.float32)[: (n + 2) * width].reshape(n + 2, width)
        self.values = whole
        whole[:n] = np.nan
        whole[n] = np.arange(width)
        whole[n + 1] = 1


@contextmanager
def cpu(lib: Library, size: int, threads: int = 1) -> Iterator[tuple[NativeBackend, NativeBuffer]]:
    device = lib.cpu_device()
    backend = device.init_backend()
    backend.set_threads(threads)
    buffer = device.buffer_type().alloc(size)
    try:
        yield backend, buffer
    finally:
        buffer.close()
        backend.close()
