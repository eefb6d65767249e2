"""Bytes in and out of tensors, and every bound of it: a fault in a check would end pytest."""

from __future__ import annotations

import numpy as np
import pytest
from building import HERD, Builder, Wire, alloc, do, fetch, herd_dispatcher, put, record, send

from wireherd import ggml
from wireherd.errors import (
    BadRequest,
    NoSuchBuffer,
    OutOfBounds,
)
from wireherd.protocol.dialect import dialect_for
from wireherd.protocol.messages_herd import (
    CancelRequest,
)
from wireherd.protocol.messages_stock import (
    AllocBufferRequest,
    BufferClearRequest,
    BufferGetBaseRequest,
    CopyTensorRequest,
    FreeBufferRequest,
    GetTensor2DRequest,
    GetTensorRequest,
    InitTensorRequest,
    MemsetTensorRequest,
    SetTensor2DRequest,
    SetTensorHashRequest,
    SetTensorRequest,
)
from wireherd.protocol.table import Opcode
from wireherd.protocol.tensor import STOCK_TENSOR
from wireherd.protocol.version import Version
from wireherd.worker import buffers
from wireherd.worker.dispatch import Dispatcher
from wireherd.worker.settings import WorkerSettings


@pytest.fixture
def worker():
    dispatcher = herd_dispatcher()
    yield dispatcher
    dispatcher.close()


def test_bytes_go_in_and_come_out(worker):
    handle, base = alloc(worker, 256)
    row = record(handle, base + 64, 8, 2)
    data = np.arange(16, dtype=np.float32)
    put(worker, row, data)
    put(worker, row, b"\x01\x02\x03", 5)
    expected = bytearray(data.tobytes())
    expected[5:8] = b"\x01\x02\x03"
    assert fetch(worker, row, 64) == expected
    assert fetch(worker, row, 10, 30) == expected[30:40]
    do(worker, Opcode.MEMSET_TENSOR, MemsetTensorRequest(row.tobytes(), 8, 16, 0xAB))
    expected[8:24] = b"\xab" * 16
    assert fetch(worker, row, 64) == expected
    do(worker, Opcode.BUFFER_CLEAR, BufferClearRequest(handle, 7))
    assert fetch(worker, record(handle, base, 64), 256) == b"\x07" * 256


def test_a_get_is_a_view_of_the_buffer_itself(worker):
    handle, base = alloc(worker, 64)
    view = do(worker, Opcode.GET_TENSOR, GetTensorRequest(record(handle, base, 16).tobytes(), 0, 64))
    put(worker, record(handle, base, 16), b"\x05" * 64)
    assert bytes(view) == b"\x05" * 64


def test_rows_at_a_stride(worker):
    handle, base = alloc(worker, 512)
    row = record(handle, base, 16, 8)
    whole = np.arange(128, dtype=np.float32).reshape(8, 16)
    put(worker, row, whole)
    patch = np.full((8, 3), -1, np.float32)
    send(worker, Opcode.SET_TENSOR_2D, SetTensor2DRequest(row.tobytes(), 8, 12, 8, 64), patch.tobytes())
    whole[:, 2:5] = -1
    assert fetch(worker, row, 512) == whole.tobytes()
    got = do(worker, Opcode.GET_TENSOR_2D, GetTensor2DRequest(row.tobytes(), 16, 20, 8, 64))
    assert bytes(got) == np.ascontiguousarray(whole[:, 4:9]).tobytes()
    send(worker, Opcode.SET_TENSOR_2D, SetTensor2DRequest(row.tobytes(), 64, 64, 2, 64), bytes(128))
    whole[1:3] = 0
    got = do(worker, Opcode.GET_TENSOR_2D, GetTensor2DRequest(row.tobytes(), 0, 64, 8, 64))
    assert bytes(got) == whole.tobytes()
    assert bytes(do(worker, Opcode.GET_TENSOR_2D, GetTensor2DRequest(row.tobytes(), 3, 0, 5, 9))) == b""


@pytest.mark.parametrize(
    ("offset", "size", "count", "stride"),
    [
        (0, 4, 0, 4),
        (0, 8, 2, 4),
        (0, 64, 3, 64),
        (65, 64, 1, 0),
        (129, 0, 1, 0),
        (0, 1, 1 << 63, 1),
        (0, 1, 2, (1 << 64) - 1),
        ((1 << 64) - 1, 1, 1, 1),
        (0, (1 << 64) - 1, 1, 1),
        (0, 0, 2, 129),
    ],
)
def test_bad_rows_are_refused(worker, offset, size, count, stride):
    handle, base = alloc(worker, 4096)
    row = record(handle, base, 16, 2).tobytes()
    with pytest.raises((OutOfBounds, BadRequest)):
        do(worker, Opcode.GET_TENSOR_2D, GetTensor2DRequest(row, offset, size, count, stride))
    with pytest.raises((OutOfBounds, BadRequest)):
        worker.sink(Opcode.SET_TENSOR_2D, SetTensor2DRequest(row, offset, size, count, stride), size * count)


def test_rows_of_another_size_than_announced(worker):
    handle, base = alloc(worker, 128)
    with pytest.raises(BadRequest, match="announced"):
        worker.sink(Opcode.SET_TENSOR_2D, SetTensor2DRequest(record(handle, base, 16).tobytes(), 0, 4, 2, 8), 9)


@pytest.mark.parametrize(
    ("offset", "size"), [(0, 65), (64, 1), (65, 0), (1 << 63, 1 << 63), ((1 << 64) - 1, 1), (0, 1 << 62)]
)
def test_nothing_beyond_the_tensor(worker, offset, size):
    handle, base = alloc(worker, 4096)
    row = record(handle, base, 16).tobytes()
    with pytest.raises(OutOfBounds):
        do(worker, Opcode.GET_TENSOR, GetTensorRequest(row, offset, size))
    with pytest.raises(OutOfBounds):
        worker.sink(Opcode.SET_TENSOR, SetTensorRequest(row, 0, offset), size)
    with pytest.raises(OutOfBounds):
        do(worker, Opcode.MEMSET_TENSOR, MemsetTensorRequest(row, offset, size, 1))


@pytest.mark.parametrize("delta", [-1, -4096, 4096, 65, 1 << 40, -(1 << 31)])
def test_tensors_outside_their_buffer(worker, delta):
    handle, base = alloc(worker, 64)
    for row in (record(handle, base + delta, 16), record(handle, base + delta, 0)):
        for message in (GetTensorRequest(row.tobytes(), 0, 0), InitTensorRequest(row.tobytes())):
            with pytest.raises(OutOfBounds):
                do(worker, Opcode.GET_TENSOR if isinstance(message, GetTensorRequest) else Opcode.INIT_TENSOR, message)


def test_an_empty_tensor_may_lie_at_the_end_but_not_beyond(worker):
    handle, base = alloc(worker, 64)
    assert fetch(worker, record(handle, base + 64, 0), 0) == b""
    with pytest.raises(OutOfBounds):
        fetch(worker, record(handle, base + 65, 0), 0)
    with pytest.raises(OutOfBounds):
        fetch(worker, record(handle, base + 64, 0), 1)


@pytest.mark.parametrize(
    ("ne", "nb"),
    [
        ((1 << 40, 1 << 40, 1, 1), (4, 4, 4, 4)),
        ((4, 2, 1, 1), (4, 1 << 62, 4, 4)),
        ((4, 2, 1, 1), (4, (1 << 64) - 16, 4, 4)),
        ((-1, 1, 1, 1), (4, 4, 4, 4)),
        ((4, -(1 << 63), 1, 1), (4, 16, 4, 4)),
        ((1 << 62, 1, 1, 1), (4, 4, 4, 4)),
    ],
)
def test_impossible_sizes(worker, ne, nb):
    handle, base = alloc(worker, 64)
    row = record(handle, base, 4)
    row["ne"], row["nb"] = ne, nb
    with pytest.raises((BadRequest, OutOfBounds)):
        fetch(worker, row, 4)


@pytest.mark.parametrize("kind", [4, 5, 31, 40, 99, 1 << 20, (1 << 32) - 1])
def test_types_that_are_none(worker, kind):
    handle, base = alloc(worker, 64)
    with pytest.raises(BadRequest):
        fetch(worker, record(handle, base, 16, kind=kind, nb=(0, 0, 0, 0)), 4)


def test_hash_is_always_a_miss_and_still_checked(worker):
    handle, base = alloc(worker, 64)
    message = SetTensorHashRequest(record(handle, base, 16).tobytes(), 0, 123)
    assert do(worker, Opcode.SET_TENSOR_HASH, message).result == 0
    with pytest.raises(OutOfBounds):
        do(worker, Opcode.SET_TENSOR_HASH, SetTensorHashRequest(message.tensor, 65, 123))


def test_copies_may_overlap(worker):
    handle, base = alloc(worker, 128)
    data = np.arange(16, dtype=np.float32)
    put(worker, record(handle, base, 16), data)
    message = CopyTensorRequest(record(handle, base, 12).tobytes(), record(handle, base + 16, 12).tobytes())
    assert do(worker, Opcode.COPY_TENSOR, message).result == 1
    expected = data.copy()
    expected[4:16] = data[:12]
    assert fetch(worker, record(handle, base, 16), 64) == expected.tobytes()


def test_copies_between_buffers_check_both_sides(worker):
    one, two = alloc(worker, 64), alloc(worker, 64)
    put(worker, record(*one, 16), b"\x09" * 64)
    good = record(*two, 16)
    assert do(worker, Opcode.COPY_TENSOR, CopyTensorRequest(record(*one, 16).tobytes(), good.tobytes())).result == 1
    assert fetch(worker, good, 64) == b"\x09" * 64
    below = record(two[0], two[1] - 4, 16)
    beyond = record(two[0], two[1] + 4, 16)
    for bad in (below, beyond, record(two[0] ^ 1, two[1], 16)):
        for source, destination in ((bad, good), (good, bad)):
            with pytest.raises((OutOfBounds, NoSuchBuffer)):
                do(worker, Opcode.COPY_TENSOR, CopyTensorRequest(source.tobytes(), destination.tobytes()))
    for other in (record(*two, 15), record(*two, 16, kind=26), record(two[0], two[1] + 64, 0)):
        with pytest.raises(BadRequest):
            do(worker, Opcode.COPY_TENSOR, CopyTensorRequest(record(*one, 16).tobytes(), other.tobytes()))


def test_records_are_remembered_and_forgotten_with_their_buffer(worker):
    handle, base = alloc(worker, 64)
    row = record(handle, base, 16)
    fetch(worker, row, 4)
    assert len(worker.state.buffers._memo) == 1
    other, _ = alloc(worker, 64)
    do(worker, Opcode.FREE_BUFFER, FreeBufferRequest(other))
    assert not worker.state.buffers._memo


def test_the_memory_of_records_is_bounded(worker, monkeypatch):
    monkeypatch.setattr(buffers, "_MAX_MEMO", 8)
    handle, base = alloc(worker, 4096)
    for index in range(50):
        fetch(worker, record(handle, base + 4 * index, 4), 4)
    assert len(worker.state.buffers._memo) <= 8


def test_stock_strides_beyond_4_gib_are_put_back():
    from wireherd.worker.records import repaired_strides

    rows = (1 << 17, 1 << 16, 3, 1)
    true = (4, 4 << 17, 4 << 33, 3 * (4 << 33))
    stock = tuple(stride & 0xFFFFFFFF for stride in true)
    assert repaired_strides(1, 4, rows, stock) == true
    assert repaired_strides(1, 4, (16, 2, 2, 1), (4, 64, 128, 256)) == (4, 64, 128, 256)
    assert repaired_strides(32, 18, (1 << 20, 1 << 14, 1, 1), (18, 589824, 1073741824, 1073741824)) == (
        18,
        589824,
        589824 << 14,
        589824 << 14,
    )


def test_cancel_is_heard_as_a_command_too(worker):
    assert do(worker, Opcode.CANCEL, CancelRequest()) is None
    assert worker.state.graphs.cancelled


def test_types_of_older_peers_are_mapped_by_name():
    dispatcher = Dispatcher(ggml.load(), WorkerSettings(threads=1), dialect_for(Version(5, 1)))
    answer = do(dispatcher, Opcode.ALLOC_BUFFER, AllocBufferRequest(0, 1024))
    base = do(dispatcher, Opcode.BUFFER_GET_BASE, BufferGetBaseRequest(answer.remote_ptr)).base_ptr
    row = np.zeros((), STOCK_TENSOR)
    row["type"], row["buffer"], row["data"] = 8, answer.remote_ptr, base
    row["ne"], row["nb"] = (32, 2, 1, 1), (34, 34, 68, 68)
    assert len(do(dispatcher, Opcode.GET_TENSOR, GetTensorRequest(row.tobytes(), 0, 68))) == 68
    dispatcher.close()


def test_a_graph_of_ggml_is_understood_end_to_end(worker):
    builder = Builder()
    result = builder.call("ggml_add", builder.tensor("f32", 4), builder.tensor("f32", 4))
    wire = Wire([result], worker)
    put(worker, wire.rows[1], np.array([1, 2, 3, 4], np.float32))
    put(worker, wire.rows[2], np.array([10, 20, 30, 40], np.float32))
    do(worker, Opcode.GRAPH_COMPUTE, wire.compute())
    assert np.frombuffer(fetch(worker, wire.row(result), 16), np.float32).tolist() == [11, 22, 33, 44]
    builder.close()
    assert HERD.herd
