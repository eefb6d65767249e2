"""`wireherd explain`: decode a captured connection."""

from __future__ import annotations

import lzma
import pathlib
from typing import TYPE_CHECKING

from wireherd.errors import RemoteProtocolError, UsageError
from wireherd.protocol.explain import explain

if TYPE_CHECKING:
    import argparse

_XZ_MAGIC = b"\xfd7zXZ\x00"
#: lines that only count bytes, one a side
_TOTALS = 2


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = subparsers.add_parser(
        "explain",
        help="decode captured bytes of a connection",
        description="Decode both directions of a captured connection, one line a frame. Files may be xz-compressed.",
    )
    parser.add_argument("--c2s", metavar="FILE", type=pathlib.Path, required=True, help="bytes from client to server")
    parser.add_argument("--s2c", metavar="FILE", type=pathlib.Path, required=True, help="bytes from server to client")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Print the lines."""
    c2s, s2c = _read(args.c2s), _read(args.s2c)
    lines = 0
    for line in explain(c2s, s2c):
        print(line)
        lines += 1
    if lines == _TOTALS and (c2s or s2c):
        raise RemoteProtocolError("there is not one whole frame in these files: they are no captured connection")
    return 0


def _read(path: pathlib.Path) -> bytes:
    try:
        data = path.read_bytes()
        return lzma.decompress(data) if data.startswith(_XZ_MAGIC) else data
    except (OSError, lzma.LZMAError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error
