"""Encoders and decoders, derived from the fields of a message for one dialect. Nobody writes one by hand.

Theory of operation: runs of fixed fields become one `struct.Struct`; what varies is asked of its wire type.
Messages without variable fields, which is everything sent per token, take the short way: one pack, one unpack.
"""

from __future__ import annotations

import operator
import struct
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from wireherd.errors import BadLength, LocalProtocolError
from wireherd.protocol.fields import Message, Raw, Scalar, Variable, layout

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from typing_extensions import Buffer

    from wireherd.protocol.fields import Kind
    from wireherd.protocol.version import Version

_M = TypeVar("_M", bound=Message)


class _Fixed:
    """A run of fixed fields."""

    def __init__(self, message: str, fields: list[tuple[str, Kind]]) -> None:
        self.message = message
        self.names = [name for name, _ in fields]
        self.struct = struct.Struct("<" + "".join(_code(kind) for _, kind in fields))
        #: struct pads and cuts byte strings silently, so their lengths are checked here
        self.raw = [(index, kind.size) for index, (_, kind) in enumerate(fields) if isinstance(kind, Raw)]
        self.get = _getter(self.names)

    def pack(self, message: Message) -> bytes:
        values = self.get(message)
        for index, size in self.raw:
            value = values[index]
            if len(value) != size:
                raise LocalProtocolError(
                    f"{self.message}.{self.names[index]} has {len(value)} bytes where {size} belong"
                )
            if type(value) is not bytes:
                values = (*values[:index], bytes(value), *values[index + 1 :])
        try:
            return self.struct.pack(*values)
        except struct.error as error:
            raise LocalProtocolError(f"{self.message} does not fit its layout: {error}") from error


def _code(kind: Kind) -> str:
    if isinstance(kind, (Scalar, Raw)):
        return kind.code
    raise TypeError(f"{kind} has no fixed layout")


def _getter(names: list[str]) -> Callable[[Message], tuple[Any, ...]]:
    if not names:
        return lambda _: ()
    if len(names) == 1:
        get = operator.attrgetter(names[0])
        return lambda message: (get(message),)
    return operator.attrgetter(*names)


class Codec(Generic[_M]):
    """Both directions for one message class in one dialect."""

    #: bytes of the message; None where they vary
    size: int | None
    #: least bytes of the message
    minimum: int

    def encode(self, message: _M) -> bytes:
        """Give the bytes.

        Raises:
            LocalProtocolError: a value does not fit its field.
        """
        raise NotImplementedError

    def decode(self, view: Buffer) -> _M:
        """Give the message that fills `view` exactly.

        Raises:
            RemoteProtocolError: the bytes are no such message.
        """
        raise NotImplementedError


class FixedCodec(Codec[_M]):
    """For messages whose size the dialect fixes."""

    def __init__(self, cls: type[_M], fields: list[tuple[str, Kind]], absent: list[tuple[int, Any]]) -> None:
        self.cls = cls
        fixed = _Fixed(cls.__name__, fields)
        self.encode = fixed.pack  # type: ignore[method-assign]
        self.size = self.minimum = fixed.struct.size
        self._unpack = fixed.struct.unpack
        self._absent = absent

    def decode(self, view: Buffer) -> _M:
        """Give the message that fills `view` exactly."""
        try:
            values = self._unpack(view)
        except struct.error as error:
            size = memoryview(view).nbytes
            raise BadLength(f"{self.cls.__name__} has {size} bytes where {self.size} belong") from error
        if not self._absent:
            return self.cls(*values)
        row = list(values)
        for index, value in self._absent:
            row.insert(index, value)
        return self.cls(*row)


class VariableCodec(Codec[_M]):
    """For messages with texts or arrays."""

    def __init__(self, cls: type[_M], fields: list[tuple[str, Kind]], absent: list[tuple[int, Any]]) -> None:
        self.cls = cls
        self.size = None
        self._absent = absent
        self._parts: list[_Fixed | tuple[str, Variable]] = []
        run: list[tuple[str, Kind]] = []
        for name, kind in fields:
            if isinstance(kind, Variable):
                if run:
                    self._parts.append(_Fixed(cls.__name__, run))
                    run = []
                self._parts.append((name, kind))
            else:
                run.append((name, kind))
        if run:
            self._parts.append(_Fixed(cls.__name__, run))
        self.minimum = sum(part.struct.size if isinstance(part, _Fixed) else part[1].minimum for part in self._parts)

    def encode(self, message: _M) -> bytes:
        """Give the bytes."""
        pieces: list[Buffer] = []
        for part in self._parts:
            if isinstance(part, _Fixed):
                pieces.append(part.pack(message))
            else:
                name, kind = part
                pieces += kind.write(getattr(message, name))
        return b"".join(pieces)

    def decode(self, view: Buffer) -> _M:
        """Give the message that fills `view` exactly; arrays are views of it."""
        view = memoryview(view)
        values: list[Any] = []
        offset = 0
        for part in self._parts:
            if isinstance(part, _Fixed):
                if len(view) - offset < part.struct.size:
                    raise BadLength(f"{self.cls.__name__} is cut off after {len(view)} bytes")
                values += part.struct.unpack_from(view, offset)
                offset += part.struct.size
            else:
                value, offset = part[1].read(view, offset)
                values.append(value)
        if offset != len(view):
            raise BadLength(f"{self.cls.__name__} ends after {offset} of {len(view)} bytes")
        for index, value in self._absent:
            values.insert(index, value)
        return self.cls(*values)


def derive(cls: type[_M], version: Version, tensor: np.dtype[np.void]) -> Codec[_M]:
    """Build the codec of a message class for a version and its tensor record."""
    fields: list[tuple[str, Kind]] = []
    absent: list[tuple[int, Any]] = []
    for index, (name, declared) in enumerate(layout(cls)):
        if declared.since is not None and version < declared.since:
            absent.append((index, declared.absent))
        else:
            fields.append((name, declared.kind.bind(tensor)))
    if any(isinstance(kind, Variable) for _, kind in fields):
        return VariableCodec(cls, fields, absent)
    return FixedCodec(cls, fields, absent)
