"""Derived from the table: every message of every dialect goes there and back, and nothing else gets through."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wireherd.errors import BadLength, LocalProtocolError, RemoteError, RemoteProtocolError, UnknownCommand
from wireherd.protocol.connection import ClientConnection
from wireherd.protocol.dialect import dialect_for
from wireherd.protocol.framing import NO_OPCODE, REPLY, Frame
from wireherd.protocol.messages_graph import GraphComputeRequest, SupportsOpResponse
from wireherd.protocol.messages_herd import DeviceInfoResponse, HerdHelloResponse
from wireherd.protocol.messages_stock import AllocBufferRequest, GetTensorRequest, HelloRequest, SetTensorRequest
from wireherd.protocol.table import Opcode
from wireherd.protocol.version import NEWEST, SUPPORTED, Version
from wireherd.testing.strategies import DIALECTS, message_classes, messages, samples

CASES = [
    pytest.param(dialect, opcode, cls, is_request, id=f"{dialect.version.short}{'-herd' * dialect.herd}-{cls.__name__}")
    for dialect in DIALECTS
    for opcode, cls, is_request in message_classes(dialect)
]


def decode(dialect, opcode, is_request, raw):
    return dialect.decode_request(opcode, raw) if is_request else dialect.decode_response(opcode, raw)


@pytest.mark.parametrize(("dialect", "opcode", "cls", "is_request"), CASES)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_there_and_back(dialect, opcode, cls, is_request, data):
    message = data.draw(messages(cls, dialect))
    raw = dialect.encode(message)
    assert decode(dialect, opcode, is_request, raw) == message
    assert decode(dialect, opcode, is_request, memoryview(bytearray(raw))) == message
    size = dialect.codecs[cls].size
    assert len(raw) == size if size is not None else len(raw) >= dialect.codecs[cls].minimum


@pytest.mark.parametrize(("dialect", "opcode", "cls", "is_request"), CASES)
@settings(max_examples=2, deadline=None)
@given(data=st.data())
def test_truncated_at_each_offset_and_with_trailing_bytes(dialect, opcode, cls, is_request, data):
    raw = dialect.encode(data.draw(messages(cls, dialect)))
    if cls is SupportsOpResponse:  # any number of bytes is such a message
        return
    for end in range(len(raw)):
        with pytest.raises(BadLength):
            decode(dialect, opcode, is_request, raw[:end])
    for extra in (b"\0", b"\xff" * 8):
        with pytest.raises(BadLength):
            decode(dialect, opcode, is_request, raw + extra)


@settings(max_examples=400, deadline=None)
@given(
    dialect=st.sampled_from(DIALECTS),
    opcode=st.one_of(st.integers(0, 22), st.integers(128, 136), st.integers(0, 255)),
    is_request=st.booleans(),
    raw=st.binary(max_size=400),
)
def test_garbage_is_a_message_or_a_remote_protocol_error(dialect, opcode, is_request, raw):
    try:
        message = decode(dialect, opcode, is_request, raw)
    except RemoteProtocolError:
        return
    assert dialect.encode(message) == raw


@settings(max_examples=200, deadline=None)
@given(sample=samples(), data=st.data())
def test_mutated_messages_are_messages_or_remote_protocol_errors(sample, data):
    raw = bytearray(sample.dialect.encode(sample.message))
    if raw:
        for _ in range(3):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.sampled_from((0, 1, 127, 128, 255)))
    with contextlib.suppress(RemoteProtocolError):
        decode(sample.dialect, sample.opcode, sample.is_request, bytes(raw))


@pytest.mark.parametrize("dialect", [dialect_for(Version(7, 0)), dialect_for(NEWEST, herd=True)], ids=repr)
def test_counts_that_lie_allocate_nothing(dialect):
    head = b"\0" * (12 if dialect.herd else 4)
    for count in (1, 1 << 16, (1 << 32) - 1):
        with pytest.raises(BadLength, match="do not fit"):
            dialect.decode_request(10, head + count.to_bytes(4, "little") + b"\0" * 7)


def test_graph_arrays_are_views_of_the_payload():
    dialect = dialect_for(NEWEST)
    tensors = np.zeros(3, dialect.tensor_dtype)
    tensors["id"] = (1, 2, 3)
    message = GraphComputeRequest(0, 9, np.array([3, 2], "<u8"), tensors)
    payload = bytearray(dialect.encode(message))
    seen = dialect.decode_request(10, memoryview(payload))
    assert seen == message
    assert not seen.tensors.flags.owndata
    assert not seen.tensors.flags.writeable
    payload[20:28] = (7).to_bytes(8, "little")  # after device, uid and count
    assert seen.node_ids[0] != 3


def test_a_graph_of_100000_nodes_fits():
    dialect = dialect_for(NEWEST, herd=True)
    message = GraphComputeRequest(0, 1, np.arange(1, 100_001, dtype="<u8"), np.zeros(100_000, dialect.tensor_dtype))
    raw = dialect.encode(message)
    assert len(raw) == 20 + 8 * 100_000 + 328 * 100_000 <= dialect.row(10).request_max
    assert len(dialect.decode_request(10, raw).tensors) == 100_000


@pytest.mark.parametrize(
    "message",
    [
        AllocBufferRequest(-1, 0),
        AllocBufferRequest(0, 1 << 64),
        AllocBufferRequest("0", 1),
        GetTensorRequest(b"short", 0, 1),
        SetTensorRequest(bytes(297), 0, 0),
        GraphComputeRequest(0, 0, np.zeros(1, "<u4"), np.zeros(0, dialect_for(NEWEST).tensor_dtype)),
        GraphComputeRequest(0, 0, np.zeros(1, "<u8"), np.zeros(1, dialect_for(NEWEST, herd=True).tensor_dtype)),
        GraphComputeRequest(0, 0, np.zeros((1, 1), "<u8"), np.zeros(0, dialect_for(NEWEST).tensor_dtype)),
        HerdHelloResponse(build="x" * 70_000),
        HerdHelloResponse(ops=("x",) * 5_000),
        DeviceInfoResponse("a", "b", 0, 0, 0, 0, 0, 0),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_does_not_fit_is_our_fault(message):
    with pytest.raises(LocalProtocolError):
        dialect_for(NEWEST).encode(message)


def test_a_tensor_may_be_given_as_any_bytes():
    dialect = dialect_for(NEWEST)
    raw = bytes(range(256)) + bytes(40)
    assert dialect.encode(SetTensorRequest(memoryview(raw), 0, 4)) == dialect.encode(SetTensorRequest(raw, 0, 4))


def test_strided_arrays_are_encoded_as_what_they_mean():
    dialect = dialect_for(NEWEST)
    tensors = np.zeros(4, dialect.tensor_dtype)
    tensors["id"] = np.arange(4)
    message = GraphComputeRequest(0, 0, np.arange(4, dtype="<u8")[::2], tensors[::-1])
    assert dialect.decode_request(10, dialect.encode(message)).tensors["id"].tolist() == [3, 2, 1, 0]


def test_messages_with_arrays_compare_by_content():
    one = GraphComputeRequest(0, 0, np.arange(2, dtype="<u8"), np.zeros(1, dialect_for(NEWEST).tensor_dtype))
    two = GraphComputeRequest(0, 0, np.arange(1, 3, dtype="<u8"), np.zeros(1, dialect_for(NEWEST).tensor_dtype))
    assert one == GraphComputeRequest(0, 0, one.node_ids.copy(), one.tensors.copy())
    assert one != two
    assert one != 5


def test_texts_that_are_not_utf8_are_refused():
    dialect = dialect_for(NEWEST, herd=True)
    raw = bytearray(dialect.encode(DeviceInfoResponse("CPU", "b", 0, 0, 0, 0, 0, 0)))
    raw[4] = 0xFF
    with pytest.raises(RemoteProtocolError, match="UTF-8"):
        dialect.decode_response(130, raw)


def test_unknown_commands():
    with pytest.raises(UnknownCommand, match="has no command MEMSET_TENSOR"):
        dialect_for(Version(4, 0)).command(17)
    with pytest.raises(UnknownCommand, match="has no command 200"):
        dialect_for(NEWEST).decode_request(200, b"")
    with pytest.raises(UnknownCommand, match="no answer that is a message"):
        dialect_for(NEWEST).decode_response(8, b"")
    with pytest.raises(LocalProtocolError, match="no dialect"):
        dialect_for(Version(9, 0))


def test_versions():
    assert Version.parse("8") == Version(8, 0, 0)
    assert Version.parse("4.0") == Version(4, 0, 3)
    assert Version.parse("5") == Version(5, 1, 0)
    assert Version.parse("9.1.2") == Version(9, 1, 2)
    assert Version.parse("9") == Version(9, 0, 0)
    assert str(Version(4, 0, 3)) == "4.0.3"
    assert [version.short for version in SUPPORTED] == ["3.6", "4.0", "5.0", "5.1", "6.0", "7.0", "8.0"]
    for text in ("", "x", "1.2.3.4", "8.", "-1", "300.0", "٨"):
        with pytest.raises(Exception, match="is not a protocol version"):
            Version.parse(text)


@pytest.mark.parametrize("said", ["\x1b[2J\x1b[31mall is well", "one\nwireherd: two", "a\x00b\x7f", "\u202egnp.exe"])
def test_what_a_peer_says_cannot_steer_a_terminal(said):
    """Names and reasons come from the other end and are shown to people."""
    dialect = dialect_for(NEWEST, herd=True)
    sent = DeviceInfoResponse(said, said, 0, 0, 0, 0, 0, 0)
    told = dialect.decode_response(Opcode.DEVICE_INFO, dialect.encode(sent))
    assert told.name == told.description
    assert told.name.isprintable()
    assert len(told.name) == len(said)
    connection = ClientConnection("the worker")
    connection.request(HelloRequest())
    pending = connection.match(Frame(NO_OPCODE, REPLY, 0, 0, 28))
    with pytest.raises(RemoteError) as caught:
        connection.response(pending, Frame(0, REPLY, 1, 0, 0), said.encode())
    assert str(caught.value).isprintable()
