"""`wireherd worker`: serve this machine's devices."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from wireherd import config, worker
from wireherd.errors import UsageError
from wireherd.protocol.version import NEWEST, SUPPORTED, Version
from wireherd.worker.settings import DEFAULT_GRAPH_CACHE

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace, _SubParsersAction

_MIB = 1 << 20


def add_parser(subparsers: _SubParsersAction[ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = subparsers.add_parser(
        "worker",
        help="serve this machine's devices to other machines",
        description="Serve this machine's devices over the ggml RPC protocol, to wireherd and to stock llama.cpp.",
    )
    known = ", ".join(version.short for version in SUPPORTED)
    parser.add_argument(
        "-H",
        "--host",
        default=config.DEFAULT_HOST,
        metavar="ADDRESS",
        help="listen here (%(default)s); unix:PATH for this user's programs on this machine; device:PATH for a "
        "byte-stream device; several with commas",
    )
    parser.add_argument(
        "-p",
        "--port",
        type=int,
        default=config.DEFAULT_PORT,
        metavar="PORT",
        help="0 lets the system choose (%(default)s)",
    )
    parser.add_argument("-d", "--device", metavar="NAMES", help="devices to serve, comma-separated (default: all)")
    parser.add_argument("-t", "--threads", type=int, metavar="N", help="CPU threads a client (default: all cores)")
    parser.add_argument("-m", "--mem", type=int, metavar="MIB", help="most memory for all clients together")
    parser.add_argument(
        "--graph-cache-limit",
        type=int,
        default=DEFAULT_GRAPH_CACHE,
        metavar="N",
        help="most graphs kept for a client on each device, 0 for none (%(default)s)",
    )
    parser.add_argument("--protocol", metavar="VERSION", help=f"version to answer with: {known} ({NEWEST.short})")
    parser.add_argument(
        "--ggml", metavar="PATH", help="ggml library: a file or a folder (default: the installed wheel)"
    )
    parser.add_argument(
        "--insecure", action="store_true", help="allow an address that other machines reach, without authentication"
    )
    parser.add_argument(
        "--peers",
        metavar="RANGES",
        help="address ranges in which this worker may link up with others, such as 192.168.1.0/24, comma-separated "
        "(default: this machine; with --insecure also private networks)",
    )
    parser.add_argument(
        "--advertise",
        metavar="HOST:PORT,...",
        help="where other workers reach this one, if not where it listens: behind a relay or a forwarded port",
    )
    parser.add_argument("-v", "--verbose", action="store_true", default=False, help="log every step")
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--until-eof", action="store_true", help=argparse.SUPPRESS)
    parser.set_defaults(main=main)


def main(args: Namespace) -> int:
    """Run the worker until it is told to stop."""
    return worker.run(settings(args))


def settings(args: Namespace) -> worker.WorkerSettings:
    """The settings that the arguments ask for.

    Raises:
        UsageError: they make no sense.
    """
    if args.mem is not None and args.mem <= 0:
        raise UsageError(f"--mem must be above zero MiB, not {args.mem}")
    devices = None
    if args.device is not None:
        devices = tuple(name for name in (part.strip() for part in args.device.split(",")) if name)
    return worker.WorkerSettings(
        host=args.host,
        port=args.port,
        devices=devices,
        threads=args.threads,
        memory_limit=None if args.mem is None else args.mem * _MIB,
        graph_cache_limit=args.graph_cache_limit,
        protocol=NEWEST if args.protocol is None else Version.parse(args.protocol),
        ggml=args.ggml,
        insecure=args.insecure,
        verbose=args.verbose,
        peers=None if args.peers is None else tuple(part.strip() for part in args.peers.split(",") if part.strip()),
        advertise=() if args.advertise is None else tuple(part.strip() for part in args.advertise.split(",")),
        plain=args.plain,
        until_eof=args.until_eof,
    )
