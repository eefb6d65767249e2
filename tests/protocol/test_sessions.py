"""Captured stock sessions as golden vectors: every byte of them is understood, and encodes to itself."""

from __future__ import annotations

import argparse
import functools
import lzma
import pathlib

import pytest

from wireherd.cli import explain as verb
from wireherd.errors import RemoteProtocolError, UsageError, VersionMismatch
from wireherd.protocol.connection import ClientConnection, ServerConnection
from wireherd.protocol.dialect import dialect_for
from wireherd.protocol.explain import explain
from wireherd.protocol.framing import HERD, REPLY, STOCK_REQUEST, STOCK_RESPONSE, Frame, FrameReader, write_frame
from wireherd.protocol.messages_herd import DeviceInfoRequest, DeviceInfoResponse, HerdHelloRequest, HerdHelloResponse
from wireherd.protocol.messages_stock import AllocBufferRequest, HelloRequest, HelloResponse
from wireherd.protocol.table import Bulk, Opcode, Reply, State
from wireherd.protocol.version import NEWEST, Version

DATA = pathlib.Path(__file__).parent.parent / "data" / "sessions"
NAMES = sorted(path.name.removesuffix(".log") for path in DATA.glob("*.log"))


@functools.cache
def load(name):
    return tuple(lzma.decompress((DATA / f"{name}.{side}.bin.xz").read_bytes()) for side in ("c2s", "s2c"))


def log(name):
    """What the recording proxy counted: (commands with sizes, sizes of answers)."""
    asked, answered = [], []
    for line in (DATA / f"{name}.log").read_text().splitlines():
        words = line.split()[1:]
        if words[0] == ">":
            asked.append((words[1], int(words[2])))
        else:
            answered.append(int(words[1]))
    return asked, answered


def test_the_sessions_are_there():
    assert len(NAMES) == 8


@pytest.mark.parametrize("name", NAMES)
def test_explain_leaves_no_remainder(name):
    c2s, s2c = load(name)
    lines = list(explain(c2s, s2c))
    asked, answered = log(name)
    assert lines[-2] == f"c2s: {len(asked)} frames, {len(c2s)} of {len(c2s)} bytes"
    assert lines[-1] == f"s2c: {len(answered)} frames, {len(s2c)} of {len(s2c)} bytes"
    told = [line.split()[2] for line in lines[:-2] if line.startswith("c2s")]
    assert told == [command for command, _ in asked]
    assert not any("#" in line.split("tensor=")[0] for line in lines if "node_ids" not in line)


def frames_of(data, header):
    at = 0
    while at < len(data):
        frame = header.unpack(data, at)
        at += header.size
        yield frame, data[at : at + frame.size]
        at += frame.size
    assert at == len(data)


@pytest.mark.parametrize("name", NAMES)
def test_both_ends_relive_the_session_to_the_byte(name):
    """A client connection writes the captured requests anew, a server connection the answers, each byte the same."""
    c2s, s2c = load(name)
    version = Version.parse(name[1:].split("-")[0])
    client, server = ClientConnection(), ServerConnection(version, herd=False)
    answers = frames_of(s2c, STOCK_RESPONSE)
    again_c2s, again_s2c = [], []
    for frame, payload in frames_of(c2s, STOCK_REQUEST):
        command, fixed, bulk = server.check(frame)
        message = server.request(frame, payload[:fixed])
        again_c2s.append(client.request(message, bulk) + payload[fixed:])
        kind = server.reply_kind(frame)
        if kind is Reply.NONE:
            continue
        seen, body = next(answers)
        pending = client.match(seen)
        assert pending.command is command
        if kind is Reply.RAW:
            again_s2c.append(server.reply(frame, bulk_size=len(body)) + body)
        else:
            again_s2c.append(server.reply(frame, client.response(pending, seen, body)))
    assert next(answers, None) is None
    assert b"".join(again_c2s) == c2s
    assert b"".join(again_s2c) == s2c
    assert client.pending == 0
    assert client.version == version


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("piece", [1, 1000, 1 << 20])
def test_the_reader_cuts_the_session_the_same_in_any_pieces(name, piece):
    data = load(name)[0][: 20_000 if piece == 1 else None]
    reader = FrameReader(STOCK_REQUEST)
    found, frame = [], None
    for at in range(0, len(data), piece):
        reader.feed(data[at : at + piece])
        while True:
            frame = frame or reader.next_frame()
            if frame is None or (reader.payload_left and (reader.take(frame.size) is None)):
                break
            found.append((Opcode(frame.opcode).name, frame.size))
            frame = None
    assert found == log(name)[0][: len(found)]
    assert piece == 1 or len(found) == len(log(name)[0])


def test_use_counts_are_in_the_5_1_capture():
    c2s, _ = load("v5.1-tiny-s1.0.21")
    dialect = dialect_for(Version(5, 1))
    graphs = [
        dialect.decode_request(frame.opcode, body)
        for frame, body in frames_of(c2s, STOCK_REQUEST)
        if frame.opcode == 10
    ]
    assert graphs
    assert all((graph.tensors["use_count"] >= 0).all() and graph.tensors["use_count"].max() > 0 for graph in graphs)
    assert all(set(graph.node_ids.tolist()) <= set(graph.tensors["id"].tolist()) for graph in graphs)


@pytest.mark.parametrize("cut", [(0, 0), (5, 5), (33, 10), (33, 36), (40, 100), (1000, 0), (1000, 60), (-1, -1)])
def test_a_cut_off_capture_is_read_as_far_as_it_goes(cut):
    c2s, s2c = load("v8.0-tiny-s2layer.1.8")
    lines = list(explain(c2s[: cut[0]], s2c[: cut[1]]))
    sizes = len(c2s[: cut[0]]), len(s2c[: cut[1]])
    for line, size in zip(lines[-2:], sizes, strict=True):
        assert f"of {size} bytes" in line
        done = int(line.split()[3])
        assert (f"{size - done} bytes left" in line) == (done < size)


def test_captures_that_break_the_protocol():
    c2s, s2c = load("v8.0-tiny-s1.0.12")
    with pytest.raises(RemoteProtocolError, match="begins with ALLOC_BUFFER"):
        list(explain(c2s[33:], s2c))
    with pytest.raises(RemoteProtocolError, match="no command 99"):
        list(explain(c2s[:33] + b"\x63" + bytes(8), s2c))
    hello = write_frame(STOCK_RESPONSE, 0, 28) + dialect_for(NEWEST).encode(HelloResponse(9, 0, 0))
    with pytest.raises(VersionMismatch, match=r"9\.0\.0"):
        list(explain(c2s, hello))
    old = write_frame(STOCK_REQUEST, Opcode.HELLO, 0), write_frame(STOCK_RESPONSE, 0, 3) + bytes([3, 6, 1])
    assert "major=3 minor=6 patch=1" in list(explain(*old))[1]


def herd_capture():
    client, server = ClientConnection(), ServerConnection()
    c2s, s2c = [], []

    def ask(message, answer, before=None):
        raw = client.request(message)
        c2s.append(raw)
        header = server.incoming
        frame = header.unpack(raw, 0)
        server.check(frame)
        server.request(frame, raw[header.size :])
        if before is not None:
            s2c.append(before(frame))
        reply = server.reply(frame, answer) if not isinstance(answer, Exception) else server.error_reply(frame, answer)
        s2c.append(reply)
        header = client.incoming
        seen = header.unpack(reply, 0)
        pending = client.match(seen)
        if not isinstance(answer, Exception):
            client.response(pending, seen, reply[header.size :])

    ask(HelloRequest(), server.hello_response())
    ask(HerdHelloRequest(), HerdHelloResponse(features=15, build="b11549", ops=("NONE", "ADD"), types=("f32",)))
    info = DeviceInfoResponse("CPU", "a processor", 0, 8, 1, 1 << 33, 32, 3)
    ask(DeviceInfoRequest(0), info, lambda frame: server.progress_frame(frame, 1, 2))
    from wireherd.errors import OutOfMemory

    ask(AllocBufferRequest(0, 9), OutOfMemory("only 5 bytes are free"))
    s2c.append(server.error_frame(Frame(10, 0, 0, 3, 0), OutOfMemory("gone")))
    assert client.state is server.state is State.STREAM
    return b"".join(c2s), b"".join(s2c)


def test_our_extension_is_explained_too():
    text = "\n".join(explain(*herd_capture()))
    for words in (
        "HERD_HELLO magic=", "ops=[NONE, ADD]", "PROGRESS opcode=130 sequence=1 done=1 total=2",
        "DEVICE_INFO #1 -> name='CPU' description='a processor'", "memory_total=0x200000000",
        "ALLOC_BUFFER #2 -> status 5: only 5 bytes are free", "ERROR opcode=10 status=5 sequence=3 reason='gone'",
    ):  # fmt: skip
        assert words in text, text
    assert "left" not in text


def test_every_cut_of_our_extension_is_survived():
    c2s, s2c = herd_capture()
    for end in range(len(s2c)):
        lines = list(explain(c2s, s2c[:end]))
        assert lines[-1].startswith("s2c: ")


def test_bulk_commands_are_in_the_captures():
    dialect = dialect_for(NEWEST)
    seen = {frame.opcode for name in NAMES for frame, _ in frames_of(load(name)[0], STOCK_REQUEST)}
    assert {opcode for opcode in seen if dialect.command(opcode).bulk is Bulk.REQUEST} == {6, 18}
    assert {Opcode.COMM_INIT, Opcode.COMM_ALLREDUCE, Opcode.GRAPH_RECOMPUTE} <= seen


def run_verb(*argv):
    parser = argparse.ArgumentParser()
    verb.add_parser(parser.add_subparsers())
    args = parser.parse_args(["explain", *argv])
    return args.main(args)


def test_the_verb(capsys, tmp_path):
    name = NAMES[0]
    files = [str(DATA / f"{name}.{side}.bin.xz") for side in ("c2s", "s2c")]
    assert run_verb("--c2s", files[0], "--s2c", files[1]) == 0
    packed = capsys.readouterr().out
    plain = [tmp_path / "c2s", tmp_path / "s2c"]
    for path, data in zip(plain, load(name), strict=True):
        path.write_bytes(data)
    assert run_verb("--c2s", str(plain[0]), "--s2c", str(plain[1])) == 0
    assert capsys.readouterr().out == packed
    assert packed.startswith("c2s 0x00000000 HELLO")
    with pytest.raises(UsageError, match="cannot read"):
        run_verb("--c2s", str(tmp_path / "none"), "--s2c", files[1])
    plain[0].write_bytes(b"\xfd7zXZ\x00garbage")
    with pytest.raises(UsageError, match="cannot read"):
        run_verb("--c2s", str(plain[0]), "--s2c", files[1])


def test_flags_of_answers():
    assert HERD.unpack(write_frame(HERD, 1, 2, sequence=3, status=4, flags=REPLY), 0) == Frame(1, REPLY, 4, 3, 2)
