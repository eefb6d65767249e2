"""Hostile graphs: each gets a status, and none reaches ggml (it would end pytest)."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from building import BOOL, F32, I64, SIZE, Builder, Wire, alloc, dispatcher_size, do, herd_dispatcher
from hypothesis import given, settings
from hypothesis import strategies as st

from wireherd import ggml
from wireherd.errors import BadGraph, LimitExceeded, NoSuchBuffer, OutOfBounds, RemoteError
from wireherd.ggml.structs import TENSOR
from wireherd.protocol.messages_graph import GraphComputeRequest
from wireherd.protocol.tensor import HERD_TENSOR
from wireherd.worker import validate
from wireherd.worker.facts import Facts, Types
from wireherd.worker.records import ADDRESS_LIMIT


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


@pytest.fixture(scope="module")
def types():
    lib = ggml.load()
    return Types(lib.numbering().types, *lib.type_sizes())


@pytest.fixture
def add(worker, build):
    """An addition of two tensors: (wire, left, right, result)."""
    left, right = build.tensor("f32", 4, 3), build.tensor("f32", 4, 3)
    out = build.call("ggml_add", left, right)
    return Wire([out], worker), left, right, out


def refused(worker, wire, error, match=None):
    with pytest.raises(error, match=match):
        do(worker, 10, wire.compute(1))
    assert not len(worker.state.graphs), "nothing refused is kept"


def op(worker, name):
    return worker.state.table.names.index(name)


# --- ids and order


def test_ids_must_be_there_and_unique(worker, add):
    wire, left, right, out = add
    for field, row, value, match in (
        ("id", left, 0, "id 0"),
        ("id", left, right, "same id"),
        ("id", left, 12345, "a source is not"),
    ):
        before = wire.row(row)[field]
        wire.row(row)[field] = value
        refused(worker, wire, BadGraph, match)
        wire.row(row)[field] = before
    wire.node_ids = np.array([out + 1], np.uint64)
    refused(worker, wire, BadGraph, "a node is not")
    wire.node_ids = np.array([out, out], np.uint64)
    refused(worker, wire, BadGraph, "twice")


def test_nodes_come_after_their_sources(worker, build):
    first = build.call("ggml_sqr", build.tensor("f32", 4))
    second = build.call("ggml_sqrt", first)
    wire = Wire([second], worker)
    wire.node_ids = wire.node_ids[::-1].copy()
    refused(worker, wire, BadGraph, "before one of its sources")


def test_no_node_is_its_own_source(worker, add):
    wire, _, _, out = add
    wire.row(out)["src"][1] = out
    refused(worker, wire, BadGraph, "before one of its sources")


def test_a_circle_is_no_graph(worker, build):
    first = build.call("ggml_sqr", build.tensor("f32", 4))
    second = build.call("ggml_sqrt", first)
    wire = Wire([second], worker)
    wire.row(first)["src"][0] = second
    refused(worker, wire, BadGraph)


def test_the_number_of_nodes_is_bounded(worker, monkeypatch):
    monkeypatch.setattr(validate, "MAX_NODES", 3)
    with pytest.raises(LimitExceeded):
        do(worker, 10, GraphComputeRequest(0, 0, np.arange(4, dtype=np.uint64), np.empty(0, HERD_TENSOR)))


def test_only_nodes_and_their_sources_matter(worker, add):
    """Stock sends everything the sources were made from; whatever else is sent is never looked at."""
    wire, left, *_ = add
    stranger = np.zeros(1, HERD_TENSOR)
    stranger["id"], stranger["type"], stranger["op"], stranger["buffer"] = 99, 4444, 5555, 1
    stranger["src"][0, 0] = 123456
    wire.rows = np.concatenate([wire.rows, stranger])
    wire.row(left)["op"], wire.row(left)["src"][0] = op(worker, "SQR"), 99
    do(worker, 10, wire.compute())


# --- types, sizes, addresses


@pytest.mark.parametrize("kind", [4, 31, 60, (1 << 32) - 1])
def test_types_that_are_none(worker, add, kind):
    wire, left, *_ = add
    wire.row(left)["type"] = kind
    refused(worker, wire, BadGraph, "impossible type")


@pytest.mark.parametrize(
    ("field", "axis", "value"),
    [
        ("ne", 0, -1),
        ("ne", 1, -(1 << 63)),
        ("ne", 0, 1 << 31),
        ("ne", 2, (1 << 63) - 1),
        ("nb", 0, 1 << 47),
        ("nb", 1, (1 << 64) - 16),
        ("nb", 1, 17),
    ],
)
def test_sizes_and_strides_that_fit_no_memory(worker, add, field, axis, value):
    wire, left, *_ = add
    wire.row(left)[field][axis] = value
    refused(worker, wire, BadGraph, "impossible")


def test_products_that_overflow_64_bits(worker, add):
    wire, left, *_ = add
    wire.row(left)["ne"] = (1 << 30, 1 << 30, 1 << 30, 1 << 30)
    refused(worker, wire, BadGraph, "impossible")
    wire.row(left)["ne"] = (4, (1 << 31) - 1, 1, 1)
    wire.row(left)["nb"] = (4, (1 << 47) - 16, 16, 16)
    refused(worker, wire, BadGraph, "impossible")


def test_one_number_shown_a_trillion_times(worker, add):
    wire, left, *_ = add
    wire.row(left)["ne"], wire.row(left)["nb"] = (1, 1 << 30, 1 << 10, 1), (4, 0, 0, 0)
    refused(worker, wire, BadGraph, "impossible")


def test_whole_blocks_only(worker, build):
    out = build.call("ggml_mul_mat", build.tensor("q4_0", 64, 4), build.tensor("f32", 64, 2))
    wire = Wire([out], worker)
    wire.rows["ne"][wire.rows["type"] == 2] = (63, 4, 1, 1)
    refused(worker, wire, BadGraph, "impossible")


@pytest.mark.parametrize("delta", [-1 << 20, -4096, 1 << 13, 1 << 45, -(1 << 33)])
def test_data_outside_the_buffer(worker, add, delta):
    for pointer in add[1:]:
        wire, row = add[0], add[0].row(pointer)
        before = int(row["data"])
        row["data"] = (before + delta) % (1 << 64)
        refused(worker, wire, OutOfBounds, "outside its buffer")
        row["data"] = before


def test_a_tensor_that_begins_inside_and_ends_outside(worker, add):
    wire, left, *_ = add
    wire.row(left)["ne"] = (4, 1000, 1, 1)
    refused(worker, wire, OutOfBounds, "outside its buffer")


def test_addresses_at_the_end_of_the_world(worker, add):
    wire, left, *_ = add
    for address in (ADDRESS_LIMIT, 1 << 63, (1 << 64) - 1):
        wire.row(left)["data"] = address
        refused(worker, wire, OutOfBounds)


def test_buffers_of_others(worker, add):
    wire, left, *_ = add
    wire.row(left)["buffer"] = int(wire.row(left)["buffer"]) ^ 1
    refused(worker, wire, NoSuchBuffer)


def test_the_address_of_one_buffer_under_the_handle_of_another(worker, add):
    wire, left, *_ = add
    handle, _ = alloc(worker, 4096)
    wire.row(left)["buffer"] = handle
    refused(worker, wire, OutOfBounds)


def test_no_buffer_no_run(worker, add):
    """CVE-2026-34159: a tensor without a buffer skipped every check."""
    for pointer in add[1:]:
        wire, row = add[0], add[0].row(pointer)
        before = int(row["buffer"])
        row["buffer"] = 0
        refused(worker, wire, BadGraph, "without memory")
        row["buffer"] = before


def test_half_a_float(worker, add):
    wire, left, *_ = add
    wire.row(left)["data"] += 2
    refused(worker, wire, BadGraph, "aligned")


def test_an_empty_tensor_is_checked_too(worker, build):
    """CVE-2026-137567: bounds were not looked at where there are no elements."""
    out = build.call("ggml_scale", build.tensor("f32", 0, 4), F32(1.0))
    wire = Wire([out], worker)
    do(worker, 10, wire.compute())
    wire.row(out)["data"] += 1 << 30
    refused(worker, wire, OutOfBounds)


# --- views


def test_views_stay_inside_what_they_show(worker, build):
    base = build.tensor("f32", 16)
    part = build.call("ggml_view_1d", base, I64(8), SIZE(32))
    wire = Wire([build.call("ggml_sqr", part)], worker)
    do(worker, 10, wire.compute())
    wire.row(part)["data"] += 4
    refused(worker, wire, OutOfBounds, "leaves the tensor it shows")
    wire.row(part)["data"] -= 64
    refused(worker, wire, OutOfBounds, "leaves the tensor it shows")


def test_a_view_may_do_without_its_origin(worker, build):
    base = build.tensor("f32", 16)
    part = build.call("ggml_view_1d", base, I64(8), SIZE(32))
    wire = Wire([build.call("ggml_sqr", part)], worker)
    wire.row(part)["view_src"] = 987654321
    do(worker, 10, wire.compute())


# --- the columns against ggml's own words


@settings(deadline=None)
@given(
    st.sampled_from(["f32", "f16", "i8", "i64", "q4_0", "q6_K"]),
    st.lists(st.integers(0, 5), min_size=4, max_size=4),
    st.permutations(range(4)),
    st.integers(0, 2),
)
def test_sizes_and_contiguity_are_ggmls(kind, dims, order, gap):
    lib = ggml.load()
    names = lib.numbering().types
    types = Types(names, *lib.type_sizes())
    number = names.index(kind)
    block, size = int(types.block[number]), int(types.size[number])
    ne = [dims[0] * block, *dims[1:]]
    nb = [size]
    for axis in range(1, 4):
        nb.append(nb[-1] * (dims[axis - 1] if axis == 1 else ne[axis - 1]) + gap * size)
    if block == 1:
        ne, nb = [ne[axis] for axis in order], [nb[axis] for axis in order]
    rows = np.zeros(1, HERD_TENSOR)
    rows["type"], rows["ne"], rows["nb"] = number, ne, nb
    facts = Facts(types, rows, None)
    assert int(facts.nbytes[0]) == dispatcher_size(rows[0])
    assert bool(facts.empty[0]) == (0 in ne)
    dll = _library()
    struct = np.zeros(1, TENSOR)
    for field in ("type", "ne", "nb"):
        struct[field] = rows[field]
    for name, found in (
        ("ggml_is_contiguous", facts.contiguous),
        ("ggml_is_contiguous_1", facts.even),
        ("ggml_is_contiguous_rows", facts.row_dense),
    ):
        function = getattr(dll, name)
        function.restype, function.argtypes = BOOL, [SIZE]
        assert bool(found[0]) == function(struct.ctypes.data), name


@functools.cache
def _library():
    builder = Builder()
    builder.close()
    return builder._dll


def test_stock_strides_are_put_back_for_whole_graphs(types):
    from wireherd.worker.records import repaired_strides

    rng = np.random.default_rng(5)
    rows = np.zeros(64, HERD_TENSOR)
    for row in rows:
        number = int(rng.choice([0, 1, 2, 8]))
        block, size = int(types.block[number]), int(types.size[number])
        ne = [int(2 ** rng.integers(0, 22)) * block, *(int(2 ** rng.integers(0, 14)) for _ in range(2)), 1]
        nb = [size, size * ne[0] // block]
        nb.append(nb[1] * ne[1])
        nb.append(nb[2] * ne[2])
        row["type"], row["ne"] = number, ne
        row["nb"] = [stride & 0xFFFFFFFF for stride in nb]
        expected = repaired_strides(block, size, ne, [stride & 0xFFFFFFFF for stride in nb])
        if nb[2] < 1 << 47 and nb[3] < 1 << 47:
            assert list(expected) == nb
    before = [
        repaired_strides(int(types.block[r["type"]]), int(types.size[r["type"]]), r["ne"].tolist(), r["nb"].tolist())
        for r in rows
    ]
    validate.repair_strides(rows, types)
    for row, expected in zip(rows, before, strict=True):
        if max(expected) < ADDRESS_LIMIT:
            assert row["nb"].tolist() == list(expected)


@settings(deadline=None)
@given(st.data())
def test_no_record_breaks_the_checks(data):
    """Any bytes at all: an answer or a RemoteError, nothing else."""
    count = data.draw(st.integers(1, 4))
    raw = data.draw(st.binary(min_size=count * 328, max_size=count * 328))
    rows = np.frombuffer(raw, HERD_TENSOR).copy()
    for index in range(count):
        if data.draw(st.booleans()):
            rows["id"][index] = index + 1
            rows["type"][index] = data.draw(st.integers(0, 45))
            rows["ne"][index] = data.draw(st.lists(st.integers(0, 9), min_size=4, max_size=4))
            rows["op"][index] = data.draw(st.integers(0, 105))
            rows["src"][index] = data.draw(st.lists(st.integers(0, 5), min_size=10, max_size=10))
    node_ids = data.draw(st.lists(st.sampled_from([int(i) for i in rows["id"]] + [7]), max_size=4))
    worker = shared()
    for opcode in (10, 131):
        message = GraphComputeRequest(0, 1, np.array(node_ids, np.uint64), rows)
        try:
            if opcode == 10:
                do(worker, opcode, message)
            else:
                worker.state.graphs.supported(worker.state.devices.get(0), message.node_ids, rows)
        except RemoteError:
            pass


@functools.cache
def shared():
    return herd_dispatcher()


def test_views_of_what_lies_elsewhere_run_only_where_nothing_needs_them(worker, build):
    """Libllama leaves such views in a graph behind a copy, when weights and cache of a layer are on two devices."""
    left = build.tensor("f32", 4, 3)
    shown = build.call("ggml_view_1d", left, I64(4), SIZE(0))
    needed = build.call("ggml_silu", shown)
    other = build.call("ggml_silu", build.tensor("f32", 4))
    for results in ([shown, needed], [shown, other]):
        wire = Wire(results, worker)
        for pointer in (left, shown):
            wire.row(pointer)["buffer"] = wire.row(pointer)["data"] = 0
        if needed in results:
            refused(worker, wire, BadGraph, "without memory")
        else:
            do(worker, 10, wire.compute(1))


def test_a_part_of_nothing_may_begin_beyond_it(worker, build):
    """Where a micro-batch has no outputs, libllama takes views of empty tensors, some past the end of the buffer."""
    experts = build.tensor("f32", 4, 2, 0)
    shown = build.call("ggml_view_2d", experts, I64(4), I64(0), SIZE(32), SIZE(16))
    added = build.call("ggml_add", shown, build.call("ggml_view_2d", experts, I64(4), I64(0), SIZE(32), SIZE(0)))
    other = build.call("ggml_silu", build.tensor("f32", 4))
    wire = Wire([added, other], worker)
    for beyond in (0, 1 << 20):
        wire.row(shown)["data"] = int(wire.row(experts)["data"]) + 16 + beyond
        do(worker, 10, wire.compute(1 + beyond))
    wire.row(shown)["ne"][1] = wire.row(added)["ne"][1] = 1
    with pytest.raises(OutOfBounds):
        do(worker, 10, wire.compute(9))
