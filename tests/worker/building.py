"""Graphs made by ggml's own builders, as records that a client would send."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from wireherd import ggml
from wireherd.ggml import memory
from wireherd.ggml.structs import TENSOR, InitParams
from wireherd.protocol.dialect import dialect_for
from wireherd.protocol.messages_graph import GraphComputeRequest, SupportsOpRequest
from wireherd.protocol.messages_stock import (
    AllocBufferRequest,
    BufferClearRequest,
    BufferGetBaseRequest,
    GetTensorRequest,
    SetTensorRequest,
)
from wireherd.protocol.table import Opcode
from wireherd.protocol.tensor import HERD_TENSOR
from wireherd.protocol.version import Version
from wireherd.worker.dispatch import Dispatcher
from wireherd.worker.settings import WorkerSettings

P, I64, INT, F32, BOOL, SIZE = (
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int,
    ctypes.c_float,
    ctypes.c_bool,
    ctypes.c_size_t,
)
HERD = dialect_for(Version(8, 0), herd=True)
COMPUTE = 16


def herd_dispatcher(**settings: Any) -> Dispatcher:
    return Dispatcher(ggml.load(), WorkerSettings(threads=1, **settings), HERD)


def do(dispatcher: Dispatcher, opcode: Opcode, message: Any) -> Any:
    return dispatcher.handle(opcode, message, None)


def alloc(dispatcher: Dispatcher, size: int, device: int = 0) -> tuple[int, int]:
    """A zeroed buffer: handle and base."""
    handle = do(dispatcher, Opcode.ALLOC_BUFFER, AllocBufferRequest(device, size)).remote_ptr
    do(dispatcher, Opcode.BUFFER_CLEAR, BufferClearRequest(handle, 0))
    return handle, do(dispatcher, Opcode.BUFFER_GET_BASE, BufferGetBaseRequest(handle)).base_ptr


def put(dispatcher: Dispatcher, row: Any, data: Any, offset: int = 0) -> None:
    raw = (
        np.ascontiguousarray(data).view(np.uint8).reshape(-1).tobytes() if isinstance(data, np.ndarray) else bytes(data)
    )
    message = SetTensorRequest(row.tobytes(), 0, offset)
    sink = dispatcher.sink(Opcode.SET_TENSOR, message, len(raw))
    sink[:] = raw
    dispatcher.received(Opcode.SET_TENSOR, message, sink)


def fetch(dispatcher: Dispatcher, row: Any, size: int, offset: int = 0) -> bytes:
    return bytes(do(dispatcher, Opcode.GET_TENSOR, GetTensorRequest(row.tobytes(), offset, size)))


class Builder:
    """A ggml context without memory; `call` runs one of its builders."""

    def __init__(self) -> None:
        self.lib = ggml.load()
        path = self.lib.path
        self._dll = ctypes.CDLL(str(path / "libggml-base.so" if path.is_dir() else path))
        self._context = self.lib.c.ggml_init(InitParams(4 << 20, 0, True))
        self.types = {name: number for number, name in enumerate(self.lib.numbering().types)}

    def close(self) -> None:
        self.lib.c.ggml_free(self._context)

    def tensor(self, kind: str, *ne: int) -> int:
        dims = [*ne, *([1] * (4 - len(ne)))]
        return int(self.lib.c.ggml_new_tensor_4d(self._context, self.types[kind], *dims))

    def call(self, name: str, *arguments: Any) -> int:
        """Arguments are ctypes values; plain ints are tensors."""
        function = getattr(self._dll, name)
        function.restype = P
        plain = [P(argument) if isinstance(argument, int) else argument for argument in arguments]
        return int(function(P(self._context), *plain))

    def set(self, name: str, *arguments: Any) -> None:
        """Call a function that changes a tensor and takes no context."""
        function = getattr(self._dll, name)
        function.restype = None
        function(*[P(argument) if isinstance(argument, int) else argument for argument in arguments])


class Wire:
    """Records of a graph, placed in a dispatcher's buffer."""

    def __init__(self, results: Sequence[int], dispatcher: Dispatcher | None) -> None:
        found: dict[int, np.void] = {}
        order: list[int] = []

        def visit(pointer: int) -> None:
            if pointer in found:
                return
            struct = memory.gather(np.array([pointer], np.uint64))[0]
            found[pointer] = struct
            for source in struct["src"]:
                if source:
                    visit(int(source))
            if struct["view_src"]:
                visit(int(struct["view_src"]))
            if struct["op"]:
                order.append(pointer)

        for result in results:
            visit(result)
        self.node_ids = np.array(order, np.uint64)
        self.rows = np.zeros(len(found), HERD_TENSOR)
        self.place_of = {pointer: index for index, pointer in enumerate(found)}
        for index, (pointer, struct) in enumerate(found.items()):
            row = self.rows[index]
            for field in ("type", "ne", "nb", "op", "op_params", "flags", "src", "view_src", "view_offs", "name"):
                row[field] = struct[field]
            row["id"] = pointer
            if row["op"]:
                row["flags"] |= COMPUTE
        self.handle = self.base = 0
        if dispatcher is not None:
            self._place(dispatcher)

    def _place(self, dispatcher: Dispatcher) -> None:
        sizes = [int(dispatcher_size(row)) for row in self.rows]
        starts, total = [], 256
        for row, size in zip(self.rows, sizes, strict=True):
            starts.append(total)
            total += 0 if row["view_src"] else -(-size // 64) * 64 + 64
        self.handle, self.base = alloc(dispatcher, total + 256)
        self.rows["buffer"] = self.handle
        for index, row in enumerate(self.rows):
            origin = int(row["view_src"])
            at = starts[self.place_of[origin]] if origin else starts[index]
            row["data"] = self.base + at + int(row["view_offs"])

    def row(self, pointer: int) -> Any:
        return self.rows[self.place_of[pointer]]

    def compute(self, uid: int = 0) -> GraphComputeRequest:
        return GraphComputeRequest(0, uid, self.node_ids, self.rows)

    def question(self) -> SupportsOpRequest:
        return SupportsOpRequest(0, self.node_ids, self.rows)


def dispatcher_size(row: Any) -> int:
    """`ggml_nbytes` of a record, by ggml itself."""
    struct = np.zeros(1, TENSOR)
    for field in ("type", "ne", "nb"):
        struct[field] = row[field]
    return int(ggml.load().c.ggml_nbytes(struct.ctypes.data))


def record(handle: int, address: int, *ne: int, kind: int = 0, nb: tuple[int, ...] | None = None):
    """A dense F32 tensor (or of another type's number) at an address."""
    row = np.zeros((), HERD_TENSOR)
    dims = [*ne, *([1] * (4 - len(ne)))]
    row["id"], row["type"], row["buffer"], row["data"], row["ne"] = 1, kind, handle, address, dims
    row["nb"] = nb or (4, 4 * dims[0], 4 * dims[0] * dims[1], 4 * dims[0] * dims[1] * dims[2])
    return row


def send(dispatcher: Dispatcher, opcode: Opcode, message: object, data: bytes) -> None:
    sink = dispatcher.sink(opcode, message, len(data))
    assert len(sink) == len(data)
    sink[:] = data
    dispatcher.received(opcode, message, sink)
