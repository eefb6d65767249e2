"""Write `docs/protocol.md` from the table: `python -m wireherd.protocol.document > docs/protocol.md`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from wireherd.protocol.dialect import Dialect, dialect_for
from wireherd.protocol.fields import Array, Scalar, Tensors, Variable, layout
from wireherd.protocol.messages_herd import Feature
from wireherd.protocol.numbering import STOCK_NUMBERING
from wireherd.protocol.table import BY_MESSAGE, COMMANDS, Bulk, Command, Opcode, Reply, State
from wireherd.protocol.tensor import HERD_TENSOR, STOCK_TENSOR
from wireherd.protocol.version import NEWEST, RELEASES, SUPPORTED

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from wireherd.protocol.fields import Kind, Message

_HEAD = """\
# The wire protocol

Generated from the message table by `python -m wireherd.protocol.document`: change `src/wireherd/protocol/`, not this
page.

All numbers are little-endian, all records packed. A request is followed by its answer in the order of the requests;
stock answers do not say what they answer.
"""

_FRAMES = """\
## Headers

| format | bytes | fields |
|---|---|---|
| stock request | 9 | command u8, size u64 |
| stock answer | 8 | size u64 |
| herd, both directions | 16 | kind u8 (the command), flags u8 (1 = answer), status u16, sequence u32, length u64 |

Stock knows no error: a server that cannot go on closes the connection. In the herd format requests are numbered from 1,
an answer repeats kind and number of its request, an answer with a status other than 0 carries the reason as UTF-8
instead of its record, and ERROR and PROGRESS come unasked.

## Handshake

1. The client sends HELLO. Bit 0 of byte 3 of the answer says that the server understands HERD_HELLO; it is zero on
   every stock server and no stock client looks at it.
2. If the bit is set, the client may send HERD_HELLO, in stock framing. An answer with status 0 switches both directions
   to the herd header and to the herd tensor record.
3. A connection with purpose 1 (control) takes PING and CANCEL only and names the session it belongs to.
"""

_VECTORS, _PEERS = "test vectors only", "real peers, both ways"
#: for people: what says that a dialect is right
_PROVED = {
    (3, 6): _VECTORS,
    (4, 0): _PEERS,
    (5, 0): _PEERS,
    (5, 1): "recorded traffic of real peers",
    (6, 0): _VECTORS,
    (7, 0): _PEERS,
    (8, 0): _PEERS,
}


def document() -> Iterator[str]:
    """Give the page line by line."""
    yield from _HEAD.splitlines()
    yield ""
    yield from _FRAMES.splitlines()
    yield ""
    yield from _versions()
    yield from _tensors()
    yield from _states()
    yield from _commands()
    yield from _messages()


def _versions() -> Iterator[str]:
    yield "## Versions"
    yield ""
    yield "| version | seen in | proved by | tensor record | commands | operations known by name |"
    yield "|---|---|---|---|---|---|"
    for version in SUPPORTED:
        dialect = dialect_for(version)
        where = RELEASES.get(version.line, "no build at hand")
        ops = len(STOCK_NUMBERING[version].ops)
        count = sum(row.command.opcode < Opcode.HERD_HELLO for row in dialect.rows.values())
        yield f"| {version} | {where} | {_PROVED[version.line]} | {dialect.tensor_dtype.itemsize} | {count} | {ops} |"
    herd = dialect_for(NEWEST, herd=True)
    yield f"| herd | wireherd | itself | {herd.tensor_dtype.itemsize} | {len(herd.rows)} | by the handshake |"
    yield ""


def _tensors() -> Iterator[str]:
    yield "## Tensor records"
    yield ""
    yield f"Stock, {STOCK_TENSOR.itemsize} bytes (up to 5.0 the last four bytes are padding): {_record(STOCK_TENSOR)}."
    yield ""
    yield f"Herd, {HERD_TENSOR.itemsize} bytes: {_record(HERD_TENSOR)}."
    yield ""


def _record(dtype: np.dtype[np.void]) -> str:
    parts = []
    for name in dtype.names or ():
        field = dtype[name]
        base, shape = field.base, field.shape
        width = f"bytes[{base.itemsize}]" if base.kind == "S" else f"{base.kind}{8 * base.itemsize}"
        parts.append(f"`{name}` {width}{f'[{shape[0]}]' if shape else ''}")
    return ", ".join(parts)


def _states() -> Iterator[str]:
    yield "## What may be said when"
    yield ""
    yield "| state | commands |"
    yield "|---|---|"
    for state in State:
        names = [row.name for row in COMMANDS.values() if state in row.states]
        if len(names) > len(COMMANDS) // 2:
            others = [row.name for row in COMMANDS.values() if state not in row.states and not row.unasked]
            yield f"| {state.value} | all but {', '.join(others)} |"
        else:
            yield f"| {state.value} | {', '.join(names) or 'none'} |"
    yield ""


def _commands() -> Iterator[str]:
    yield "## Commands"
    yield ""
    yield "| number | command | since | answer | data | needs | what it does |"
    yield "|---|---|---|---|---|---|---|"
    for row in COMMANDS.values():
        since = (
            "herd"
            if row.herd or row.opcode == Opcode.HERD_HELLO
            else ""
            if row.since <= SUPPORTED[0]
            else row.since.short
        )
        needs = "" if row.feature is Feature.NONE else row.feature.name
        bulk = "" if row.bulk is Bulk.NONE else row.bulk.value
        yield f"| {int(row.opcode)} | {row.name} | {since} | {_answer(row)} | {bulk} | {needs} | {row.doc} |"
    yield ""


def _answer(row: Command) -> str:
    if row.unasked:
        return "unasked"
    if row.silent_since is not None:
        return f"{row.reply.value}, none from {row.silent_since.short} on"
    return "the bytes" if row.reply is Reply.RAW else row.reply.value


def _messages() -> Iterator[str]:
    yield "## Messages"
    yield ""
    dialects = [dialect_for(version) for version in SUPPORTED]
    herd = dialect_for(NEWEST, herd=True)
    for row in COMMANDS.values():
        for cls in (row.request, row.response):
            if cls is not None and cls in BY_MESSAGE:
                yield from _message(cls, [*([] if row.herd else dialects), herd])


def _message(cls: type[Message], dialects: list[Dialect]) -> Iterator[str]:
    yield f"### {cls.__name__}"
    yield ""
    yield f"{(cls.__doc__ or '').strip()} {_sizes(cls, dialects)}"
    yield ""
    fields = layout(cls)
    if fields:
        yield "| field | type | meaning |"
        yield "|---|---|---|"
        for name, declared in fields:
            since = f" (from {declared.since.short} on)" if declared.since else ""
            yield f"| {name} | {_kind(declared.kind)} | {declared.doc}{since} |"
        yield ""


def _sizes(cls: type[Message], dialects: list[Dialect]) -> str:
    groups: list[tuple[str, list[str]]] = []
    for dialect in dialects:
        codec = dialect.codecs.get(cls)
        if codec is None:
            continue
        size = (
            _bytes(codec.size)
            if codec.size is not None
            else f"at least {_bytes(codec.minimum)}"
            if codec.minimum
            else "any number of bytes"
        )
        name = "herd" if dialect.herd else dialect.version.short
        if groups and groups[-1][0] == size:
            groups[-1][1].append(name)
        else:
            groups.append((size, [name]))
    if len(groups) == 1:
        return f"{groups[0][0].capitalize()}."
    return "; ".join(f"{_range(names)}: {size}" for size, names in groups).capitalize() + "."


def _bytes(count: int) -> str:
    return "1 byte" if count == 1 else f"{count} bytes" if count else "no bytes"


def _range(names: list[str]) -> str:
    stock = [name for name in names if name != "herd"]
    span = f"{stock[0]} to {stock[-1]}" if len(stock) > 1 else "".join(stock)
    return " and ".join(part for part in (span, "herd" if len(stock) < len(names) else "") if part)


def _kind(kind: Kind) -> str:
    if isinstance(kind, Array):
        return f"count u32, {'tensor' if kind.dtype is None else 'u64'} records"
    if isinstance(kind, (Scalar, Tensors)) or not isinstance(kind, Variable):
        return kind.name
    return {"text": "length u32, UTF-8", "text list": "count u32, texts", "tail": "the rest"}[kind.name]


def main() -> None:
    """Print the page."""
    sys.stdout.writelines(f"{line}\n" for line in document())


if __name__ == "__main__":
    main()
