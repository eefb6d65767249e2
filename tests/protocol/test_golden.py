"""Bytes as upstream's code of 3.6 and 6.0 lays them out. No build of these is at hand: this is all they are proved by.

Written down from the structs of `ggml-rpc.cpp` at those versions, without anything of this package.
"""

from __future__ import annotations

import struct

import numpy as np
import pytest

from wireherd.protocol import messages_graph as graph
from wireherd.protocol import messages_stock as stock
from wireherd.protocol.dialect import dialect_for
from wireherd.protocol.framing import STOCK_REQUEST, STOCK_RESPONSE, write_frame
from wireherd.protocol.table import Opcode, Reply
from wireherd.protocol.version import Version

V36, V60 = Version(3, 6, 1), Version(6, 0, 0)


def tensor(use_count: int) -> bytes:
    """An `rpc_tensor` with a different value in every field."""
    return (
        struct.pack("<QIQ4I4I", 0x1111, 2, 0x2222, 32, 3, 1, 1, 18, 18, 54, 54)
        + struct.pack("<I16ii", 36, *range(16), 16)
        + struct.pack("<10QQQQ", *range(100, 110), 0x3333, 64, 0x4444)
        + b"blk.0.attn_q".ljust(64, b"\0")
        + struct.pack("<i", use_count)
    )


#: 3.6 leaves the last four bytes unused; 6.0 counts the nodes that read the tensor there
OLD, NEW = tensor(0), tensor(5)
IDS = struct.pack("<2Q", 0x1111, 0x5555)

REQUESTS = [
    (V36, Opcode.HELLO, stock.HelloRequest(), b""),
    (V60, Opcode.HELLO, stock.HelloRequest(), bytes(24)),
    (V36, Opcode.ALLOC_BUFFER, stock.AllocBufferRequest(1, 1 << 33), struct.pack("<IQ", 1, 1 << 33)),
    (V36, Opcode.SET_TENSOR, stock.SetTensorRequest(OLD, 1, 96), OLD + struct.pack("<Q", 96)),
    (V60, Opcode.SET_TENSOR, stock.SetTensorRequest(NEW, 1, 96), NEW + struct.pack("<Q", 96)),
    (V36, Opcode.SET_TENSOR_HASH, stock.SetTensorHashRequest(OLD, 7, 1 << 63), OLD + struct.pack("<QQ", 7, 1 << 63)),
    (V60, Opcode.MEMSET_TENSOR, stock.MemsetTensorRequest(NEW, 7, 9, 255), NEW + struct.pack("<QQB", 7, 9, 255)),
    (V36, Opcode.GET_ALLOC_SIZE, stock.GetAllocSizeRequest(3, OLD, OLD * 10), struct.pack("<I", 3) + OLD * 11),
    (V36, Opcode.GRAPH_RECOMPUTE, graph.GraphRecomputeRequest(2, 77), struct.pack("<I", 2)),
    (V60, Opcode.GRAPH_RECOMPUTE, graph.GraphRecomputeRequest(2, 77), struct.pack("<I", 2)),
]


@pytest.mark.parametrize(("version", "opcode", "message", "body"), REQUESTS, ids=lambda value: str(value)[:24])
def test_requests(version, opcode, message, body):
    dialect = dialect_for(version)
    assert dialect.encode(message) == body
    assert write_frame(STOCK_REQUEST, opcode, len(body)) == struct.pack("<BQ", opcode, len(body))
    assert dialect.encode(dialect.decode_request(opcode, body)) == body


@pytest.mark.parametrize(("version", "record"), [(V36, OLD), (V60, NEW)], ids=str)
def test_graphs(version, record):
    """`device u32 | n_nodes u32 | ids | n_tensors u32 | tensors`, without a uid, and never answered."""
    dialect = dialect_for(version)
    body = struct.pack("<II", 1, 2) + IDS + struct.pack("<I", 2) + record * 2
    rows = np.frombuffer(record * 2, dialect.tensor_dtype)
    assert dialect.encode(graph.GraphComputeRequest(1, 0, np.frombuffer(IDS, np.uint64), rows)) == body
    again = dialect.decode_request(Opcode.GRAPH_COMPUTE, body)
    assert again.node_ids.tolist() == [0x1111, 0x5555]
    assert again.tensors.tobytes() == record * 2
    assert dialect.row(Opcode.GRAPH_COMPUTE).reply is Reply.NONE


def test_answers():
    old, new = dialect_for(V36), dialect_for(V60)
    assert old.encode(stock.HelloResponse(3, 6, 1)) == bytes([3, 6, 1])
    assert new.encode(stock.HelloResponse(6, 0, 0)) == bytes([6, 0, 0, 0]) + bytes(24)
    for opcode in (Opcode.FREE_BUFFER, Opcode.BUFFER_CLEAR, Opcode.INIT_TENSOR):
        assert old.row(opcode).reply is Reply.EMPTY
        assert new.row(opcode).reply is Reply.NONE
    assert write_frame(STOCK_RESPONSE, 0, 0) == bytes(8)
    assert not old.has(Opcode.MEMSET_TENSOR)
    assert not new.has(Opcode.SET_TENSOR_2D)
