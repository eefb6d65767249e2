"""A session that computes for seconds: PING is answered, CANCEL heard, and it ends with its client or its supervisor."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from support import processes
from wireherd.errors import Cancelled, WireherdError
from wireherd.protocol.messages_graph import GraphComputeRequest
from wireherd.protocol.messages_herd import CancelRequest, ErrorNotice, PingRequest, PingResponse
from wireherd.protocol.messages_stock import (
    AllocBufferRequest,
    BufferClearRequest,
    BufferGetBaseRequest,
    GetTensorRequest,
)
from wireherd.protocol.tensor import HERD_TENSOR
from wireherd.session.handshake import open_control, open_stream

COMPUTE = 16
SIDE = 1024
BYTES = SIDE * SIDE * 4


class Client:
    """One stream of the extension, command by command."""

    def __init__(self, endpoint):
        self.endpoint = endpoint
        opened = open_stream(endpoint, timeout_s=10)
        self.connection, self.frames, self.address = opened.connection, opened.frames, opened.address
        self.hello = self.connection.hello
        self.controls = []

    def post(self, message):
        self.frames.send([self.connection.request(message)])

    def wait(self):
        frame = self.frames.frame()
        if frame is None:
            return None
        pending = self.connection.match(frame)
        return self.connection.response(pending, frame, bytes(self.frames.take(frame.size)))

    def call(self, message):
        self.post(message)
        return self.wait()

    def control(self):
        opened = open_control(self.endpoint, self.address, self.hello.session, timeout_s=10)
        self.controls.append(opened.frames.stream)
        return opened

    def compute(self, nodes):
        """Start a graph of `nodes` products of 1024 x 1024 matrices, each of about two billion multiplications."""
        handle = self.call(AllocBufferRequest(0, 3 * BYTES)).remote_ptr
        base = self.call(BufferGetBaseRequest(handle)).base_ptr
        self.post(BufferClearRequest(handle, 0))
        rows = np.zeros(nodes + 2, HERD_TENSOR)
        rows["id"] = np.arange(1, nodes + 3)
        rows["buffer"] = handle
        rows["ne"] = (SIDE, SIDE, 1, 1)
        rows["nb"] = (4, SIDE * 4, BYTES, BYTES)
        rows["data"] = base
        for index in range(1, nodes + 2):
            rows["data"][index] = base + (1 + index % 2) * BYTES
            if index > 1:
                rows["op"][index] = self.hello.ops.index("MUL_MAT")
                rows["flags"][index] = COMPUTE
                rows["src"][index][:2] = (1, index)
        self.post(GraphComputeRequest(0, 0, rows["id"][2:].astype("<u8"), rows))
        return rows

    def close(self):
        for stream in self.controls:
            stream.close()
        self.frames.stream.close()


@pytest.fixture
def worker(start):
    """A worker of its own for every test: most of them end it, or its session."""
    return start()


@pytest.fixture
def client(worker):
    client = Client(worker.endpoint)
    yield client
    client.close()


def session_pid(worker):
    return int(re.findall(r"session \d+ \(pid (\d+)\)", worker.log())[-1])


def ping(control, nonce):
    connection, frames = control.connection, control.frames
    begun = time.monotonic()
    frames.send([connection.request(PingRequest(nonce))])
    frame = frames.frame()
    answer = connection.response(connection.match(frame), frame, frames.take(frame.size))
    assert answer == PingResponse(nonce)
    return time.monotonic() - begun


def test_the_handshake_names_the_session(client):
    assert len(client.hello.session) == 16
    assert any(client.hello.session)
    assert "MUL_MAT" in client.hello.ops
    assert client.call(PingRequest(5)) == PingResponse(5)


def test_two_sessions_have_two_names_and_a_stranger_cannot_join(worker, client):
    other = Client(worker.endpoint)
    assert other.hello.session != client.hello.session
    with pytest.raises(WireherdError):
        open_control(worker.endpoint, client.address, b"x" * 16, timeout_s=5)
    other.close()


def test_ping_is_answered_while_a_graph_runs(client):
    control = client.control()
    idle = [ping(control, nonce) for nonce in range(20)]
    rows = client.compute(60)
    client.post(GetTensorRequest(rows[-1].tobytes(), 0, 4))
    begun = time.monotonic()
    busy = []
    while not client.frames.stream.wait(read=True, write=False, timeout_s=0)[0] and time.monotonic() - begun < 20:
        busy.append(ping(control, len(busy)))
        time.sleep(0.02)
    took = time.monotonic() - begun
    frame = client.frames.frame()
    assert frame.status == 0, bytes(client.frames.take(frame.size))
    assert bytes(client.frames.take(frame.size)) == bytes(4)
    assert took > 0.5, "the graph was too short to show anything"
    assert len(busy) >= 5
    assert max(busy) < 0.4, (max(idle), busy)


def test_cancel_stops_the_graph(client):
    control = client.control()
    client.compute(2000)
    ping(control, 1)
    time.sleep(0.3)
    begun = time.monotonic()
    control.frames.send([control.connection.request(CancelRequest())])
    notice = client.wait()
    assert isinstance(notice, ErrorNotice)
    assert notice.status == Cancelled.status
    assert time.monotonic() - begun < 2


def test_a_client_that_hangs_up_ends_its_graph(worker, client):
    client.compute(2000)
    time.sleep(0.3)
    pid = session_pid(worker)
    assert processes.alive(pid)
    begun = time.monotonic()
    client.close()
    processes.wait_until(lambda: not Path(f"/proc/{pid}").exists(), 5, "the session ends")
    assert time.monotonic() - begun < 4
    processes.wait_until(lambda: "disconnected" in worker.log(), 2, "the log says so")


def test_a_computing_session_dies_with_its_supervisor(worker, client):
    client.compute(2000)
    time.sleep(0.3)
    pid = session_pid(worker)
    begun = time.monotonic()
    worker.kill()
    processes.wait_until(lambda: not processes.alive(pid), 1, "the session follows")
    assert time.monotonic() - begun < 1


def test_a_computing_session_ends_with_sigterm(worker, client):
    client.compute(2000)
    time.sleep(0.3)
    pid = session_pid(worker)
    begun = time.monotonic()
    os.kill(worker.pid, signal.SIGTERM)
    processes.wait_until(lambda: worker.returncode is not None, 2, "the worker ends")
    assert time.monotonic() - begun < 1
    assert worker.returncode == 0
    assert not Path(f"/proc/{pid}").exists()


def test_control_connections_are_bounded(client):
    opened = [client.control() for _ in range(8)]
    with pytest.raises(WireherdError):
        client.control()
    assert ping(opened[0], 3) < 1
    assert client.call(PingRequest(6)) == PingResponse(6)
