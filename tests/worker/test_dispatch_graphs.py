"""Graphs run by the real ggml: results against numpy, what is kept, what is looked at before each run."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from building import F32, I64, INT, SIZE, Builder, Wire, do, fetch, herd_dispatcher, put

from wireherd import ggml
from wireherd.errors import BadGraph, Cancelled, NoSuchDevice, NoSuchGraph, OutOfBounds, UnsupportedOp
from wireherd.protocol.dialect import dialect_for
from wireherd.protocol.kept import UNASKED
from wireherd.protocol.messages_graph import GraphComputeRequest, GraphRecomputeRequest, SupportsOpRequest
from wireherd.protocol.messages_stock import FreeBufferRequest
from wireherd.protocol.table import Opcode
from wireherd.protocol.version import Version
from wireherd.worker import graphs
from wireherd.worker.dispatch import Dispatcher
from wireherd.worker.settings import WorkerSettings


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


def run(worker, wire, uid=0):
    do(worker, Opcode.GRAPH_COMPUTE, wire.compute(uid))


def again(worker, uid, device=0):
    do(worker, Opcode.GRAPH_RECOMPUTE, GraphRecomputeRequest(device, uid))


def floats(worker, wire, pointer):
    row = wire.row(pointer)
    shape = [int(n) for n in row["ne"][::-1]]
    return np.frombuffer(fetch(worker, row, 4 * int(np.prod(shape))), np.float32).reshape(shape)


def addition(worker, build, n=4):
    a, b = build.tensor("f32", n), build.tensor("f32", n)
    out = build.call("ggml_add", a, b)
    wire = Wire([out], worker)
    put(worker, wire.row(a), np.arange(n, dtype=np.float32))
    put(worker, wire.row(b), np.full(n, 10, np.float32))
    return wire, a, b, out


def test_products_against_numpy(worker, build):
    rng = np.random.default_rng(0)
    w, x = build.tensor("f32", 64, 16, 2), build.tensor("f32", 64, 5, 4)
    product = build.call("ggml_mul_mat", w, x)
    out = build.call("ggml_silu", build.call("ggml_scale", product, F32(0.5)))
    wire = Wire([out], worker)
    weights, data = (
        rng.standard_normal((2, 16, 64)).astype(np.float32),
        rng.standard_normal((4, 5, 64)).astype(np.float32),
    )
    put(worker, wire.row(w), weights)
    put(worker, wire.row(x), data)
    run(worker, wire)
    expected = np.einsum("bnk,bmk->bnm", data, np.repeat(weights, 2, axis=0)) * 0.5
    expected = expected / (1 + np.exp(-expected))
    np.testing.assert_allclose(floats(worker, wire, out)[0], expected, rtol=1e-4, atol=1e-4)


def test_attention_against_numpy(worker, build):
    rng = np.random.default_rng(1)
    q, k, v = build.tensor("f32", 32, 3, 4), build.tensor("f32", 32, 8, 2), build.tensor("f32", 32, 8, 2)
    mask = build.tensor("f16", 8, 3)
    out = build.call("ggml_flash_attn_ext", q, k, v, mask, F32(0.25), F32(0.0), F32(0.0))
    wire = Wire([out], worker)
    queries, keys, values = (
        rng.standard_normal(shape).astype(np.float32) for shape in ((4, 3, 32), (2, 8, 32), (2, 8, 32))
    )
    hidden = np.where(np.arange(8)[None, :] > np.arange(3)[:, None] + 4, -np.inf, 0).astype(np.float16)
    for tensor, data in ((q, queries), (k, keys), (v, values), (mask, hidden)):
        put(worker, wire.row(tensor), data)
    run(worker, wire)
    scores = np.einsum("hqd,hkd->hqk", queries, np.repeat(keys, 2, axis=0)) * 0.25 + hidden.astype(np.float32)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    expected = np.einsum("hqk,hkd->qhd", weights, np.repeat(values, 2, axis=0))
    np.testing.assert_allclose(floats(worker, wire, out).reshape(3, 4, 32), expected, rtol=1e-2, atol=1e-2)


def test_a_kept_graph_runs_on_new_data(worker, build):
    wire, a, _, out = addition(worker, build)
    run(worker, wire, uid=5)
    assert floats(worker, wire, out).ravel().tolist() == [10, 11, 12, 13]
    put(worker, wire.row(a), np.zeros(4, np.float32))
    again(worker, 5)
    assert floats(worker, wire, out).ravel().tolist() == [10] * 4
    assert len(worker.state.graphs) == 1


def test_what_is_not_kept_cannot_run_again(worker, build):
    wire, *_ = addition(worker, build)
    run(worker, wire)
    for uid in (0, 1, 1 << 63):
        with pytest.raises(NoSuchGraph):
            again(worker, uid)
    with pytest.raises(NoSuchDevice):
        again(worker, 1, device=3)
    with pytest.raises(NoSuchDevice):
        do(worker, Opcode.GRAPH_COMPUTE, GraphComputeRequest(9, 0, wire.node_ids, wire.rows))


def test_the_last_graphs_are_kept_for_who_does_not_ask(worker, build, monkeypatch):
    monkeypatch.setattr(worker.state.graphs, "_rule", UNASKED._replace(graphs=4))
    wire, *_ = addition(worker, build)
    for uid in range(1, 8):
        run(worker, wire, uid)
    run(worker, wire, 5)  # sent again: now the newest
    assert len(worker.state.graphs) == 4
    for uid in (4, 5, 6, 7):
        again(worker, uid)
    run(worker, wire, 8)
    with pytest.raises(NoSuchGraph):
        again(worker, 4)
    again(worker, 5)


def test_freeing_a_buffer_drops_the_graphs_that_touch_it_and_no_others(worker, build):
    one, *_ = addition(worker, build)
    two, _, _, out = addition(worker, build)
    run(worker, one, 1)
    run(worker, two, 2)
    do(worker, Opcode.FREE_BUFFER, FreeBufferRequest(one.handle))
    with pytest.raises(NoSuchGraph):
        again(worker, 1)
    again(worker, 2)
    assert floats(worker, two, out).ravel().tolist() == [10, 11, 12, 13]


def test_before_8_0_a_device_keeps_its_last_graph(build):
    dialect = dialect_for(Version(7, 0))
    stock = Dispatcher(ggml.load(), WorkerSettings(threads=1), dialect)
    stock.state.buffers.speak(dialect_for(Version(8, 0), herd=True), None)
    wire, a, _, out = addition(stock, build)
    do(stock, Opcode.GRAPH_COMPUTE, wire.compute())
    put(stock, wire.row(a), np.ones(4, np.float32))
    do(stock, Opcode.GRAPH_RECOMPUTE, GraphRecomputeRequest(0, 0))
    assert floats(stock, wire, out).ravel().tolist() == [11] * 4
    other, *_ = addition(stock, build)
    do(stock, Opcode.GRAPH_COMPUTE, other.compute())
    assert len(stock.state.graphs) == 1
    do(stock, Opcode.FREE_BUFFER, FreeBufferRequest(other.handle))
    with pytest.raises(NoSuchGraph):
        do(stock, Opcode.GRAPH_RECOMPUTE, GraphRecomputeRequest(0, 0))
    stock.close()


@pytest.mark.parametrize("marked", [(0, 1), (1,)], ids=["neither", "one"])
def test_before_4_0_every_node_runs_unless_one_is_marked(worker, build, marked):
    """3.6.0 has no such flag and 3.6.1 has; HELLO tells the worker of neither."""
    worker.state.graphs._compute_flag = False
    source = build.tensor("f32", 4)
    outs = [build.call("ggml_sqr", source), build.call("ggml_neg", source)]
    wire = Wire(outs, worker)
    put(worker, wire.row(source), np.full(4, 3, np.float32))
    for number, out in enumerate(outs):
        put(worker, wire.row(out), np.zeros(4, np.float32))
        wire.row(out)["flags"] = 16 if marked == (1,) and number == 1 else 0
    do(worker, Opcode.GRAPH_COMPUTE, wire.compute())
    ran = [bool(floats(worker, wire, out).any()) for out in outs]
    assert ran == [number in marked for number in range(2)]


def test_nodes_without_the_flag_do_not_run(worker, build):
    """Their sources may hold anything: an index that would end the process is never looked at."""
    table, ids = build.tensor("f32", 4, 8), build.tensor("i32", 2)
    lookup = build.call("ggml_get_rows", table, ids)
    wire = Wire([lookup], worker)
    put(worker, wire.row(ids), np.full(2, 1 << 30, np.int32))
    wire.row(lookup)["flags"] = 0
    run(worker, wire, 1)
    again(worker, 1)
    wire.row(lookup)["flags"] = 16
    with pytest.raises(OutOfBounds):
        run(worker, wire, 2)


@pytest.mark.parametrize(
    ("kind", "dtype", "count"), [("i32", np.int32, 2), ("i64", np.int64, 2), ("i64", np.int64, 40)]
)
def test_indices_of_the_client_are_looked_at_before_each_run(worker, build, kind, dtype, count):
    target, rows, ids = build.tensor("f16", 32, 64), build.tensor("f32", 32, count), build.tensor(kind, count)
    wire = Wire([build.call("ggml_set_rows", target, rows, ids)], worker)
    run(worker, wire, 1)
    for bad in (64, -1, 1 << 30):
        values = np.arange(count, dtype=dtype)
        values[-1] = bad
        put(worker, wire.row(ids), values)
        with pytest.raises(OutOfBounds, match="index"):
            again(worker, 1)
    put(worker, wire.row(ids), np.arange(count, dtype=dtype))
    again(worker, 1)


def test_experts_chosen_by_the_graph_are_in_range(worker, build):
    from opcases import _moe

    out = _moe(build)
    wire = Wire([out], worker)
    run(worker, wire, 1)
    kept = worker.state.graphs._caches[0].graphs[1]
    assert len(kept.parts) == 1
    assert not kept.parts[0].watches, "ARGSORT cannot leave its row"


@pytest.mark.parametrize("good", [True, False])
def test_indices_computed_otherwise_are_looked_at_between_two_parts(worker, build, good):
    """Indices by arithmetic (some models compute expert numbers so): ggml would read out of bounds without a word."""
    number = build.tensor("f32", 2, 3)
    ids = build.call("ggml_cast", build.call("ggml_scale", number, F32(0.5)), INT(26))
    weights, data = build.tensor("f32", 32, 8, 4), build.tensor("f32", 32, 2, 3)
    out = build.call("ggml_mul_mat_id", weights, data, ids)
    wire = Wire([out], worker)
    rng = np.random.default_rng(3)
    experts, inputs = (
        rng.standard_normal((4, 8, 32)).astype(np.float32),
        rng.standard_normal((3, 2, 32)).astype(np.float32),
    )
    chosen = np.array([[0, 6], [2, 4], [6, 0]], np.float32)
    if not good:
        chosen[1, 1] = 8
    for tensor, values in ((number, chosen), (weights, experts), (data, inputs)):
        put(worker, wire.row(tensor), values)
    if not good:
        with pytest.raises(OutOfBounds, match="index"):
            run(worker, wire, 1)
        return
    run(worker, wire, 1)
    assert len(worker.state.graphs._caches[0].graphs[1].parts) == 2
    expected = np.einsum("tsk,tsnk->tsn", inputs, experts[(chosen / 2).astype(int)])
    np.testing.assert_allclose(floats(worker, wire, out)[0], expected, rtol=1e-4, atol=1e-4)
    again(worker, 1)


def test_overwritten_choices_are_not_trusted(worker, build):
    """The order comes from ARGSORT, but another node writes over it before it is used."""
    order = build.call("ggml_argsort", build.tensor("f32", 4, 3), INT(1))
    spoiler = build.call("ggml_scale", build.tensor("f32", 4, 3), F32(1.0))
    ids = build.call("ggml_view_2d", order, I64(2), I64(3), SIZE(16), SIZE(0))
    out = build.call("ggml_mul_mat_id", build.tensor("f32", 32, 8, 4), build.tensor("f32", 32, 1, 3), ids)
    wire = Wire([order, spoiler, out], worker)
    wire.row(spoiler)["data"] = wire.row(order)["data"]
    put(worker, wire.rows[wire.place_of[spoiler] + 1], np.full((3, 4), 1e9, np.float32))
    with pytest.raises(OutOfBounds, match="index"):
        run(worker, wire)


def test_a_result_on_its_own_indices(worker, build):
    table, ids = build.tensor("i32", 4, 8), build.tensor("i32", 4)
    out = build.call("ggml_get_rows", table, ids)
    wire = Wire([out], worker)
    wire.row(ids)["data"] = wire.row(out)["data"]
    with pytest.raises(BadGraph, match="indices"):
        run(worker, wire)


def test_zero_elements_run_as_nothing(worker, build):
    a, b = build.tensor("f32", 8, 0), build.tensor("f32", 8, 3)
    wire = Wire([build.call("ggml_mul_mat", a, b)], worker)
    run(worker, wire, 1)
    again(worker, 1)


def test_cancel_stops_a_running_graph(worker, build):
    x = build.tensor("f32", 512, 512)
    out = x
    for _ in range(400):
        out = build.call("ggml_mul_mat", x, out)
    wire = Wire([out], worker)
    timer = threading.Timer(0.2, worker.cancel)

    def work():
        for _ in range(200):
            run(worker, wire, 1)

    begin = time.monotonic()
    timer.start()
    with pytest.raises(Cancelled):
        work()
    timer.join()
    assert time.monotonic() - begin < 10
    with pytest.raises(Cancelled):
        again(worker, 1)


def test_supports_op_judges_each_node_alone(worker, build):
    good = build.call("ggml_add", build.tensor("f32", 4), build.tensor("f32", 4))
    bad = build.call("ggml_mul", build.tensor("f32", 4), build.tensor("f32", 4))
    view = build.call("ggml_transpose", build.tensor("f32", 4, 2))
    wire = Wire([good, bad, view], None)
    assert do(worker, Opcode.SUPPORTS_OP, wire.question()).supported == b"\x01\x01\x01"
    wire.row(bad)["ne"] = (5, 1, 1, 1)
    assert do(worker, Opcode.SUPPORTS_OP, wire.question()).supported == b"\x01\x00\x01"
    wire.row(bad)["op"] = worker.state.table.names.index("CUSTOM")
    assert do(worker, Opcode.SUPPORTS_OP, wire.question()).supported == b"\x01\x00\x01"
    wire.row(bad)["op"] = 5000
    wire.row(good)["type"] = 4444
    assert do(worker, Opcode.SUPPORTS_OP, wire.question()).supported == b"\x00\x00\x01"


def test_supports_op_asks_the_device(worker, build):
    """iq3_s can be read, not written: the rule knows, and so would the device."""
    target, rows, ids = build.tensor("iq3_s", 256, 4), build.tensor("f32", 256, 1), build.tensor("i64", 1)
    wire = Wire([build.call("ggml_set_rows", target, rows, ids)], None)
    assert do(worker, Opcode.SUPPORTS_OP, wire.question()).supported == b"\x00"
    product = Wire([build.call("ggml_mul_mat", build.tensor("f32", 32, 4), build.tensor("f16", 32, 4))], worker)
    assert do(worker, Opcode.SUPPORTS_OP, product.question()).supported == b"\x00"
    with pytest.raises(UnsupportedOp, match="MUL_MAT"):
        run(worker, product)


def test_supports_op_of_nothing_and_of_nonsense(worker, build):
    wire = Wire([build.call("ggml_add", build.tensor("f32", 4), build.tensor("f32", 4))], None)
    empty = SupportsOpRequest(0, wire.node_ids[:0], wire.rows[:0])
    assert do(worker, Opcode.SUPPORTS_OP, empty).supported == b""
    with pytest.raises(BadGraph):
        do(worker, Opcode.SUPPORTS_OP, SupportsOpRequest(0, wire.node_ids, wire.rows[:1]))


def test_an_empty_graph_runs(worker):
    from wireherd.protocol.tensor import HERD_TENSOR

    do(worker, Opcode.GRAPH_COMPUTE, GraphComputeRequest(0, 7, np.empty(0, np.uint64), np.empty(0, HERD_TENSOR)))
    again(worker, 7)


def test_graphs_stay_on_their_device(build):
    worker = herd_dispatcher(devices=("CPU", "CPU"))
    wire, *_ = addition(worker, build)
    with pytest.raises(BadGraph, match="another device"):
        do(worker, Opcode.GRAPH_COMPUTE, GraphComputeRequest(1, 0, wire.node_ids, wire.rows))
    worker.close()


def test_small_graphs_without_a_uid_are_built_once(worker, build, monkeypatch):
    monkeypatch.setattr(graphs, "_SMALL_COUNT", 3)
    wire, a, _, out = addition(worker, build)
    run(worker, wire)
    first = next(iter(worker.state.graphs._small.values()))
    put(worker, wire.row(a), np.zeros(4, np.float32))
    run(worker, wire)
    assert next(iter(worker.state.graphs._small.values())) is first
    assert floats(worker, wire, out).ravel().tolist() == [10] * 4
    for name in (b"x", b"y", b"z"):
        wire.row(out)["name"] = name
        run(worker, wire)
    assert len(worker.state.graphs._small) == 3
    do(worker, Opcode.FREE_BUFFER, FreeBufferRequest(wire.handle))
    assert not worker.state.graphs._small
