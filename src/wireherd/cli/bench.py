"""`wireherd bench`: measure prompt processing and token generation, as llama-bench does."""

from __future__ import annotations

import argparse
import itertools
import sys
from typing import TYPE_CHECKING, Final

from wireherd.bench import profile, report
from wireherd.bench.cases import (
    DEFAULT_GENERATED,
    DEFAULT_PROMPT,
    DEFAULT_REPETITIONS,
    BenchSettings,
    counts,
    pair,
)
from wireherd.bench.runner import Runner
from wireherd.cli import options
from wireherd.cli.progress import bar
from wireherd.errors import UsageError
from wireherd.llm.interrupt import CtrlC

if TYPE_CHECKING:
    from collections.abc import Iterator

_LONGEST_DELAY_S: Final = 86400

_DESCRIPTION = """\
Measure a model here or over workers: llama-bench's cases (pp: a prompt at once, tg: tokens one by one), columns and
formats. Lists take ranges: 0-512+128, 1-64*2.

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
        "-pg", action="append", default=[], metavar="PP,TG", help="also a prompt and generated tokens in one go"
    )
    group.add_argument(
        "-d", "--n-depth", default="0", metavar="N,...", help="tokens in the context before, unmeasured (%(default)s)"
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
    group.add_argument("--delay", type=_seconds, default=0.0, metavar="SECONDS", help="rest between cases (none)")
    group.add_argument("--progress", action="store_true", help="tell on stderr of each run before it begins")
    formats = tuple(report.FORMATS)
    group.add_argument("-o", "--output", choices=formats, default="md", help="format (%(default)s)")
    group.add_argument("-oe", "--output-err", choices=formats, help="also write to stderr, in this format")
    group.add_argument(
        "--profile",
        action="store_true",
        help="show where the client's time goes for a generated token (-n) in one run, instead of a table",
    )
    options.add_compute(parser, context=False)  # it fits the longest case
    options.add_cluster(parser, measuring=True)
    options.add_library(parser)
    options.add_common(parser)


def main(args: argparse.Namespace) -> int:
    """Measure and print, each case as soon as it is done."""
    prompts, generated = counts(args.n_prompt), counts(args.n_gen)
    pairs, depths = tuple(map(pair, args.pg)), counts(args.n_depth)
    if args.profile and (args.output != "md" or args.output_err):
        raise UsageError("--profile prints text only: leave out -o")
    if args.profile and (pairs or any(depths)):
        raise UsageError("--profile looks at generated tokens on an empty context: leave out -pg and -d")
    with bar() as progress:
        model = options.model_path(args, progress)
    settings = BenchSettings(
        llama=options.llama_options(args, model),
        prompts=prompts,
        generated=generated,
        pairs=pairs,
        depths=depths,
        repetitions=args.repetitions,
        warm_up=not args.no_warmup,
        delay_s=args.delay,
    )
    with CtrlC():
        if args.profile:
            for part in _profile(settings):
                sys.stdout.write(part)
                sys.stdout.flush()
        else:
            _measure(settings, args)
    return 0


def _open(settings: BenchSettings) -> Runner:
    with bar() as progress:
        return Runner(settings, progress)


def _measure(settings: BenchSettings, args: argparse.Namespace) -> None:
    with _open(settings) as runner:
        results = runner.results(_tell) if args.progress else runner.results()
        to_out, to_err = itertools.tee(results)
        setup = runner.setup()
        out = report.FORMATS[args.output](setup, settings, to_out)
        err = report.FORMATS[args.output_err](setup, settings, to_err) if args.output_err else iter(())
        for out_part, err_part in itertools.zip_longest(out, err, fillvalue=""):
            for stream, part in ((sys.stdout, out_part), (sys.stderr, err_part)):
                stream.write(part)
                stream.flush()


def _tell(line: str) -> None:
    sys.stderr.write(f"wireherd: {line}\n")
    sys.stderr.flush()


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= _LONGEST_DELAY_S:
        raise argparse.ArgumentTypeError(f"invalid time {text!r}: it must be seconds, at most {_LONGEST_DELAY_S}")
    return value


def _profile(settings: BenchSettings) -> Iterator[str]:
    with profile.timed_callbacks() as clock, _open(profile.roomy(settings)) as runner:
        for tokens in (count for count in settings.generated if count):
            yield from profile.profile(runner, clock, tokens).lines()
