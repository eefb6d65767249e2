"""`wireherd bench`: measure prompt processing and token generation, as llama-bench does."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from wireherd.bench import profile, report
from wireherd.bench.cases import (
    DEFAULT_GENERATED,
    DEFAULT_PROMPT,
    DEFAULT_REPETITIONS,
    BenchSettings,
    counts,
)
from wireherd.bench.runner import Runner
from wireherd.cli import options
from wireherd.cli.progress import bar
from wireherd.errors import UsageError
from wireherd.llm.interrupt import CtrlC

if TYPE_CHECKING:
    from collections.abc import Iterator

_DESCRIPTION = """\
Measure a model here or over workers: llama-bench's cases (pp: a prompt at once, tg: tokens one by one), columns and
JSON.

  wireherd bench -m model.gguf --rpc 10.0.0.2,10.0.0.3 -p 512 -n 128 -r 5
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb and its flags."""
    parser = subparsers.add_parser(
        "bench",
        help="measure tokens per second",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_model(parser)
    group = parser.add_argument_group("cases")
    group.add_argument(
        "-p",
        "--n-prompt",
        default=str(DEFAULT_PROMPT),
        metavar="N,...",
        help="prompt lengths, 0 for none (%(default)s)",
    )
    group.add_argument(
        "-n",
        "--n-gen",
        default=str(DEFAULT_GENERATED),
        metavar="N,...",
        help="generated tokens, 0 for none (%(default)s)",
    )
    group.add_argument(
        "-r",
        "--repetitions",
        type=int,
        default=DEFAULT_REPETITIONS,
        metavar="N",
        help="runs of each case (%(default)s)",
    )
    group.add_argument("--no-warmup", action="store_true", help="measure from the first run on")
    group.add_argument("-o", "--output", choices=report.FORMATS, default="md", help="format (%(default)s)")
    group.add_argument(
        "--profile",
        action="store_true",
        help="show where the client's time goes for a generated token (-n) in one run, instead of a table",
    )
    options.add_compute(parser, context=False)  # it fits the longest case
    options.add_cluster(parser)
    options.add_library(parser)
    options.add_common(parser)


def main(args: argparse.Namespace) -> int:
    """Measure and print, each case as soon as it is done."""
    prompts, generated = counts(args.n_prompt), counts(args.n_gen)
    if args.profile and args.output != "md":
        raise UsageError("--profile prints text only: leave out -o")
    with bar() as progress:
        model = options.model_path(args, progress)
    settings = BenchSettings(
        llama=options.llama_options(args, model),
        prompts=prompts,
        generated=generated,
        repetitions=args.repetitions,
        warm_up=not args.no_warmup,
    )
    with CtrlC():
        for part in _profile(settings) if args.profile else _table(settings, args.output):
            sys.stdout.write(part)
            sys.stdout.flush()
    return 0


def _open(settings: BenchSettings) -> Runner:
    with bar() as progress:
        return Runner(settings, progress)


def _table(settings: BenchSettings, output: str) -> Iterator[str]:
    form = report.json_lines if output == "json" else report.markdown_lines
    with _open(settings) as runner:
        yield from form(runner.setup(), settings, runner.results())


def _profile(settings: BenchSettings) -> Iterator[str]:
    with profile.timed_callbacks() as clock, _open(profile.roomy(settings)) as runner:
        for tokens in (count for count in settings.generated if count):
            yield from profile.profile(runner, clock, tokens).lines()
