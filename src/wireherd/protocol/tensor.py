"""The tensor record: stock's 296 bytes, ours of 328 with 64-bit sizes and strides, and the way between them.

`id`, `src` and `view_src` are keys within one graph, nothing is ever found by them elsewhere. `buffer` is a handle of
the server (0 = none), `data` an address in the server's address space. Upstream: `struct rpc_tensor`.
"""

from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wireherd.errors import BadLength, LocalProtocolError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from wireherd.protocol.dialect import Dialect

#: bytes of a tensor's name
NAME_SIZE = 64

#: (field, struct letter, how many); the order is the wire's. Name and padding are counted as bytes.
_STOCK = (
    ("id", "Q", 1), ("type", "I", 1), ("buffer", "Q", 1), ("ne", "I", 4), ("nb", "I", 4), ("op", "I", 1),
    ("op_params", "i", 16), ("flags", "i", 1), ("src", "Q", 10), ("view_src", "Q", 1), ("view_offs", "Q", 1),
    ("data", "Q", 1), ("name", "s", NAME_SIZE), ("use_count", "i", 1),
)  # fmt: skip
_STOCK_OLD = (*_STOCK[:-1], ("padding", "x", 4))
_HERD = (
    ("id", "Q", 1), ("type", "I", 1), ("flags", "i", 1), ("buffer", "Q", 1), ("ne", "q", 4), ("nb", "Q", 4),
    ("op", "I", 1), ("use_count", "i", 1), ("op_params", "i", 16), ("src", "Q", 10), ("view_src", "Q", 1),
    ("view_offs", "Q", 1), ("data", "Q", 1), ("name", "s", NAME_SIZE),
)  # fmt: skip

_NUMPY = {"Q": "<u8", "q": "<i8", "I": "<u4", "i": "<i4"}


def _dtype(fields: tuple[tuple[str, str, int], ...]) -> np.dtype[np.void]:
    columns: list[Any] = []
    for name, letter, count in fields:
        if letter in "sx":
            columns.append((name, f"V{count}" if letter == "x" else f"S{count}"))
        else:
            columns.append((name, _NUMPY[letter]) if count == 1 else (name, _NUMPY[letter], (count,)))
    return np.dtype(columns)


#: the stock record from 5.1 on, 296 bytes
STOCK_TENSOR = _dtype(_STOCK)
#: the stock record up to 5.0: the last four bytes mean nothing
STOCK_TENSOR_OLD = _dtype(_STOCK_OLD)
#: our record, 328 bytes
HERD_TENSOR = _dtype(_HERD)


class TensorRecord(NamedTuple):
    """One tensor, whatever the dialect."""

    id: int
    type: int
    buffer: int
    ne: tuple[int, int, int, int]
    nb: tuple[int, int, int, int]
    op: int
    op_params: tuple[int, ...]
    flags: int
    src: tuple[int, ...]
    view_src: int
    view_offs: int
    data: int
    #: 64 bytes as they travel; a safe peer ends them with a NUL
    name: bytes
    #: how many nodes of the graph read it; 0 where the dialect does not say
    use_count: int = 0

    @property
    def label(self) -> str:
        """The name for people."""
        return self.name.split(b"\0", 1)[0].decode("utf-8", "replace")


class _Layout:
    """Turns one record into a `TensorRecord` and back; compiled once a layout."""

    def __init__(self, fields: tuple[tuple[str, str, int], ...]) -> None:
        self.codec = struct.Struct("<" + "".join(letter if n == 1 else f"{n}{letter}" for _, letter, n in fields))
        widths = [1 if letter == "s" else count for _, letter, count in fields]
        starts = [0, *itertools.accumulate(widths)]
        #: how to pick each field of TensorRecord out of the flat values: an index or a slice
        where: dict[str, int | slice] = {
            name: start if width == 1 else slice(start, start + width)
            for (name, letter, _), start, width in zip(fields, starts, widths, strict=False)
            if letter != "x"
        }
        self.picks = [where[name] for name in TensorRecord._fields if name in where]
        #: for each field on the wire: its place in TensorRecord, and whether it is several values
        self.order = [
            (TensorRecord._fields.index(name), isinstance(where[name], slice))
            for name, letter, _ in fields
            if letter != "x"
        ]

    def unpack(self, raw: Buffer) -> TensorRecord:
        values = self.codec.unpack(raw)
        picked: list[Any] = [values[pick] for pick in self.picks]
        return TensorRecord(*picked)  # the old stock layout leaves use_count to its default

    def pack(self, record: TensorRecord) -> bytes:
        flat: list[Any] = []
        for index, several in self.order:
            if several:
                flat += record[index]  # type: ignore[arg-type]
            else:
                flat.append(record[index])
        return self.codec.pack(*flat)


_LAYOUTS = {
    STOCK_TENSOR: _Layout(_STOCK),
    STOCK_TENSOR_OLD: _Layout(_STOCK_OLD),
    HERD_TENSOR: _Layout(_HERD),
}
_MASK32 = (1 << 32) - 1


def unpack(raw: Buffer, dialect: Dialect) -> TensorRecord:
    """Read one raw record.

    Raises:
        BadLength: it is not one record long.
    """
    try:
        return dialect.tensor_layout.unpack(raw)
    except struct.error as error:
        raise BadLength(f"a tensor record has {dialect.tensor_dtype.itemsize} bytes") from error


def pack(record: TensorRecord, dialect: Dialect) -> bytes:
    """Write one record; a stock record keeps the low 32 bits of each stride, as stock does.

    Raises:
        LocalProtocolError: a value does not fit, such as a row count beyond 32 bits towards a stock peer.
    """
    if dialect.tensor_dtype is not HERD_TENSOR and max(record.nb) > _MASK32:
        record = record._replace(nb=tuple(stride & _MASK32 for stride in record.nb))  # type: ignore[arg-type]
    if len(record.name) > NAME_SIZE:
        raise LocalProtocolError(f"the tensor name {record.label!r} is longer than {NAME_SIZE} bytes")
    try:
        return dialect.tensor_layout.pack(record)
    except struct.error as error:
        raise LocalProtocolError(f"tensor {record.label!r} does not fit the record of {dialect}: {error}") from error


def layout_of(dtype: np.dtype[np.void]) -> _Layout:
    """Give the compiled single-record codec of a dtype."""
    return _LAYOUTS[dtype]


def to_herd(rows: np.ndarray[Any, np.dtype[np.void]]) -> np.ndarray[Any, np.dtype[np.void]]:
    """Give the rows in our layout; strides that stock truncated stay truncated. Our own rows come back as they are."""
    if rows.dtype == HERD_TENSOR:
        return rows
    out = np.zeros(len(rows), HERD_TENSOR)
    for name in _shared(rows.dtype):
        out[name] = rows[name]
    return out


def from_herd(rows: np.ndarray[Any, np.dtype[np.void]], dtype: np.dtype[np.void]) -> np.ndarray[Any, np.dtype[np.void]]:
    """Give rows of our layout in another one; strides are truncated to 32 bits where it has no more.

    Raises:
        LocalProtocolError: a tensor has a size that the layout cannot hold.
    """
    if dtype == HERD_TENSOR:
        return rows
    sizes = rows["ne"]
    if len(rows) and (int(sizes.max()) > _MASK32 or int(sizes.min()) < 0):
        raise LocalProtocolError(
            f"a tensor of {int(sizes.max())} elements in one direction does not fit a stock record"
        )
    out = np.zeros(len(rows), dtype)
    for name in _shared(dtype):
        out[name] = rows[name]  # unsigned narrowing wraps, which is what stock does to strides
    return out


def _shared(dtype: np.dtype[np.void]) -> list[str]:
    names = dtype.names or ()
    return [name for name in TensorRecord._fields if name in names]
