"""Flags for speculative decoding, with llama.cpp's names, and what they become."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wireherd.cli.options import filled, find_model, listed
from wireherd.errors import UsageError
from wireherd.llm.draft_options import DraftOptions

if TYPE_CHECKING:
    import argparse

    from wireherd.llm.fetch import Progress

_DEFAULTS = DraftOptions()


def add_draft(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say how tokens are drafted."""
    group = parser.add_argument_group("speculative decoding")
    which = group.add_mutually_exclusive_group()
    which.add_argument("-md", "--model-draft", "--spec-draft-model", type=filled, metavar="FILE", dest="model_draft",
                       help="small model with the same vocabulary that drafts tokens for the large one")  # fmt: skip
    which.add_argument("--lookup", action="store_true",
                       help="draft what followed the last words where they stood in the text before")  # fmt: skip
    for flags, name, kind, text in (
        (("--spec-draft-n-max", "--draft-max", "--draft"), "n_max", int, "most tokens in a draft"),
        (("--spec-draft-n-min", "--draft-min"), "n_min", int, "shorter drafts are dropped"),
        (("--spec-draft-p-min", "--draft-p-min"), "p_min", float, "a draft model less sure than this ends its draft"),
        (("-ngld", "--spec-draft-ngl", "--n-gpu-layers-draft"), "n_gpu_layers", int,
         "layers of the draft model that leave the CPU, below zero all"),
        (("--lookup-ngram-min",), "ngram_min", int, "least tokens to look up"),
        (("--lookup-ngram-max",), "ngram_max", int, "most tokens to look up"),
    ):  # fmt: skip
        default = getattr(_DEFAULTS, name)
        group.add_argument(
            *flags, type=kind, dest=f"draft_{name}", default=None, metavar="N", help=f"{text} (default {default})"
        )
    group.add_argument("--rpc-draft", metavar="HOST:PORT,...",
                       help="workers for the draft model, --rpc's or others (default: it runs here)")  # fmt: skip


def draft_options(args: argparse.Namespace, progress: Progress) -> DraftOptions | None:
    """How to draft, out of the flags; None if nothing shall be drafted. A known draft model is fetched.

    Raises:
        UsageError: flags that contradict each other or make no sense, or there is no such model.
        ModelError: it cannot be fetched.
    """
    names = ("n_max", "n_min", "p_min", "n_gpu_layers", "ngram_min", "ngram_max")
    given = {name: value for name in names if (value := getattr(args, f"draft_{name}")) is not None}
    if args.model_draft is None and not args.lookup:
        if given or args.rpc_draft is not None:
            raise UsageError("nothing is drafted that these flags could be for: give -md FILE or --lookup")
        return None
    wanted = DraftOptions(
        model=None if args.model_draft is None else find_model(args.model_draft, progress, offline=args.offline),
        rpc=() if args.rpc_draft is None else listed("--rpc-draft", args.rpc_draft, "address"),
        lookup=args.lookup,
        **given,
    )
    wanted.check()
    return wanted
