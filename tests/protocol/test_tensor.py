"""The tensor record: one at a time and many at once, in every layout."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wireherd.errors import BadLength, LocalProtocolError
from wireherd.protocol import tensor
from wireherd.protocol.dialect import dialect_for
from wireherd.protocol.tensor import HERD_TENSOR, STOCK_TENSOR, STOCK_TENSOR_OLD, TensorRecord, from_herd, to_herd
from wireherd.protocol.version import NEWEST, Version

OLD, STOCK, HERD = dialect_for(Version(5, 0)), dialect_for(NEWEST), dialect_for(NEWEST, herd=True)

u64, u32, i32 = st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 32) - 1), st.integers(-(1 << 31), (1 << 31) - 1)


def tuples(values, count):
    return st.tuples(*[values] * count)


def records(ne, nb, use_count=i32):
    return st.builds(
        TensorRecord, u64, u32, u64, tuples(ne, 4), tuples(nb, 4), u32, tuples(i32, 16), i32, tuples(u64, 10), u64, u64,
        u64, st.binary(max_size=64).map(lambda name: name.ljust(64, b"\0")), use_count,
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    record=records(u32, u32),
    old=records(u32, u32, st.just(0)),
    big=records(st.integers(-(1 << 63), (1 << 63) - 1), u64),
)
def test_one_record_there_and_back_in_every_layout(record, old, big):
    for one, dialect in ((record, STOCK), (old, OLD), (record, HERD), (big, HERD)):
        raw = tensor.pack(one, dialect)
        assert len(raw) == dialect.tensor_dtype.itemsize
        assert tensor.unpack(raw, dialect) == one
        row = np.frombuffer(raw, dialect.tensor_dtype)[0]
        for name in dialect.tensor_dtype.names:
            if name not in {"name", "padding"}:
                value = getattr(one, name)
                assert row[name].tolist() == (list(value) if isinstance(value, tuple) else value)
        assert row["name"] == one.name.rstrip(b"\0")


@settings(max_examples=30, deadline=None)
@given(record=records(u32, u32))
def test_arrays_convert_as_records_do(record):
    rows = np.frombuffer(tensor.pack(record, STOCK) * 2, STOCK_TENSOR)
    ours = to_herd(rows)
    assert ours.tobytes() == tensor.pack(record, HERD) * 2
    assert from_herd(ours, STOCK_TENSOR).tobytes() == rows.tobytes()
    assert to_herd(ours) is ours
    assert from_herd(ours, HERD_TENSOR) is ours
    old = from_herd(ours, STOCK_TENSOR_OLD)
    assert old.tobytes() == tensor.pack(record, OLD) * 2
    assert to_herd(old)["use_count"].tolist() == [0, 0]


RECORD = TensorRecord(
    1,
    0,
    7,
    (4, 1, 1, 1),
    (4, 16, (5 << 32) + 16, 1 << 40),
    0,
    (0,) * 16,
    0,
    (0,) * 10,
    0,
    0,
    64,
    b"weight".ljust(64, b"\0"),
)


def test_stock_truncates_strides_as_upstream_does():
    seen = tensor.unpack(tensor.pack(RECORD, STOCK), STOCK)
    assert seen.nb == (4, 16, 16, 0)
    rows = from_herd(np.frombuffer(tensor.pack(RECORD, HERD), HERD_TENSOR), STOCK_TENSOR)
    assert rows["nb"].tolist() == [[4, 16, 16, 0]]


@pytest.mark.parametrize("size", [1 << 32, -1])
def test_sizes_that_stock_cannot_hold(size):
    wide = RECORD._replace(ne=(4, size, 1, 1))
    with pytest.raises(LocalProtocolError, match=r"'weight' does not fit the record of ggml RPC 8\.0\.0"):
        tensor.pack(wide, STOCK)
    rows = np.frombuffer(tensor.pack(wide, HERD), HERD_TENSOR)
    with pytest.raises(LocalProtocolError, match="does not fit a stock record"):
        from_herd(rows, STOCK_TENSOR)


def test_other_misfits():
    with pytest.raises(LocalProtocolError, match="longer than 64"):
        tensor.pack(RECORD._replace(name=b"x" * 65), STOCK)
    with pytest.raises(LocalProtocolError):
        tensor.pack(RECORD._replace(op_params=(0,) * 15), STOCK)
    with pytest.raises(BadLength, match="328 bytes"):
        tensor.unpack(bytes(296), HERD)
    with pytest.raises(BadLength, match="296 bytes"):
        tensor.unpack(bytes(328), STOCK)


def test_no_rows():
    assert len(from_herd(np.zeros(0, HERD_TENSOR), STOCK_TENSOR)) == 0
    assert len(to_herd(np.zeros(0, STOCK_TENSOR))) == 0


def test_name_for_people():
    assert RECORD.label == "weight"
    assert RECORD._replace(name=b"\xff" + bytes(63)).label == "�"
