"""Both ends together: every message goes through a linked pair; every state takes what it should and nothing else."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wireherd.errors import (
    BadLength,
    BadRequest,
    FrameTooLarge,
    LocalProtocolError,
    NoSuchBuffer,
    NotAllowed,
    OutOfOrder,
    RemoteError,
    RemoteProtocolError,
    UnknownCommand,
    VersionMismatch,
)
from wireherd.protocol.connection import ClientConnection, ServerConnection
from wireherd.protocol.dialect import EMPTY
from wireherd.protocol.framing import HERD, REPLY, STOCK_RESPONSE, Frame, FrameReader, write_frame
from wireherd.protocol.messages_graph import (
    GraphComputeRequest,
    GraphRecomputeRequest,
    SupportsOpRequest,
    SupportsOpResponse,
)
from wireherd.protocol.messages_herd import (
    CancelRequest,
    DeviceInfoRequest,
    Feature,
    HerdHelloRequest,
    HerdHelloResponse,
    PingRequest,
    PingResponse,
    Purpose,
)
from wireherd.protocol.messages_stock import (
    AllocBufferRequest,
    AllocBufferResponse,
    DeviceCountRequest,
    DeviceCountResponse,
    FreeBufferRequest,
    GetTensor2DRequest,
    GetTensorRequest,
    HelloRequest,
    HelloResponse,
    SetTensor2DRequest,
    SetTensorRequest,
)
from wireherd.protocol.table import COMMANDS, Bulk, Opcode, Reply, State
from wireherd.protocol.version import NEWEST, SUPPORTED, Version
from wireherd.testing.strategies import frames, messages

#: every part of the extension, also those that nobody offers yet
ALL_FEATURES = sum(Feature)


class Pair:
    """A client and a server joined by memory."""

    def __init__(self, version=NEWEST, *, herd=False, purpose=Purpose.STREAM, offer=True, features=ALL_FEATURES):
        self.client = ClientConnection("worker a:1", version=version if version < Version(4, 0) else NEWEST)
        self.server = ServerConnection(version, herd=offer)
        self.to_server = FrameReader(self.server.incoming)
        self.to_client = FrameReader(self.client.incoming)
        self.ask(HelloRequest(), lambda message: self.server.hello_response())
        if herd:
            self.ask(HerdHelloRequest(purpose=purpose), lambda message: HerdHelloResponse(features=features))
            assert self.server.herd

    def send(self, message, bulk=b""):
        """Client to server; returns the frame, the message and the bulk as the server sees them."""
        self.to_server.feed(self.client.request(message, len(bulk)) + bulk)
        frame = self.to_server.next_frame()
        command, fixed, size = self.server.check(frame)
        seen = self.server.request(frame, bytes(self.to_server.take(fixed)))
        data = bytes(self.to_server.take(size))
        assert command is COMMANDS[frame.opcode]
        return frame, seen, data

    def answer(self, raw):
        """Server to client; returns what the client reads."""
        self.to_client.feed(raw)
        frame = self.to_client.next_frame()
        pending = self.client.match(frame)
        view = bytes(self.to_client.take(frame.size))
        if pending.reply is Reply.RAW and not frame.status:
            return view
        if pending.reply is Reply.EMPTY and pending.command.response is None and not frame.status:
            return view or EMPTY
        message = self.client.response(pending, frame, view)
        self.to_client.switch(self.client.incoming)
        self.to_server.switch(self.server.incoming)
        return message

    def ask(self, message, handler):
        frame, seen, _ = self.send(message)
        return self.answer(self.server.reply(frame, handler(seen)))


@pytest.mark.parametrize("version", SUPPORTED, ids=str)
def test_hello_decides_the_dialect(version):
    pair = Pair(version)
    assert pair.client.version == version
    assert pair.client.dialect is pair.server.dialect
    assert pair.client.herd_offered == (version.major >= 4)
    assert pair.client.state is pair.server.state is State.HELLO
    assert pair.ask(DeviceCountRequest(), lambda _: DeviceCountResponse(3)) == DeviceCountResponse(3)
    assert pair.client.state is pair.server.state is State.STREAM


@pytest.mark.parametrize("herd", [False, True], ids=["stock", "herd"])
@pytest.mark.parametrize("version", [v for v in SUPPORTED if v.major >= 4], ids=str)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_message_through_a_linked_pair(version, herd, data):
    pair = Pair(version, herd=herd)
    rows = [
        row
        for row in pair.client.dialect.rows.values()
        if State.STREAM in row.command.states and row.command.bulk_size is None
    ]
    row = data.draw(st.sampled_from(rows))
    message = data.draw(messages(row.command.request, pair.client.dialect))
    bulk = data.draw(st.binary(max_size=50)) if row.command.bulk is Bulk.REQUEST else b""
    frame, seen, received = pair.send(message, bulk)
    assert seen == message
    assert received == bulk
    assert frame.sequence == (1 if herd else 0)
    if row.reply is Reply.RECORD and not isinstance(message, (SupportsOpRequest, PingRequest)):
        answer = data.draw(messages(row.command.response, pair.client.dialect))
        assert pair.answer(pair.server.reply(frame, answer)) == answer
    elif row.reply is Reply.EMPTY:
        assert pair.answer(pair.server.reply(frame, data.draw(st.sampled_from([None, EMPTY])))) == EMPTY
    elif row.reply is Reply.NONE:
        with pytest.raises(LocalProtocolError):
            pair.server.reply(frame)
        assert not pair.client.pending


def test_raw_answers():
    for herd in (False, True):
        pair = Pair(herd=herd)
        raw = bytes(pair.client.dialect.tensor_dtype.itemsize)
        for request, size in ((GetTensorRequest(raw, 0, 10), 10), (GetTensor2DRequest(raw, 0, 5, 4, 8), 20)):
            frame, _, _ = pair.send(request)
            assert pair.server.reply_kind(frame) is Reply.RAW
            assert pair.answer(pair.server.reply(frame, bulk_size=size) + bytes(size)) == bytes(size)
            frame, _, _ = pair.send(request)
            pair.to_client.feed(pair.server.reply(frame, bulk_size=size + 1))
            with pytest.raises(BadLength, match="where"):
                pair.client.match(pair.to_client.next_frame())
            pair.to_client.feed(bytes(size + 1))
            pair.to_client.skip(size + 1)
            pair.client.close()
            pair = Pair(herd=herd)


def test_2d_data_must_have_the_size_it_says():
    pair = Pair()
    raw = bytes(296)
    message = SetTensor2DRequest(raw, 0, 6, 3, 32)
    assert pair.send(message, bytes(18))[2] == bytes(18)
    with pytest.raises(LocalProtocolError, match="does not carry"):
        pair.client.request(message, 17)
    body = pair.client.dialect.encode(message)
    frame = Frame(Opcode.SET_TENSOR_2D, 0, 0, 0, len(body) + 17)
    pair.server.check(frame)
    with pytest.raises(BadLength, match="17 bytes of data where 18 belong"):
        pair.server.request(frame, body)


def test_answers_keep_their_tags_in_order():
    pair = Pair()
    frames_sent = []
    for number in range(3):
        pair.to_server.feed(pair.client.request(DeviceCountRequest(), tag=number))
        frame = pair.to_server.next_frame()
        pair.server.check(frame)
        pair.server.request(frame, b"")
        frames_sent.append(frame)
    assert pair.client.pending == 3
    assert pair.client.oldest.tag == 0
    for number, frame in enumerate(frames_sent):
        pair.to_client.feed(pair.server.reply(frame, DeviceCountResponse(number)))
        seen = pair.to_client.next_frame()
        pending = pair.client.match(seen)
        assert pending.tag == number
        assert pair.client.response(pending, seen, pair.to_client.take(4)).count == number
    assert pair.client.oldest is None


def test_answers_nobody_asked_for():
    pair = Pair()
    with pytest.raises(OutOfOrder, match="nobody asked for"):
        pair.client.match(Frame(-1, REPLY, 0, 0, 4))
    herd = Pair(herd=True)
    herd.client.request(DeviceCountRequest())
    for frame in (Frame(15, REPLY, 0, 2, 4), Frame(8, REPLY, 0, 1, 4)):
        with pytest.raises(OutOfOrder, match="is due"):
            herd.client.match(frame)
    with pytest.raises(RemoteProtocolError, match="unknown flags"):
        herd.client.match(Frame(15, 3, 0, 1, 4))
    with pytest.raises(BadLength):
        herd.client.match(Frame(15, REPLY, 0, 1, 5))
    with pytest.raises(FrameTooLarge):
        herd.client.match(Frame(15, REPLY, 1, 1, 5000))


def test_error_answer_becomes_the_exception():
    pair = Pair(herd=True)
    frame, _, _ = pair.send(AllocBufferRequest(0, 10))
    with pytest.raises(NotAllowed, match="ALLOC_BUFFER: too much"):
        pair.answer(pair.server.error_reply(frame, NotAllowed("too much")))
    assert pair.client.pending == 0
    frame, _, _ = pair.send(AllocBufferRequest(0, 10))
    assert pair.answer(pair.server.reply(frame, AllocBufferResponse(1, 2))) == AllocBufferResponse(1, 2)


def test_error_frame_comes_between_answers():
    pair = Pair(herd=True)
    failed, _, _ = pair.send(GraphRecomputeRequest(0, 5))
    asked, _, _ = pair.send(DeviceCountRequest())
    notice = pair.answer(pair.server.error_frame(failed, BadRequest("no such graph")))
    assert (notice.opcode, notice.status, notice.sequence, notice.reason) == (16, 1, 1, "no such graph")
    progress = pair.answer(pair.server.progress_frame(asked, 3, 9))
    assert (progress.opcode, progress.sequence, progress.done, progress.total) == (15, 2, 3, 9)
    assert pair.client.pending == 1
    assert pair.answer(pair.server.reply(asked, DeviceCountResponse(1))).count == 1
    long = pair.server.error_frame(failed, BadRequest("ä" * 10_000))
    assert len(long) < 5000
    assert pair.answer(long).reason.startswith("ä")


def test_what_may_not_come_unasked():
    pair = Pair(herd=True)
    with pytest.raises(UnknownCommand, match="unasked"):
        pair.client.match(Frame(Opcode.DEVICE_COUNT, 0, 0, 0, 4))
    with pytest.raises(BadLength):
        pair.client.match(Frame(Opcode.PROGRESS, 0, 0, 0, 4))
    with pytest.raises(FrameTooLarge):
        pair.client.match(Frame(Opcode.ERROR, 0, 0, 0, 1 << 40))


def test_stock_knows_no_errors():
    pair = Pair()
    frame, _, _ = pair.send(AllocBufferRequest(0, 10))
    for call in (pair.server.error_reply, pair.server.error_frame):
        with pytest.raises(LocalProtocolError):
            call(frame, NoSuchBuffer("x"))
    herd = Pair(herd=True)
    silent, _, _ = herd.send(FreeBufferRequest(1))
    with pytest.raises(LocalProtocolError, match="no answer"):
        herd.server.error_reply(silent, NoSuchBuffer("x"))


def test_control_connection():
    pair = Pair(herd=True, purpose=Purpose.CONTROL)
    assert pair.client.state is pair.server.state is State.CONTROL
    assert pair.ask(PingRequest(7), lambda m: PingResponse(m.nonce)) == PingResponse(7)
    with pytest.raises(OutOfOrder, match="another PING"):
        pair.ask(PingRequest(7), lambda m: PingResponse(8))
    assert pair.send(CancelRequest())[1] == CancelRequest()
    with pytest.raises(LocalProtocolError, match="in state control"):
        pair.client.request(DeviceCountRequest())


def test_supports_op_tells_of_each_node():
    pair = Pair(herd=True)
    tensors = np.zeros(2, pair.client.dialect.tensor_dtype)
    request = SupportsOpRequest(0, np.array([1, 2], "<u8"), tensors)
    assert pair.ask(request, lambda m: SupportsOpResponse(b"\1\0")).supported == b"\1\0"
    with pytest.raises(BadLength, match="told of 3 nodes"):
        pair.ask(request, lambda m: SupportsOpResponse(b"\1\0\1"))


def test_features_that_were_not_agreed():
    pair = Pair(herd=True, features=0)
    with pytest.raises(LocalProtocolError, match="did not agree to DEVICE_INFO"):
        pair.client.request(DeviceInfoRequest(0))
    with pytest.raises(UnknownCommand, match="not agreed"):
        pair.server.check(Frame(Opcode.DEVICE_INFO, 0, 0, 1, 4))


def test_herd_hello_is_for_those_who_offer_it():
    pair = Pair(offer=False)
    assert not pair.client.herd_offered
    with pytest.raises(LocalProtocolError, match="does not understand"):
        pair.client.request(HerdHelloRequest())
    with pytest.raises(UnknownCommand, match="not offered"):
        pair.server.check(Frame(Opcode.HERD_HELLO, 0, 0, 0, 32))
    late = Pair()
    late.ask(DeviceCountRequest(), lambda _: DeviceCountResponse(1))
    with pytest.raises(LocalProtocolError, match="in state stream"):
        late.client.request(HerdHelloRequest())
    plain = ClientConnection(herd=False)
    plain.request(HelloRequest())
    frame = Frame(-1, REPLY, 0, 0, 28)
    plain.response(plain.match(frame), frame, plain.dialect.encode(HelloResponse(8, 0, 0, 1)))
    assert not plain.herd_offered


def test_herd_hello_refused():
    pair = Pair()
    frame, _, _ = pair.send(HerdHelloRequest())
    with pytest.raises(NotAllowed, match="no room"):
        pair.answer(pair.server.reply(frame, HerdHelloResponse(status=NotAllowed.status, build="no room")))
    assert pair.client.state is pair.server.state is State.CLOSED


def test_handshake_is_not_overtaken():
    client = ClientConnection()
    with pytest.raises(LocalProtocolError, match="in state new"):
        client.request(DeviceCountRequest())
    client.request(HelloRequest())
    with pytest.raises(LocalProtocolError, match="before the handshake"):
        client.request(HelloRequest())
    pair = Pair()
    pair.client.request(HerdHelloRequest())
    with pytest.raises(LocalProtocolError, match="before the handshake"):
        pair.client.request(DeviceCountRequest())


def test_unknown_server_versions_are_refused_in_one_sentence():
    for version in ((9, 0, 0), (8, 1, 0), (5, 3, 0), (107, 0, 0), (3, 5, 0)):
        client = ClientConnection("worker b:50052")
        client.request(HelloRequest())
        frame = Frame(-1, REPLY, 0, 0, 28)
        pending = client.match(frame)
        with pytest.raises(VersionMismatch, match=rf"worker b:50052 speaks ggml RPC {'.'.join(map(str, version))}"):
            client.response(pending, frame, client.dialect.encode(HelloResponse(*version)))


def test_requests_that_are_none():
    pair = Pair(Version(5, 0))
    for message in (HelloResponse(1, 0, 0), SetTensor2DRequest(bytes(296), 0, 1, 1, 1), PingRequest(1)):
        with pytest.raises(LocalProtocolError, match=r"is no request of ggml RPC 5\.0\.0"):
            pair.client.request(message)
    with pytest.raises(LocalProtocolError, match="does not carry"):
        pair.client.request(DeviceCountRequest(), 5)
    with pytest.raises(LocalProtocolError, match="larger than"):
        pair.client.request(SetTensorRequest(bytes(296), 0, 0), 1 << 60)
    frame, _, _ = pair.send(DeviceCountRequest())
    for wrong in (None, EMPTY, AllocBufferResponse(1, 1)):
        with pytest.raises(LocalProtocolError, match="does not answer"):
            pair.server.reply(frame, wrong)
    with pytest.raises(LocalProtocolError, match="not answered with data"):
        pair.server.reply(frame, DeviceCountResponse(1), 4)


def in_state(state, herd):
    if state is State.CONTROL:
        return Pair(herd=True, purpose=Purpose.CONTROL).server
    server = Pair(herd=herd).server if state is not State.NEW else ServerConnection()
    server.state = state
    return server


@pytest.mark.parametrize("herd", [False, True], ids=["stock", "herd"])
@pytest.mark.parametrize("state", State, ids=lambda state: state.value)
def test_sweep_of_states_and_opcodes(state, herd):
    """Each state takes exactly the commands whose row says so, in the right size, and refuses the rest as the peer's fault."""
    for opcode in range(256):
        server = in_state(state, herd)
        row = server.dialect.rows.get(opcode)
        legal = row is not None and row.request is not None and state in row.command.states
        sequence = 1 if server.herd else 0
        for size in (0, row.request_min if row else 1, 1 << 62):
            server.sequence = 0
            frame = Frame(opcode, 0, 0, sequence, size)
            fits = legal and row.request_min <= size <= row.request_max
            if fits:
                command, fixed, bulk = server.check(frame)
                assert (command.opcode, fixed + bulk) == (opcode, size)
            else:
                with pytest.raises(RemoteProtocolError):
                    server.check(frame)
    client = ClientConnection()
    client.state = state
    for command in COMMANDS.values():
        if command.request is not None and state not in command.states and command.request in client.dialect.codecs:
            fields = [0] * len(command.request.__dataclass_fields__)
            with pytest.raises(LocalProtocolError, match="may not be sent"):
                client.request(command.request(*fields))


@settings(max_examples=300, deadline=None)
@given(frame=frames(), herd=st.booleans(), data=st.data())
def test_garbage_frames_and_payloads_are_the_peers_fault(frame, herd, data):
    server = Pair(herd=herd).server
    with contextlib.suppress(RemoteProtocolError):
        _, fixed, _ = server.check(frame)
        server.request(frame, data.draw(st.one_of(st.just(bytes(fixed)), st.binary(max_size=fixed))))
    client = Pair(herd=herd).client
    client.request(DeviceCountRequest())
    size = min(frame.size, 30)
    with contextlib.suppress(RemoteProtocolError, RemoteError):
        client.response(client.match(frame), frame, data.draw(st.binary(min_size=size, max_size=size)))


def test_sequence_numbers_wrap_and_are_checked():
    pair = Pair(herd=True)
    pair.client.sequence = pair.server.sequence = (1 << 32) - 1
    assert pair.send(DeviceCountRequest())[0].sequence == 0
    with pytest.raises(OutOfOrder, match="number 5 where 1 is due"):
        pair.server.check(Frame(15, 0, 0, 5, 0))
    for frame in (Frame(15, REPLY, 0, 1, 0), Frame(15, 0, 9, 1, 0)):
        with pytest.raises(RemoteProtocolError, match="flags"):
            pair.server.check(frame)


def test_declared_sizes_are_refused_before_anything_is_read():
    server = Pair().server
    for opcode in (Opcode.SET_TENSOR, Opcode.GRAPH_COMPUTE, Opcode.SET_TENSOR_2D):
        with pytest.raises(FrameTooLarge, match="declares"):
            server.check(Frame(opcode, 0, 0, 0, 1 << 62))
    small = ServerConnection(state=State.STREAM, max_frame=1000)
    with pytest.raises(FrameTooLarge):
        small.check(Frame(Opcode.SET_TENSOR, 0, 0, 0, 1001))
    assert small.check(Frame(Opcode.SET_TENSOR, 0, 0, 0, 1000)).bulk_size == 1000 - 305


def test_taking_over_in_the_middle():
    server = ServerConnection(Version(5, 0), state=State.HELLO)
    assert server.check(Frame(Opcode.DEVICE_COUNT, 0, 0, 0, 0)).fixed_size == 0
    assert not server.herd
    server.close()
    with pytest.raises(OutOfOrder, match="state closed"):
        server.check(Frame(Opcode.DEVICE_COUNT, 0, 0, 0, 0))


def test_closing_tells_what_was_due():
    pair = Pair()
    pair.client.request(DeviceCountRequest(), tag="a")
    assert [pending.tag for pending in pair.client.close()] == ["a"]
    assert pair.client.pending == 0


def test_graph_goes_through_the_pair():
    pair = Pair(herd=True)
    tensors = np.zeros(3, pair.client.dialect.tensor_dtype)
    tensors["id"] = [1, 2, 3]
    message = GraphComputeRequest(0, 4, np.array([3], "<u8"), tensors)
    assert pair.send(message)[1] == message


def test_header_formats_of_a_connection():
    pair = Pair()
    assert pair.client.incoming is pair.server.outgoing is STOCK_RESPONSE
    herd = Pair(herd=True)
    assert herd.client.incoming is herd.server.outgoing is herd.client.outgoing is herd.server.incoming is HERD
    assert len(write_frame(HERD, 0, 0)) == 16
