"""`wireherd devices`: what can compute, here and on workers."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from wireherd.cli import options
from wireherd.errors import WireherdError
from wireherd.llm import inventory
from wireherd.llm.placement import mib

if TYPE_CHECKING:
    import argparse


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb and its flags."""
    parser = subparsers.add_parser(
        "devices",
        help="list devices, here and on workers",
        description="List the devices of this machine's ggml library, and with --rpc those of workers.",
    )
    options.add_cluster(parser)
    options.add_library(parser)
    parser.add_argument("--json", action="store_true", help="print a list of objects")
    options.add_common(parser)


def main(args: argparse.Namespace) -> int:
    """Print a table or JSON; fails if a worker cannot be asked, after printing what could."""
    found = inventory.local(args.ggml)
    here = len(found)
    failures = []
    for endpoint in options.endpoints(args):
        try:
            found += inventory.remote(endpoint, args.ggml, first=len(found) - here, stock_timeout_s=args.stock_timeout)
        except WireherdError as error:
            failures.append(error)
    if args.json:
        print(json.dumps([device.to_dict() for device in found], indent=2))
    else:
        _show([device.to_dict() for device in found])
    for failure in failures:
        sys.stderr.write(f"wireherd: {failure}\n")
    return max((failure.exit_code for failure in failures), default=0)


def _show(rows: list[dict[str, Any]]) -> None:
    lines = [["WHERE", "PROTOCOL", "NAME", "TYPE", "FREE MiB", "TOTAL MiB", "DESCRIPTION"]]
    for row in rows:
        sizes = [str(mib(row[key])) for key in ("memory_free", "memory_total")]
        where, protocol = row["endpoint"] or "here", row["protocol"] or "-"
        lines.append([where, protocol, row["name"], row["type"] or "-", *sizes, row["description"]])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]) - 1)]
    for line in lines:
        cells = [
            text.rjust(width) if title.endswith("MiB") else text.ljust(width)
            for title, text, width in zip(lines[0], line, widths, strict=False)
        ]
        print("  ".join([*cells, line[-1]]).rstrip())
