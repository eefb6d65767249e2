"""The layout of every fixed record, against the sizes of upstream's packed structs."""

from __future__ import annotations

import pytest

from wireherd.protocol import messages_graph as graph
from wireherd.protocol import messages_herd as herd
from wireherd.protocol import messages_stock as stock
from wireherd.protocol.dialect import dialect_for
from wireherd.protocol.fields import TEXT, TEXTS
from wireherd.protocol.table import BY_MESSAGE, COMMANDS, Opcode, Reply
from wireherd.protocol.tensor import HERD_TENSOR, STOCK_TENSOR, STOCK_TENSOR_OLD
from wireherd.protocol.version import SUPPORTED, Version

ALL = SUPPORTED
V36, V40, V50, V51, V60, V70, V80 = SUPPORTED

#: (message, versions, bytes), as upstream's headers of those versions give them
STOCK = [
    (stock.AllocBufferRequest, ALL, 12),
    (stock.AllocBufferResponse, ALL, 16),
    (stock.GetAlignmentRequest, ALL, 4),
    (stock.GetAlignmentResponse, ALL, 8),
    (stock.GetMaxSizeRequest, ALL, 4),
    (stock.GetMaxSizeResponse, ALL, 8),
    (stock.BufferGetBaseRequest, ALL, 8),
    (stock.BufferGetBaseResponse, ALL, 8),
    (stock.FreeBufferRequest, ALL, 8),
    (stock.BufferClearRequest, ALL, 9),
    (stock.SetTensorRequest, (V36, V40, V50, V51, V60), 304),
    (stock.SetTensorRequest, (V70, V80), 305),
    (stock.SetTensorHashRequest, ALL, 312),
    (stock.SetTensorHashResponse, ALL, 1),
    (stock.GetTensorRequest, ALL, 312),
    (stock.CopyTensorRequest, ALL, 592),
    (stock.CopyTensorResponse, ALL, 1),
    (stock.GetDeviceMemoryRequest, ALL, 4),
    (stock.GetDeviceMemoryResponse, ALL, 16),
    (stock.InitTensorRequest, ALL, 296),
    (stock.GetAllocSizeRequest, ALL, 3260),
    (stock.GetAllocSizeResponse, ALL, 8),
    (stock.HelloRequest, (V36,), 0),
    (stock.HelloRequest, (V40, V50, V51, V60, V70, V80), 24),
    (stock.HelloResponse, (V36,), 3),
    (stock.HelloResponse, (V40, V50, V51, V60, V70, V80), 28),
    (stock.DeviceCountRequest, ALL, 0),
    (stock.DeviceCountResponse, ALL, 4),
    (graph.GraphRecomputeRequest, (V36, V40, V50, V51, V60, V70), 4),
    (graph.GraphRecomputeRequest, (V80,), 12),
    (stock.MemsetTensorRequest, (V50, V51, V60, V70, V80), 313),
    (stock.SetTensor2DRequest, (V80,), 328),
    (stock.GetTensor2DRequest, (V80,), 328),
    (stock.CommInitRequest, (V80,), 80),
    (stock.CommInitResponse, (V80,), 1),
    (stock.CommAllreduceRequest, (V80,), 300),
    (stock.CommFreeRequest, (V80,), 4),
]

HERD = [
    (herd.HerdHelloRequest, 32),
    (herd.PingRequest, 8),
    (herd.PingResponse, 8),
    (herd.CancelRequest, 0),
    (herd.DeviceInfoRequest, 4),
    (herd.ProgressNotice, 21),
    (stock.SetTensorRequest, 337),
    (stock.GetTensorRequest, 344),
    (graph.GraphRecomputeRequest, 12),
    (stock.SetTensor2DRequest, 360),
]


@pytest.mark.parametrize(("cls", "versions", "size"), STOCK)
def test_stock_record_sizes(cls, versions, size):
    for version in versions:
        assert dialect_for(version).codecs[cls].size == size, version


def test_no_fixed_stock_record_is_left_out():
    listed = {(cls, version) for cls, versions, _ in STOCK for version in versions}
    for version in SUPPORTED:
        for cls, codec in dialect_for(version).codecs.items():
            if codec.size is not None and BY_MESSAGE.get(cls) and BY_MESSAGE[cls].opcode < Opcode.HERD_HELLO:
                assert (cls, version) in listed, (cls, version)


@pytest.mark.parametrize(("cls", "size"), HERD)
def test_herd_record_sizes(cls, size):
    assert dialect_for(SUPPORTED[-1], herd=True).codecs[cls].size == size


def test_graph_size_is_the_equation():
    # 8 per node, 296 per tensor, 12 of counts and device, from 8.0 on 8 more for the uid
    assert dialect_for(V70).codecs[graph.GraphComputeRequest].minimum == 12
    assert dialect_for(V80).codecs[graph.GraphComputeRequest].minimum == 20


def test_tensor_records():
    assert STOCK_TENSOR.itemsize == STOCK_TENSOR_OLD.itemsize == 296
    assert HERD_TENSOR.itemsize == 328
    offsets = {name: STOCK_TENSOR.fields[name][1] for name in STOCK_TENSOR.names}
    assert offsets == {
        "id": 0, "type": 8, "buffer": 12, "ne": 20, "nb": 36, "op": 52, "op_params": 56, "flags": 120, "src": 124,
        "view_src": 204, "view_offs": 212, "data": 220, "name": 228, "use_count": 292,
    }  # fmt: skip
    assert dialect_for(V50).tensor_dtype is STOCK_TENSOR_OLD
    assert dialect_for(V51).tensor_dtype is STOCK_TENSOR


SILENT_60 = {Opcode.FREE_BUFFER, Opcode.BUFFER_CLEAR, Opcode.INIT_TENSOR, Opcode.MEMSET_TENSOR}
NEVER = {
    Opcode.SET_TENSOR, Opcode.GRAPH_COMPUTE, Opcode.GRAPH_RECOMPUTE, Opcode.SET_TENSOR_2D, Opcode.COMM_ALLREDUCE,
    Opcode.COMM_FREE, Opcode.CANCEL, Opcode.ERROR, Opcode.PROGRESS,
}  # fmt: skip


@pytest.mark.parametrize("version", SUPPORTED, ids=str)
def test_what_is_answered(version):
    dialect = dialect_for(version)
    for opcode, row in dialect.rows.items():
        if opcode in NEVER or (opcode in SILENT_60 and version >= Version(6, 0)):
            assert row.reply is Reply.NONE
        elif opcode in SILENT_60:
            assert row.reply is Reply.EMPTY
        else:
            assert row.reply is (Reply.RAW if opcode in {8, 19} else Reply.RECORD)


@pytest.mark.parametrize(("version", "last"), list(zip(SUPPORTED, (16, 16, 17, 17, 17, 17, 22), strict=True)), ids=str)
def test_commands_of_a_version(version, last):
    stock_rows = [opcode for opcode in dialect_for(version).rows if opcode < Opcode.HERD_HELLO]
    assert stock_rows == list(range(last + 1))


def test_every_opcode_has_a_row():
    assert set(Opcode) == set(COMMANDS)
    assert all(row.doc and row.opcode == number for number, row in COMMANDS.items())


def test_texts_have_room_for_names():
    names = tuple(f"OP_{number}" for number in range(200))
    raw = b"".join(TEXTS.write(names))
    assert TEXTS.read(memoryview(raw), 0) == (names, len(raw))
    assert TEXT.read(memoryview(b"".join(TEXT.write("ü"))), 0) == ("ü", 6)
