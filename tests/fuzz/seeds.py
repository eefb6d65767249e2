"""Honest requests of every kind, and the ways to spoil them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np

from wireherd.protocol.messages_graph import GraphComputeRequest, GraphRecomputeRequest, SupportsOpRequest
from wireherd.protocol.messages_herd import DeviceInfoRequest, PingRequest
from wireherd.protocol.messages_peer import (
    GroupCloseRequest,
    GroupOpenRequest,
    GroupReduceRequest,
)
from wireherd.protocol.messages_stock import (
    AllocBufferRequest,
    BufferClearRequest,
    BufferGetBaseRequest,
    CommAllreduceRequest,
    CommFreeRequest,
    CopyTensorRequest,
    DeviceCountRequest,
    FreeBufferRequest,
    GetAlignmentRequest,
    GetAllocSizeRequest,
    GetDeviceMemoryRequest,
    GetMaxSizeRequest,
    GetTensor2DRequest,
    GetTensorRequest,
    InitTensorRequest,
    MemsetTensorRequest,
    SetTensor2DRequest,
    SetTensorHashRequest,
    SetTensorRequest,
)
from wireherd.protocol.numbering import STOCK_NUMBERING
from wireherd.protocol.table import BY_MESSAGE, Opcode, Reply
from wireherd.protocol.version import NEWEST

if TYPE_CHECKING:
    from fuzz.wire import Wire

BUFFER_BYTES = 1 << 20
GRAPHS = frozenset({Opcode.GRAPH_COMPUTE, Opcode.SUPPORTS_OP})
_SPECIAL = (0, 1, 2, 3, 7, 8, 63, 255, 256, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 12 << 30, 1 << 40,
            1 << 47, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)  # fmt: skip

#: operation, shapes of its sources (type, ne), shape of the result, op_params as i32
_OPERATIONS: tuple[tuple[str, tuple[tuple[str, tuple[int, ...]], ...], tuple[int, ...], dict[int, int]], ...] = (
    ("ADD", (("f32", (32, 4)), ("f32", (32, 4))), (32, 4), {}),
    ("MUL", (("f32", (32, 4)), ("f32", (32, 1))), (32, 4), {}),
    ("MUL_MAT", (("q8_0", (64, 16)), ("f32", (64, 3))), (16, 3), {}),
    ("MUL_MAT", (("f16", (64, 16)), ("f32", (64, 3))), (16, 3), {}),
    ("GET_ROWS", (("f32", (32, 8)), ("i32", (4,))), (32, 4), {}),
    ("SET_ROWS", (("f32", (32, 4)), ("i64", (4,))), (32, 8), {}),
    ("RMS_NORM", (("f32", (32, 4)),), (32, 4), {0: 0x3727C5AC}),
    ("SOFT_MAX", (("f32", (32, 4)),), (32, 4), {0: 0x3F800000}),
    ("ROPE", (("f32", (32, 2, 4)), ("i32", (4,))), (32, 2, 4), {1: 32, 5: 0x461C4000, 6: 0x3F800000, 8: 0x3F800000}),
    ("CPY", (("f32", (32, 4)), ("f32", (32, 4))), (32, 4), {}),
    ("CONT", (("f32", (32, 4)),), (32, 4), {}),
    ("SCALE", (("f32", (32, 4)),), (32, 4), {0: 0x3F800000}),
    ("UNARY", (("f32", (32, 4)),), (32, 4), {0: 10}),
    ("GLU", (("f32", (32, 4)), ("f32", (32, 4))), (32, 4), {0: 2}),
    ("FLASH_ATTN_EXT", (("f32", (32, 4, 2)), ("f16", (32, 64, 1)), ("f16", (32, 64, 1))), (32, 2, 4), {0: 0x3E000000}),
    ("ARGSORT", (("f32", (32, 4)),), (32, 4), {}),
    ("CONCAT", (("f32", (32, 2)), ("f32", (32, 2))), (32, 4), {0: 1}),
    ("MAP_CUSTOM1", (("f32", (32, 4)),), (32, 4), {}),
    ("CUSTOM", (), (32, 4), {0: 0x41414141}),
)
_TYPES = {"f32": (1, 4), "f16": (1, 2), "q8_0": (32, 34), "i32": (1, 4), "i64": (1, 8)}


class Seeds:
    """Honest requests for one connection, made over a buffer of its own."""

    def __init__(self, wire: Wire, rng: random.Random) -> None:
        self.wire = wire
        self.random = rng
        stock = STOCK_NUMBERING[NEWEST]
        self.ops = wire.numbers.get("op", stock.ops)
        self.types = wire.numbers.get("type", stock.types)
        self.handle, self.base = wire.buffer(BUFFER_BYTES)
        self.graphs = [self._graph(*row) for row in _OPERATIONS if row[0] in self.ops]
        self._answered: list[tuple[int, bytes]] = []
        self._silent: list[tuple[int, bytes]] = []
        for message, bulk in self._messages():
            opcode = BY_MESSAGE[type(message)].opcode
            if not wire.dialect.has(opcode):
                continue
            kept = wire.dialect.encode(message) + bulk
            quiet = wire.dialect.row(opcode).reply is Reply.NONE
            (self._silent if quiet else self._answered).append((opcode, kept))

    def draw(self, *, answered: bool) -> tuple[int, bytes]:
        """One honest request, with or without an answer to come."""
        return self.random.choice(self._answered if answered else self._silent)

    def _tensor(self, record: Any, name: str, shape: tuple[int, ...], offset: int) -> None:
        block, size = _TYPES[name]
        ne = [*shape, 1, 1, 1][:4]
        nb = [size, size * ne[0] // block]
        nb += [nb[1] * ne[1], nb[1] * ne[1] * ne[2]]
        record["type"] = self.types.index(name)
        record["buffer"], record["data"] = self.handle, self.base + offset
        record["ne"], record["nb"] = ne, nb
        record["flags"] = 16

    def _graph(self, op: str, sources: Any, result: tuple[int, ...], params: dict[int, int]) -> tuple[Any, Any]:
        rows = np.zeros(len(sources) + 1, self.wire.dialect.tensor_dtype)
        for index, (name, shape) in enumerate(sources):
            self._tensor(rows[index], name, shape, index * 65536)
        rows["id"] = np.arange(1, len(rows) + 1)
        node = rows[-1]
        self._tensor(node, "i32" if op == "ARGSORT" else "f32", result, len(sources) * 65536)
        node["op"] = self.ops.index(op)
        node["src"][: len(sources)] = rows["id"][:-1]
        for index, value in params.items():
            node["op_params"][index] = np.uint32(value).view(np.int32)
        return np.array([len(rows)], np.dtype("<u8")), rows

    def _messages(self) -> list[tuple[Any, bytes]]:
        row = self.wire.row(self.handle, self.base)
        other = self.wire.row(self.handle, self.base + 8192)
        nothing = bytes(10 * self.wire.dialect.tensor_dtype.itemsize)
        found: list[tuple[Any, bytes]] = [
            (AllocBufferRequest(0, 4096), b""),
            (GetAlignmentRequest(0), b""),
            (GetMaxSizeRequest(0), b""),
            (BufferGetBaseRequest(self.handle), b""),
            (FreeBufferRequest(self.handle), b""),
            (BufferClearRequest(self.handle, 0), b""),
            (SetTensorRequest(row, 0, 0), bytes(1024)),
            (SetTensorHashRequest(row, 0, 1), b""),
            (GetTensorRequest(row, 0, 1024), b""),
            (CopyTensorRequest(row, other), b""),
            (GetDeviceMemoryRequest(0), b""),
            (InitTensorRequest(row), b""),
            (GetAllocSizeRequest(0, row, nothing), b""),
            (DeviceCountRequest(), b""),
            (GraphRecomputeRequest(0, 7), b""),
            (MemsetTensorRequest(row, 0, 1024, 5), b""),
            (SetTensor2DRequest(row, 0, 64, 4, 256), bytes(256)),
            (GetTensor2DRequest(row, 0, 64, 4, 256), b""),
            (DeviceInfoRequest(0), b""),
            (PingRequest(1), b""),
            (CommAllreduceRequest(0, row), b""),
            (CommFreeRequest(0), b""),
            (GroupOpenRequest(3, 0, self.random.randbytes(16), 1, 2), b""),
            (GroupReduceRequest(3, 3, row), b""),
            (GroupCloseRequest(3), b""),
        ]
        for ids, rows in self.graphs:
            found.append((GraphComputeRequest(0, self.random.randrange(3), ids, rows), b""))
            found.append((SupportsOpRequest(0, ids, rows), b""))
        return found


def _spoil_tensors(rng: random.Random, raw: bytearray, dtype: np.dtype[np.void], start: int) -> None:
    """Replace fields of the tensor records that begin at `start`."""
    count = (len(raw) - start) // dtype.itemsize
    if count < 1:
        return
    rows = np.frombuffer(memoryview(raw)[start : start + count * dtype.itemsize], dtype)
    rows = rows.copy()
    for _ in range(rng.randint(1, 3)):
        name = rng.choice([*(dtype.names or ()), "op", "src", "data", "ne", "nb", "type"])
        at = rng.randrange(count)
        cell = rows[name]
        if cell.dtype.kind not in "ui":
            continue
        value = rng.choice((rng.choice(_SPECIAL), rng.randrange(120), int(np.ravel(cell[rng.randrange(count)])[0])))
        flat = cell[at].reshape(-1) if cell.ndim > 1 else cell[at : at + 1]
        width = 8 * cell.dtype.itemsize
        fitted = np.array([value & ((1 << width) - 1)], f"u{cell.dtype.itemsize}").view(cell.dtype)
        flat[rng.randrange(len(flat))] = fitted[0]
    raw[start : start + count * dtype.itemsize] = rows.tobytes()


def _places(payload: bytes, dtype: np.dtype[np.void], opcode: int) -> list[int]:
    """Offsets that may be overwritten without changing where things lie: all but the counts of a graph."""
    counts: set[int] = set()
    if opcode in GRAPHS:
        first = 12 if opcode == Opcode.GRAPH_COMPUTE else 4
        second = len(payload) % dtype.itemsize - 4
        counts = {*range(first, first + 4), *range(second, second + 4)}
    return [at for at in range(len(payload)) if at not in counts]


def mutated(rng: random.Random, payload: bytes, dtype: np.dtype[np.void], opcode: int, *, breaking: bool) -> bytes:
    """A payload with some of it replaced; now and then unharmed, so that what follows finds a live state.

    Only with `breaking` may sizes and counts change, which ends a session.
    """
    dice = rng.random()
    if dice < 0.1 or not payload:
        return payload
    raw = bytearray(payload)
    places = range(len(raw)) if breaking else _places(payload, dtype, opcode)
    if dice < 0.55 and len(raw) >= dtype.itemsize:
        # records stand at the end, behind a header shorter than one of them; other fields may follow them
        head = len(raw) % dtype.itemsize
        _spoil_tensors(rng, raw, dtype, head if opcode in GRAPHS or head == 4 else 0)
    elif dice < 0.8:
        width = rng.choice((1, 4, 8))
        value = (rng.choice(_SPECIAL) & ((1 << (8 * width)) - 1)).to_bytes(width, "little")
        at = rng.choice(places)
        for place, byte in zip(range(at, min(at + width, len(raw))), value, strict=False):
            if place in places:
                raw[place] = byte
    elif not breaking or dice < 0.9:
        for _ in range(rng.randint(1, 8)):
            raw[rng.choice(places)] ^= 1 << rng.randrange(8)
    elif dice < 0.95:
        del raw[rng.randrange(len(raw)) :]
    else:
        raw += rng.randbytes(rng.randint(1, 400))
    return bytes(raw)
