"""Hypothesis strategies derived from the message table, so that a new message is tested the day it is declared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from wireherd.protocol.dialect import Dialect, dialect_for
from wireherd.protocol.fields import Array, Kind, Message, Raw, Scalar, Tail, Text, TextList, layout, printable
from wireherd.protocol.framing import Frame
from wireherd.protocol.version import NEWEST, SUPPORTED

if TYPE_CHECKING:
    from collections.abc import Sequence

#: every dialect there is
DIALECTS: tuple[Dialect, ...] = (
    *(dialect_for(version) for version in SUPPORTED),
    dialect_for(NEWEST, herd=True),
)

_MAX_ITEMS = 4


class Sample(NamedTuple):
    """A message of a dialect, and the command it belongs to."""

    dialect: Dialect
    opcode: int
    message: Message
    #: False: it is an answer, or comes unasked
    is_request: bool


def _blob(size: int) -> st.SearchStrategy[bytes]:
    # mostly sparse: drawing hundreds of random bytes for each record would eat the time of a test
    return st.one_of(
        st.just(bytes(size)),
        st.binary(min_size=1, max_size=8).map(lambda seed: (seed * (size // len(seed) + 1))[:size]),
    )


def values(kind: Kind, dialect: Dialect) -> st.SearchStrategy[Any]:
    """Give values of a wire type."""
    kind = kind.bind(dialect.tensor_dtype)
    if isinstance(kind, Scalar):
        low, high = kind.bounds
        return st.integers(low, high)
    if isinstance(kind, Raw):
        return _blob(kind.size)
    if isinstance(kind, Array):
        dtype = np.dtype(kind.dtype)
        return (
            st.integers(0, _MAX_ITEMS)
            .flatmap(lambda count: _blob(count * dtype.itemsize))
            .map(lambda raw: np.frombuffer(raw, dtype))
        )
    # what does not print is replaced on receipt
    text = st.text(st.characters(codec="utf-8"), max_size=20).map(printable)
    if isinstance(kind, Text):
        return text
    if isinstance(kind, TextList):
        return st.lists(text, max_size=_MAX_ITEMS).map(tuple)
    if isinstance(kind, Tail):
        return st.binary(max_size=20)
    raise TypeError(f"no strategy for {kind}")


def messages(cls: type[Message], dialect: Dialect) -> st.SearchStrategy[Message]:
    """Give messages of a class as the dialect can carry them."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for name, declared in layout(cls):
        absent = declared.since is not None and dialect.version < declared.since
        fields[name] = st.just(declared.absent) if absent else values(declared.kind, dialect)
    return st.builds(cls, **fields)


def message_classes(dialect: Dialect) -> list[tuple[int, type[Message], bool]]:
    """List (opcode, class, is a request) for everything a dialect can carry."""
    found: list[tuple[int, type[Message], bool]] = []
    for opcode, row in dialect.rows.items():
        if row.command.request is not None:
            found.append((opcode, row.command.request, True))
        if row.command.response is not None and row.response is not None:
            found.append((opcode, row.command.response, False))
    return found


@st.composite
def samples(draw: st.DrawFn, dialects: Sequence[Dialect] = DIALECTS) -> Sample:
    """Give any message of any dialect."""
    dialect = draw(st.sampled_from(dialects))
    opcode, cls, is_request = draw(st.sampled_from(message_classes(dialect)))
    return Sample(dialect, opcode, draw(messages(cls, dialect)), is_request)


def frames() -> st.SearchStrategy[Frame]:
    """Give headers, likely and unlikely ones."""
    known = [int(opcode) for dialect in DIALECTS for opcode in dialect.rows]
    sizes = sorted({row.request_min for dialect in DIALECTS for row in dialect.rows.values()})
    return st.builds(
        Frame,
        opcode=st.one_of(st.sampled_from(known), st.integers(0, 255)),
        flags=st.sampled_from((0, 0, 0, 1, 2, 255)),
        status=st.sampled_from((0, 0, 0, 1, 65535)),
        sequence=st.integers(0, 3),
        size=st.one_of(
            st.sampled_from(sizes), st.integers(0, 4096), st.sampled_from((1 << 34, 1 << 62, (1 << 64) - 1))
        ),
    )
