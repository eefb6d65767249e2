"""What a client can make a worker spend beyond its buffers: memory, log, files on disk. All of it is bounded."""

from __future__ import annotations

import logging
import resource
from pathlib import Path

import numpy as np
import pytest
from building import BOOL, INT, Builder, Wire, alloc, do, herd_dispatcher
from inspecting import probes, sessions
from raw_client import Raw

from fuzz.wire import Wire as Line
from support import processes
from wireherd.errors import BadGraph, NoSuchGraph, OutOfMemory
from wireherd.protocol.kept import STOCK, UNASKED
from wireherd.protocol.messages_graph import GraphComputeRequest, GraphRecomputeRequest
from wireherd.protocol.messages_stock import AllocBufferRequest, BufferGetBaseRequest, FreeBufferRequest
from wireherd.protocol.table import Opcode
from wireherd.protocol.tensor import HERD_TENSOR
from wireherd.worker.logs import Throttle


@pytest.fixture
def worker():
    dispatcher = herd_dispatcher()
    yield dispatcher
    dispatcher.close()


@pytest.fixture
def build():
    builder = Builder()
    yield builder
    builder.close()


def views(worker, count):
    """A graph of so many nodes that do nothing: ids, records, buffer."""
    handle, base = alloc(worker, 4096)
    rows = np.zeros(count + 1, HERD_TENSOR)
    rows["id"] = np.arange(1, count + 2)
    rows["ne"], rows["nb"], rows["buffer"], rows["data"] = 1, 4, handle, base
    rows["op"][:count] = worker.state.table.names.index("VIEW")
    rows["src"][:count, 0] = count + 1
    rows["flags"][:count] = 16
    return rows["id"][:count].copy(), rows, handle


def compute(worker, uid, ids, rows):
    do(worker, Opcode.GRAPH_COMPUTE, GraphComputeRequest(0, uid, ids, rows))


def test_kept_graphs_are_bounded_in_bytes(worker, monkeypatch):
    """No limit on buffers counts them: 256 graphs of the largest frame would take 20 GiB."""
    ids, rows, handle = views(worker, 1000)
    each = ids.nbytes + rows.nbytes
    monkeypatch.setattr(worker.state.graphs, "_rule", UNASKED._replace(nbytes=10 * each))
    for uid in range(1, 41):
        compute(worker, uid, ids, rows)
    kept = len(worker.state.graphs)
    assert kept == 10
    do(worker, Opcode.GRAPH_RECOMPUTE, GraphRecomputeRequest(0, 40))
    do(worker, Opcode.GRAPH_RECOMPUTE, GraphRecomputeRequest(0, 41 - kept))
    with pytest.raises(NoSuchGraph):
        do(worker, Opcode.GRAPH_RECOMPUTE, GraphRecomputeRequest(0, 40 - kept))
    # what was dropped gives its room back, on every way out
    for uid in (40, 40, 39):
        compute(worker, uid, ids, rows)
    assert len(worker.state.graphs) == kept
    do(worker, Opcode.FREE_BUFFER, FreeBufferRequest(handle))
    assert not len(worker.state.graphs)
    assert worker.state.graphs._caches[0].rule.nbytes == 0


def test_a_graph_larger_than_all_room_is_still_kept_alone(worker, monkeypatch):
    ids, rows, _ = views(worker, 100)
    monkeypatch.setattr(worker.state.graphs, "_rule", UNASKED._replace(nbytes=1000))
    for uid in (1, 2):
        compute(worker, uid, ids, rows)
        do(worker, Opcode.GRAPH_RECOMPUTE, GraphRecomputeRequest(0, uid))
    assert len(worker.state.graphs) == 1


def test_the_bounds_leave_room_for_what_clients_keep():
    record = HERD_TENSOR.itemsize + 8
    assert STOCK.graphs * 1500 * record <= STOCK.nbytes
    assert UNASKED.graphs * 1500 * record <= UNASKED.nbytes


def test_a_product_cannot_make_work_memory_out_of_overlapping_rows(worker, build):
    """Source 1 is converted as a whole: 256 times its memory, were its rows to overlap as much as a view may."""
    a, b = build.tensor("f16", 256, 1), build.tensor("f32", 256, 1 << 16)
    out = build.call("ggml_mul_mat", a, b)
    wire = Wire([out], worker)
    wire.row(b)["nb"] = (4, 4, 4 << 16, 4 << 16)
    with pytest.raises(BadGraph, match="overlap"):
        do(worker, Opcode.GRAPH_COMPUTE, wire.compute())


def test_sizes_beside_a_zero_cannot_overflow(worker, build):
    """Empty tensors have no bytes, whatever their other sizes are; products of those must stay within 64 bits.

    The kernel of IM2COL here has 131071 x 131067 x 1073790978 x 0 elements. The first three come to 2^64 + 1072414730:
    a patch of the result would look that long, and the kernel would write 2^64 numbers.
    """
    kernel, image = build.tensor("f16", 3, 3, 2, 4), build.tensor("f16", 8, 8, 2)
    out = build.call("ggml_im2col", kernel, image, *[INT(n) for n in (1, 1, 0, 0, 1, 1)], BOOL(True), INT(1))
    wire = Wire([out], worker)
    assert do(worker, Opcode.SUPPORTS_OP, wire.question()).supported == b"\1"
    wire.row(kernel)["ne"], wire.row(kernel)["nb"] = (131071, 131067, 1073790978, 0), 2
    wire.row(image)["ne"], wire.row(image)["nb"] = (8, 8, 1073790978, 1), (2, 16, 128, 128)
    wire.row(out)["op_params"][:7] = (1, 1, 65535, 65535, 1, 1, 1)
    sizes = (1072414730, 8, 12, 1)
    wire.row(out)["ne"] = sizes
    wire.row(out)["nb"] = (2, 2 * sizes[0], 16 * sizes[0], 192 * sizes[0])
    assert do(worker, Opcode.SUPPORTS_OP, wire.question()).supported == b"\0"


def test_many_buffers_cannot_promise_more_memory_than_there_is(worker):
    """Memory that nobody has written to is still free for the system, so a look at what is free does not help."""
    free, total = worker.state.devices.get(0).memory()
    piece = free // 2
    for _ in range(total // piece):
        do(worker, Opcode.ALLOC_BUFFER, AllocBufferRequest(0, piece))
    with pytest.raises(OutOfMemory):
        do(worker, Opcode.ALLOC_BUFFER, AllocBufferRequest(0, piece))


class TestLog:
    def test_lines_are_bounded_and_counted(self):
        now = [0.0]
        throttle = Throttle(burst=3, rate=2.0, clock=lambda: now[0])

        def passes(*args):
            record = logging.LogRecord("wireherd", logging.INFO, "", 0, "line %d", args, None)
            return record.getMessage() if throttle.filter(record) else None

        assert [passes(n) for n in range(5)] == ["line 0", "line 1", "line 2", None, None]
        now[0] = 0.5
        assert passes(5) == "line 5 (2 lines before this were left out)"
        assert passes(6) is None
        now[0] = 100.0
        assert [passes(n) for n in range(7, 11)] == [
            "line 7 (1 lines before this were left out)",
            "line 8",
            "line 9",
            None,
        ]

    def test_a_client_cannot_fill_the_disk_with_refusals(self, start):
        running = start()
        with Line(running.endpoint) as line:
            for _ in range(20):
                line.send(b"".join(line.request(BufferGetBaseRequest(1)) for _ in range(50)))
                for _ in range(50):
                    assert line.read_herd().status
        lines = running.log().count("BUFFER_GET_BASE refused")
        assert 0 < lines < 400, f"{lines} lines for 1000 refusals"


@pytest.mark.skipif(not processes.HAVE_PROC, reason="looks at processes through /proc")
def test_what_a_client_breaks_is_its_session_alone(start):
    """Out of memory, the system takes a session first; an abort starts no debugger and leaves no core file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    try:
        running = start()
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
    with Raw(running.port) as client:
        assert client.alloc(4096)
        processes.wait_until(lambda: len(sessions(running)) == 2, 10, "the next warm session")
        for pid in [*sessions(running), *probes(running)]:
            score = Path(f"/proc/{pid}/oom_score_adj")
            processes.wait_until(lambda score=score: int(score.read_text()) >= 500, 10, "the system to be told")
            assert b"GGML_NO_BACKTRACE=" in Path(f"/proc/{pid}/environ").read_bytes()
            limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
            assert next(line for line in limits if "core file" in line).split()[4] == "0"
        own = int(Path("/proc/self/oom_score_adj").read_text())
        assert int(Path(f"/proc/{running.pid}/oom_score_adj").read_text()) == own
