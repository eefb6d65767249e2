"""Commands about devices, buffers and tensors, carried out in this process: a fault in a check would end pytest."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from building import alloc, do, fetch, herd_dispatcher, record

from wireherd import ggml
from wireherd.errors import (
    BadRequest,
    LimitExceeded,
    NoSuchBuffer,
    NoSuchDevice,
    NotAllowed,
    OutOfMemory,
    UnknownCommand,
)
from wireherd.protocol.connection import ServerConnection
from wireherd.protocol.dialect import dialect_for
from wireherd.protocol.messages_herd import (
    FEATURES,
    DeviceCaps,
    DeviceInfoRequest,
    HerdHelloRequest,
    PingRequest,
    Purpose,
)
from wireherd.protocol.messages_stock import (
    AllocBufferRequest,
    AllocBufferResponse,
    BufferClearRequest,
    BufferGetBaseRequest,
    CommAllreduceRequest,
    CommFreeRequest,
    CommInitRequest,
    DeviceCountRequest,
    FreeBufferRequest,
    GetAlignmentRequest,
    GetAllocSizeRequest,
    GetDeviceMemoryRequest,
    GetMaxSizeRequest,
    GetTensorRequest,
)
from wireherd.protocol.table import COMMANDS, Bulk, Opcode, State
from wireherd.protocol.version import SUPPORTED, Version
from wireherd.worker import buffers
from wireherd.worker.dispatch import Dispatcher, Prober
from wireherd.worker.settings import WorkerSettings


@pytest.fixture
def worker():
    dispatcher = herd_dispatcher()
    yield dispatcher
    dispatcher.close()


# --- the table


@pytest.mark.parametrize(("version", "herd"), [*((version, False) for version in SUPPORTED), (Version(8, 0), True)])
def test_every_command_of_the_table_has_a_place(version, herd):
    dispatcher = Dispatcher(ggml.load(), WorkerSettings(threads=1), dialect_for(version, herd))
    places = {*dispatcher._handlers, *dispatcher._sinks, Opcode.HELLO}
    for opcode, row in dialect_for(version, herd).rows.items():
        command = row.command
        if command.unasked or command.feature & ~FEATURES or command.states == {State.PEER}:
            continue  # nobody may send what was not offered, and links between workers are not dispatched
        assert opcode in places, row.command.name
        assert (opcode in dispatcher._sinks) == (row.command.bulk is Bulk.REQUEST)
        assert (opcode in dispatcher._receivers) == (row.command.bulk is Bulk.REQUEST)
    dispatcher.close()


def test_unknown_commands_and_data_nobody_expects(worker):
    with pytest.raises(UnknownCommand):
        do(worker, 99, DeviceCountRequest())
    with pytest.raises(NotAllowed):
        worker.sink(Opcode.GET_TENSOR, DeviceCountRequest(), 10)


def test_our_own_clients_form_no_stock_pairs(worker):
    with pytest.raises(NotAllowed, match="groups, not pairs"):
        do(worker, Opcode.COMM_INIT, CommInitRequest(0, 0, 2, 1, bytes(64)))
    with pytest.raises(NotAllowed):
        do(worker, Opcode.COMM_FREE, CommFreeRequest(0))


@pytest.mark.parametrize(
    ("rank", "world", "port", "host"),
    [
        (0, 2, 51052, b"x"),  # the client came from nowhere, so there is no address to listen at
        (0, 3, 51052, b"x"),
        (2, 2, 51052, b"127.0.0.1"),
        (1, 2, 51052, b"8.8.8.8"),
        (1, 2, 51052, b"example.com"),
        (1, 2, 80, b"127.0.0.1"),
        (1, 2, 1 << 20, b"127.0.0.1"),
        (1, 2, 51052, bytes(range(1, 65))),
    ],
)
def test_a_stock_client_that_asks_for_an_unsafe_pair_is_told_no_and_can_go_on(rank, world, port, host):
    dispatcher = Dispatcher(ggml.load(), WorkerSettings(threads=1), dialect_for(Version(8, 0)))
    request = CommInitRequest(0, rank, world, port, host.ljust(64, b"\0"))
    begun = time.monotonic()
    assert do(dispatcher, Opcode.COMM_INIT, request).ok == 0
    assert time.monotonic() - begun < 1
    assert do(dispatcher, Opcode.COMM_FREE, CommFreeRequest(0)) is None
    with pytest.raises(BadRequest):
        do(dispatcher, Opcode.COMM_ALLREDUCE, CommAllreduceRequest(0, bytes(296)))
    dispatcher.close()


def test_a_worker_listens_for_a_pair_at_its_own_port_only():
    dispatcher = Dispatcher(ggml.load(), WorkerSettings(threads=1), dialect_for(Version(8, 0)))
    dispatcher.state.addresses = ("127.0.0.1:50052",)
    assert do(dispatcher, Opcode.COMM_INIT, CommInitRequest(0, 0, 2, 22, b"127.0.0.1".ljust(64, b"\0"))).ok == 0
    dispatcher.state.addresses = ("127.0.0.1:65000",)
    assert do(dispatcher, Opcode.COMM_INIT, CommInitRequest(0, 0, 2, 66000, b"127.0.0.1".ljust(64, b"\0"))).ok == 0
    dispatcher.close()


def test_herd_hello_switches_the_dialect():
    dispatcher = Dispatcher(
        ggml.load(), WorkerSettings(threads=1), dialect_for(Version(8, 0)), session=b"0123456789abcdef"
    )
    answer = do(dispatcher, Opcode.HERD_HELLO, HerdHelloRequest())
    assert answer.session == b"0123456789abcdef"
    assert "MUL_MAT" in answer.ops
    assert "SILU" in answer.unary_ops
    assert "SWIGLU" in answer.glu_ops
    assert "f32" in answer.types
    assert dispatcher.state.dialect.herd
    handle, base = alloc(dispatcher, 64)
    assert fetch(dispatcher, record(handle, base, 4), 16) == bytes(16)
    with pytest.raises(NotAllowed):
        do(dispatcher, Opcode.HERD_HELLO, HerdHelloRequest(purpose=int(Purpose.CONTROL)))
    dispatcher.close()


def test_hello_and_ping(worker):
    connection = ServerConnection(Version(8, 0), state=State.HELLO)
    assert worker.handle(Opcode.HELLO, None, connection).major == 8
    assert do(worker, Opcode.PING, PingRequest(77)).nonce == 77


# --- devices


def test_device_commands(worker):
    assert do(worker, Opcode.DEVICE_COUNT, DeviceCountRequest()).count == 1
    alignment = do(worker, Opcode.GET_ALIGNMENT, GetAlignmentRequest(0)).alignment
    assert alignment >= 16
    assert 4096 % alignment == 0
    assert do(worker, Opcode.GET_MAX_SIZE, GetMaxSizeRequest(0)).max_size > 1 << 30
    memory = do(worker, Opcode.GET_DEVICE_MEMORY, GetDeviceMemoryRequest(0))
    assert 0 < memory.free <= memory.total
    info = do(worker, Opcode.DEVICE_INFO, DeviceInfoRequest(0))
    assert info.name == "CPU"
    assert info.description
    assert info.caps & DeviceCaps.PLAIN_ALLOC_SIZE
    assert info.alignment == alignment


@pytest.mark.parametrize(
    ("opcode", "message"),
    [
        (Opcode.GET_ALIGNMENT, GetAlignmentRequest(1)),
        (Opcode.GET_MAX_SIZE, GetMaxSizeRequest(2)),
        (Opcode.GET_DEVICE_MEMORY, GetDeviceMemoryRequest((1 << 32) - 1)),
        (Opcode.DEVICE_INFO, DeviceInfoRequest(1)),
        (Opcode.ALLOC_BUFFER, AllocBufferRequest(1, 64)),
    ],
)
def test_no_such_device(worker, opcode, message):
    with pytest.raises(NoSuchDevice):
        do(worker, opcode, message)


def test_memory_is_what_the_owner_allows():
    dispatcher = herd_dispatcher(memory_limit=1 << 20)
    alloc(dispatcher, 1 << 19)
    memory = do(dispatcher, Opcode.GET_DEVICE_MEMORY, GetDeviceMemoryRequest(0))
    assert (memory.free, memory.total) == (1 << 19, 1 << 20)
    with pytest.raises(OutOfMemory, match="owner"):
        alloc(dispatcher, (1 << 19) + 1)
    dispatcher.close()


def test_only_devices_asked_for_are_served():
    dispatcher = herd_dispatcher(devices=("CPU", "CPU"))
    assert do(dispatcher, Opcode.DEVICE_COUNT, DeviceCountRequest()).count == 2
    dispatcher.close()


@pytest.mark.parametrize("version", SUPPORTED)
def test_alloc_size_in_every_dialect(version):
    dialect = dialect_for(version)
    dispatcher = Prober(ggml.load(), WorkerSettings(threads=1), dialect)
    row = np.zeros((), dialect.tensor_dtype)
    row["ne"], row["nb"], row["type"] = (64, 3, 1, 1), (18, 36, 108, 108), 2
    message = GetAllocSizeRequest(0, row.tobytes(), bytes(10 * dialect.tensor_dtype.itemsize))
    assert do(dispatcher, Opcode.GET_ALLOC_SIZE, message).alloc_size == 3 * 36
    row["ne"] = (63, 3, 1, 1)
    with pytest.raises(BadRequest):
        do(dispatcher, Opcode.GET_ALLOC_SIZE, GetAllocSizeRequest(0, row.tobytes(), message.srcs))
    row["type"] = 4
    with pytest.raises(BadRequest, match="type 4"):
        do(dispatcher, Opcode.GET_ALLOC_SIZE, GetAllocSizeRequest(0, row.tobytes(), message.srcs))
    dispatcher.close()


def test_a_prober_answers_what_needs_no_state_and_nothing_else():
    prober = Prober(ggml.load(), WorkerSettings(threads=1), dialect_for(Version(8, 0)))
    for opcode, command in COMMANDS.items():
        if not command.stateless:
            with pytest.raises(NotAllowed):
                do(prober, opcode, DeviceCountRequest())
            with pytest.raises(NotAllowed):
                prober.sink(opcode, DeviceCountRequest(), 1)
    assert do(prober, Opcode.DEVICE_COUNT, DeviceCountRequest()).count == 1
    prober.close()


# --- buffers


def test_handles_are_random_and_addresses_made_up(worker):
    pairs = [alloc(worker, size) for size in (1, 4096, 100_000, 0)]
    handles, bases = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    assert len(set(handles)) == 4
    assert all(handle > 1 << 32 for handle in handles)
    assert all(base % 4096 == 0 and base < 1 << 47 for base in bases)
    real = [buffer.native.base for buffer in worker.state.buffers._by_handle.values()]
    assert not set(real) & {*handles, *bases}
    for (_, one), (_, two) in itertools.pairwise(pairs):
        assert two - one >= 1 << 20, "no gap between buffers"


def test_addresses_are_used_again_but_never_at_the_same_time(worker):
    first = alloc(worker, 4096)
    second = alloc(worker, 4096)
    do(worker, Opcode.FREE_BUFFER, FreeBufferRequest(first[0]))
    third = alloc(worker, 1024)
    assert third[1] == first[1]
    assert third[0] != first[0]
    big = alloc(worker, 1 << 22)
    assert big[1] >= second[1] + 4096


@pytest.mark.parametrize("size", [1 << 62, (1 << 64) - 1, 1 << 47, 1 << 46])
def test_absurd_sizes_touch_no_memory(worker, size):
    with pytest.raises(OutOfMemory):
        alloc(worker, size)
    assert not len(worker.state.buffers)


def test_stock_is_told_no_by_a_zero_handle():
    dispatcher = Dispatcher(ggml.load(), WorkerSettings(threads=1), dialect_for(Version(8, 0)))
    answer = do(dispatcher, Opcode.ALLOC_BUFFER, AllocBufferRequest(0, 1 << 62))
    assert answer == AllocBufferResponse(0, 0)
    dispatcher.close()


def test_the_number_of_buffers_is_bounded(worker, monkeypatch):
    monkeypatch.setattr(buffers, "MAX_BUFFERS", 3)
    for _ in range(3):
        alloc(worker, 10)
    with pytest.raises(LimitExceeded):
        alloc(worker, 10)


def test_freed_buffers_are_gone(worker):
    handle, base = alloc(worker, 64)
    row = record(handle, base, 4)
    fetch(worker, row, 16)
    do(worker, Opcode.FREE_BUFFER, FreeBufferRequest(handle))
    for opcode, message in (
        (Opcode.FREE_BUFFER, FreeBufferRequest(handle)),
        (Opcode.BUFFER_CLEAR, BufferClearRequest(handle, 1)),
        (Opcode.BUFFER_GET_BASE, BufferGetBaseRequest(handle)),
        (Opcode.GET_TENSOR, GetTensorRequest(row.tobytes(), 0, 16)),
    ):
        with pytest.raises(NoSuchBuffer):
            do(worker, opcode, message)


def test_another_sessions_handle_is_no_handle(worker):
    other = herd_dispatcher()
    handle, base = alloc(other, 64)
    with pytest.raises(NoSuchBuffer):
        fetch(worker, record(handle, base, 4), 16)
    other.close()


def test_memory_comes_back(worker):
    dispatcher = herd_dispatcher(memory_limit=1 << 20)
    for _ in range(5):
        handle, _ = alloc(dispatcher, 1 << 20)
        do(dispatcher, Opcode.FREE_BUFFER, FreeBufferRequest(handle))
    dispatcher.close()
