"""Wire types: what a message's field metadata is made of.

A message is a frozen dataclass whose fields are declared with `wire(KIND, "doc")`; that declaration is the layout,
in order, packed, little-endian. `codec.py` derives encoder and decoder from it, `testing/strategies.py` the test data
and `document.py` the page for people.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from wireherd.errors import BadLength, LocalProtocolError, RemoteProtocolError

if TYPE_CHECKING:
    from typing_extensions import Buffer, dataclass_transform

    from wireherd.protocol.version import Version
else:

    def dataclass_transform(**_options: object) -> Any:
        """Tell type checkers how `message` builds classes (Python has it from 3.11 on)."""
        return lambda function: function


_COUNT = struct.Struct("<I")
_MISSING: Any = object()

#: longest text on the wire, bytes; longest list of texts
MAX_TEXT = 1 << 16
MAX_LIST = 1 << 12


def printable(text: str) -> str:
    """Replace what would move a terminal's cursor, change its colours or break a line: a peer's text is shown."""
    return (
        text
        if text.isprintable()
        else "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
    )


class Kind:
    """A wire type. `bind` makes it concrete for a dialect, whose tensor record it is told."""

    name: str

    def bind(self, tensor: np.dtype[np.void]) -> Kind:
        """Return this type with the dialect's tensor record filled in."""
        del tensor
        return self


@dataclasses.dataclass(frozen=True)
class Scalar(Kind):
    """An integer of fixed width; `code` is `struct`'s letter."""

    name: str
    code: str

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return struct.calcsize("<" + self.code)

    @property
    def bounds(self) -> tuple[int, int]:
        """Smallest and largest value."""
        bits = 8 * self.size
        return (0, (1 << bits) - 1) if self.code.isupper() else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


@dataclasses.dataclass(frozen=True)
class Raw(Kind):
    """Exactly `size` bytes; the value is `bytes`."""

    name: str
    size: int

    @property
    def code(self) -> str:
        """The letter for `struct`."""
        return f"{self.size}s"


@dataclasses.dataclass(frozen=True)
class Tensors(Kind):
    """`count` tensor records of the dialect side by side; the value is their raw `bytes`."""

    name: str
    count: int

    def bind(self, tensor: np.dtype[np.void]) -> Kind:
        """Return the raw bytes that this many records take."""
        return Raw(self.name, self.count * tensor.itemsize)


class Variable(Kind):
    """A wire type whose size stands in the message."""

    minimum: int

    def write(self, value: Any) -> list[Buffer]:
        """Give the pieces to send."""
        raise NotImplementedError

    def read(self, view: memoryview, offset: int) -> tuple[Any, int]:
        """Give the value found at `offset`, and the offset after it."""
        raise NotImplementedError


def _read_count(view: memoryview, offset: int, what: str) -> tuple[int, int]:
    if len(view) - offset < _COUNT.size:
        raise BadLength(f"{what}: the count is cut off")
    return _COUNT.unpack_from(view, offset)[0], offset + _COUNT.size


@dataclasses.dataclass(frozen=True)
class Array(Variable):
    """`count u32` and that many records; the value is a numpy array, on receipt a read-only view of the payload.

    Without a dtype the records are the dialect's tensors.
    """

    name: str
    dtype: np.dtype[Any] | None = None
    minimum: int = _COUNT.size

    def bind(self, tensor: np.dtype[np.void]) -> Kind:
        """Return the array with its record type filled in."""
        return Array(self.name, tensor) if self.dtype is None else self

    def write(self, value: np.ndarray[Any, Any]) -> list[Buffer]:
        """Give count and records; the records are not copied when they lie side by side already."""
        if value.dtype != self.dtype or value.ndim != 1:
            raise LocalProtocolError(f"{self.name}: the array is not one-dimensional of the dialect's record type")
        rows = np.ascontiguousarray(value)
        return [_COUNT.pack(len(rows)), rows.view(np.uint8).data if len(rows) else b""]

    def read(self, view: memoryview, offset: int) -> tuple[np.ndarray[Any, Any], int]:
        """Give a view of the records; their number is checked against the bytes left before anything is made."""
        count, offset = _read_count(view, offset, self.name)
        dtype = np.dtype(self.dtype)
        end = offset + count * dtype.itemsize
        if end > len(view):
            raise BadLength(f"{self.name}: {count} records do not fit in the {len(view) - offset} bytes left")
        rows = np.frombuffer(view, dtype, count, offset) if count else np.empty(0, dtype)
        rows.flags.writeable = False
        return rows, end


@dataclasses.dataclass(frozen=True)
class Text(Variable):
    """`length u32` and UTF-8."""

    name: str = "text"
    minimum: int = _COUNT.size

    def write(self, value: str) -> list[Buffer]:
        """Give length and text."""
        raw = value.encode("utf-8", "replace")
        if len(raw) > MAX_TEXT:
            raise LocalProtocolError(f"{self.name}: {len(raw)} bytes are more than the {MAX_TEXT} allowed")
        return [_COUNT.pack(len(raw)), raw]

    def read(self, view: memoryview, offset: int) -> tuple[str, int]:
        """Give the text, without what a terminal would obey; what is not UTF-8 is refused."""
        size, offset = _read_count(view, offset, self.name)
        end = offset + size
        if size > MAX_TEXT or end > len(view):
            raise BadLength(f"{self.name}: a text of {size} bytes does not fit")
        try:
            return printable(str(view[offset:end], "utf-8")), end
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"{self.name}: not UTF-8") from error


@dataclasses.dataclass(frozen=True)
class TextList(Variable):
    """`count u32` and that many texts; the value is a tuple."""

    name: str = "text list"
    minimum: int = _COUNT.size

    def write(self, value: tuple[str, ...]) -> list[Buffer]:
        """Give count and texts."""
        if len(value) > MAX_LIST:
            raise LocalProtocolError(f"{self.name}: {len(value)} texts are more than the {MAX_LIST} allowed")
        pieces: list[Buffer] = [_COUNT.pack(len(value))]
        for text in value:
            pieces += TEXT.write(text)
        return pieces

    def read(self, view: memoryview, offset: int) -> tuple[tuple[str, ...], int]:
        """Give the texts."""
        count, offset = _read_count(view, offset, self.name)
        if count > MAX_LIST or count * _COUNT.size > len(view) - offset:
            raise BadLength(f"{self.name}: {count} texts do not fit")
        texts = []
        for _ in range(count):
            text, offset = TEXT.read(view, offset)
            texts.append(text)
        return tuple(texts), offset


@dataclasses.dataclass(frozen=True)
class Tail(Variable):
    """Whatever is left of the message; the value is `bytes`."""

    name: str = "tail"
    minimum: int = 0

    def write(self, value: bytes) -> list[Buffer]:
        """Give the bytes."""
        return [value]

    def read(self, view: memoryview, offset: int) -> tuple[bytes, int]:
        """Give the rest."""
        return bytes(view[offset:]), len(view)


U8 = Scalar("u8", "B")
U16 = Scalar("u16", "H")
U32 = Scalar("u32", "I")
U64 = Scalar("u64", "Q")
I32 = Scalar("i32", "i")
TENSOR = Tensors("tensor", 1)
SOURCES = Tensors("tensor[10]", 10)
NODE_IDS = Array("u64 array", np.dtype("<u8"))
TENSOR_ROWS = Array("tensor array")
TEXT = Text()
TEXTS = TextList()
TAIL = Tail()


def fixed_bytes(size: int) -> Raw:
    """Give the type of exactly `size` bytes."""
    return Raw(f"bytes[{size}]", size)


@dataclasses.dataclass(frozen=True)
class Wire:
    """One field's declaration: type, one line for people, first version that has it, its value where it is absent."""

    kind: Kind
    doc: str
    since: Version | None = None
    absent: Any = None


def wire(kind: Kind, doc: str, *, since: Version | None = None, absent: Any = None, default: Any = _MISSING) -> Any:
    """Declare a field of a message."""
    metadata = {"wire": Wire(kind, doc, since, absent)}
    if default is _MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(metadata=metadata, default=default)


class Message:
    """Base of every message; its fields are its layout."""

    __slots__ = ()


_M = TypeVar("_M", bound=Message)


@dataclass_transform(frozen_default=True, field_specifiers=(wire,))
def message(cls: type[_M]) -> type[_M]:
    """Make a message class: a frozen, slotted dataclass."""
    return dataclasses.dataclass(frozen=True, slots=True)(cls)


def layout(cls: type[Message]) -> list[tuple[str, Wire]]:
    """Give the declared fields of a message in wire order."""
    return [(field.name, field.metadata["wire"]) for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
