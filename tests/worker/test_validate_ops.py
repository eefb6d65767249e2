"""Hostile parameters and shapes of single ops: each gets a status, and none reaches ggml."""

from __future__ import annotations

import numpy as np
import pytest
from building import F32, INT, SIZE, Builder, Wire, do, herd_dispatcher

from wireherd import ggml
from wireherd.errors import BadGraph, OutOfBounds, UnsupportedOp
from wireherd.worker.facts import Types


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


@pytest.mark.parametrize("name", ["CUSTOM", "MAP_CUSTOM1", "MAP_CUSTOM2", "MAP_CUSTOM3", "OPT_STEP_ADAMW", "ADD1"])
def test_ops_that_never_run(worker, add, name):
    wire, *_, out = add
    wire.row(out)["op"] = op(worker, name)
    wire.row(out)["op_params"] = 0x41414141
    refused(worker, wire, UnsupportedOp, name)


@pytest.mark.parametrize("number", [101, 500, (1 << 31) - 1, (1 << 32) - 1])
def test_ops_that_are_none(worker, add, number):
    wire, *_, out = add
    wire.row(out)["op"] = number
    refused(worker, wire, UnsupportedOp, "operation")


def test_sources_missing_and_sources_too_many(worker, add):
    wire, left, _, out = add
    wire.row(out)["src"][1] = 0
    refused(worker, wire, BadGraph, "other sources")
    wire.row(out)["src"][1] = left
    wire.row(out)["src"][9] = left
    refused(worker, wire, BadGraph, "other sources")


def test_parameters_nobody_knows(worker, add):
    wire, *_, out = add
    wire.row(out)["op_params"][15] = 1
    refused(worker, wire, BadGraph, "other parameters")


@pytest.mark.parametrize("number", [-1, 22, 1000, -(1 << 31)])
def test_unary_operations_that_are_none(worker, build, number):
    out = build.call("ggml_silu", build.tensor("f32", 4))
    wire = Wire([out], worker)
    wire.row(out)["op_params"][0] = number
    refused(worker, wire, BadGraph, "unknown unary")


def change(pointer, field, axis, value):
    return lambda wire: wire.row(pointer)[field].__setitem__(axis, value)


def test_shapes_that_a_builder_would_refuse(worker, build):
    a, b = build.tensor("f32", 32, 5), build.tensor("f32", 32, 3)
    out = build.call("ggml_mul_mat", a, b)
    wire = Wire([out], worker)
    for pointer, field, axis, value in (
        (a, "ne", 0, 16),
        (b, "ne", 1, 2),
        (out, "ne", 0, 4),
        (out, "ne", 1, 2),
        (out, "nb", 1, 24),
        (a, "nb", 1, 0),
        (b, "nb", 0, 8),
        (out, "op_params", 1, 1),
        (out, "op_params", 1, 7),
    ):
        before = wire.row(pointer)[field].copy()
        wire.row(pointer)[field][axis] = value
        refused(worker, wire, (BadGraph, OutOfBounds))
        wire.row(pointer)[field] = before
    do(worker, 10, wire.compute())


def test_a_mask_without_a_row_for_each_query(worker, build):
    """No builder and no assert looks at this one: the kernel would read past the end."""
    from opcases import _flash

    out = _flash(build)
    wire = Wire([out], worker)
    mask = wire.rows[np.flatnonzero(wire.rows["id"] == wire.row(out)["src"][3])[0] :][0]
    for axis, value in ((1, 6), (0, 255), (2, 3), (1, 0)):
        before = mask["ne"].copy()
        mask["ne"][axis] = value
        refused(worker, wire, (BadGraph, OutOfBounds))
        mask["ne"] = before
    do(worker, 10, wire.compute())


def test_quantised_copies_that_would_overrun(worker, build):
    """A row of the source longer than one of the result overruns the work buffer that ggml plans."""
    source, target = build.tensor("f32", 128), build.tensor("q8_0", 64, 2)
    out = build.call("ggml_cpy", source, target)
    wire = Wire([out], worker)
    refused(worker, wire, BadGraph, "CPY")


def test_rope_that_never_ends(worker, build):
    from opcases import _rope

    out = _rope(build, 0)
    wire = Wire([out], worker)
    for index, value in ((1, 0), (1, 3), (1, 66), (1, -2), (2, 1), (2, 4), (15, 2), (15, -2)):
        before = int(wire.row(out)["op_params"][index])
        wire.row(out)["op_params"][index] = value
        refused(worker, wire, BadGraph, "ROPE")
        wire.row(out)["op_params"][index] = before
    do(worker, 10, wire.compute())


def test_a_negative_epsilon_and_one_that_is_no_number(worker, build):
    out = build.call("ggml_rms_norm", build.tensor("f32", 8), F32(1e-5))
    wire = Wire([out], worker)
    for value in (-1e-5, np.nan):
        wire.row(out)["op_params"][0] = np.float32(value).view(np.int32)
        refused(worker, wire, BadGraph, "epsilon")


def test_set_beyond_the_end(worker, build):
    """The kernel's assert counts elements of one row short, and negative strides as huge ones."""
    out = build.call(
        "ggml_set_inplace",
        build.tensor("f32", 16, 4),
        build.tensor("f32", 4, 2),
        SIZE(64),
        SIZE(256),
        SIZE(256),
        SIZE(32),
    )
    wire = Wire([out], worker)
    for index, value in ((3, 256), (3, 180), (0, 240), (0, -64), (3, -4), (0, 62)):
        before = int(wire.row(out)["op_params"][index])
        wire.row(out)["op_params"][index] = value
        refused(worker, wire, BadGraph, "SET")
        wire.row(out)["op_params"][index] = before
    do(worker, 10, wire.compute())


def test_concat_of_other_shapes(worker, build):
    out = build.call("ggml_concat", build.tensor("f32", 8, 2), build.tensor("f32", 8, 3), INT(1))
    wire = Wire([out], worker)
    for axis in (0, 2, 4, -1):
        wire.row(out)["op_params"][0] = axis
        refused(worker, wire, BadGraph, "CONCAT")
