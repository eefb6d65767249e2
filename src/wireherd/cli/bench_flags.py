"""Flags of `bench` that llama-bench does not have, and what they become."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from wireherd.bench import compare
from wireherd.bench.bed import Bed, Site
from wireherd.bench.link import LinkShape
from wireherd.bench.textgen import prompt_text
from wireherd.cli import options
from wireherd.errors import UsageError
from wireherd.llm.options import default_threads
from wireherd.protocol.version import NEWEST, SUPPORTED, Version
from wireherd.worker import WorkerSettings

if TYPE_CHECKING:
    import argparse

    from wireherd.bench.compare import Wanted


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare them."""
    group = parser.add_argument_group("workers of its own")
    group.add_argument("--workers", type=options.positive, metavar="N", help="start N workers here, instead of --rpc")
    group.add_argument(
        "--worker-threads", type=options.positive, metavar="N", help="CPU threads of each (default: -t, else cores / N)"
    )
    group.add_argument("--worker-protocol", metavar="VERSION", help="version they answer with (default: newest)")
    group.add_argument(
        "--link", metavar="MS[,MBIT[,MS[,half]]]",
        help="an emulated link to workers, and between those of --workers: delay one way, rate, jitter, half duplex as "
        "WiFi (none)",
    )  # fmt: skip
    group = parser.add_argument_group("comparing and drawing")
    keys = "; ".join(f"{key}={example}" for key, example in compare.KEYS.items())
    group.add_argument("--compare", metavar="KEY=A,B", help=f"alternate two modes, -r pairs (default 9): {keys}")
    group.add_argument("--names", metavar="A,B", help="what the two are called (default: their values)")
    for side in ("a", "b"):
        group.add_argument(
            f"--driver-{side}", default="", metavar="COMMAND",
            help=f"measure side {side} through this program, such as a stock client (docs/METHODOLOGY.md)",
        )  # fmt: skip
    group.add_argument(
        "--text", metavar="FILE", help="what drafts are measured behind (default: a built-in repetitive text)"
    )
    group.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the results, too (needs wireherd[plot])")


def site(args: argparse.Namespace) -> Site:
    """Where the workers are: named by --rpc, or started.

    Raises:
        UsageError: flags that contradict each other.
    """
    endpoints = options.endpoints(args)
    protocol = NEWEST if args.worker_protocol is None else Version.parse(args.worker_protocol)
    if protocol not in SUPPORTED:
        known = ", ".join(version.short for version in SUPPORTED)
        raise UsageError(
            f"--worker-protocol {args.worker_protocol} is not one our worker speaks: choose one of {known}"
        )
    if args.workers is None:
        for flag, value in (("--worker-threads", args.worker_threads), ("--worker-protocol", args.worker_protocol)):
            if value is not None and not (args.compare or "").startswith("workers="):
                raise UsageError(f"{flag} is for workers that the bench starts: give --workers N")
        return Site(endpoints, protocol=protocol)
    if endpoints:
        raise UsageError("--workers starts workers here and --rpc names others: give one of them")
    return Site(fresh=args.workers, protocol=protocol)


def bed(args: argparse.Namespace) -> Bed:
    """What fresh workers are like, and the link in front of all.

    Raises:
        UsageError: no such link, or nothing to stand in front of.
    """
    link = None if args.link is None else LinkShape.parse(args.link)
    named = args.workers is not None or args.rpc is not None
    if link is not None and not named and (args.compare or "").partition("=")[0] not in {"rpc", "workers"}:
        raise UsageError("--link stands in front of workers: give --workers N or --rpc")
    threads = args.worker_threads or args.threads or max(1, default_threads() // (args.workers or 1))
    return Bed(WorkerSettings(port=0, threads=threads, ggml=str(args.ggml) if args.ggml else None), link)


def wanted(args: argparse.Namespace) -> Wanted | None:
    """What is to be compared; None without `--compare`.

    Raises:
        UsageError: no such comparison.
    """
    if args.compare is None:
        if args.driver_a or args.driver_b or args.names is not None:
            raise UsageError("--driver-a, --driver-b and --names are for a comparison: give --compare")
        return None
    if args.profile:
        raise UsageError("--profile looks at one mode: leave out --compare")
    return compare.Wanted.parse(args.compare, args.names)


def text(args: argparse.Namespace) -> str:
    """The text that drafts are measured behind.

    Raises:
        UsageError: it cannot be read, or nothing is drafted.
    """
    if args.text is not None and not (args.model_draft or args.lookup):
        raise UsageError("--text is for drafts: give -md FILE or --lookup")
    return prompt_text(args.text)
