"""`wireherd bench`: measure prompt processing and token generation, as llama-bench does."""

from __future__ import annotations

import argparse
import itertools
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from wireherd.bench import compare, compare_report, plot, profile, report
from wireherd.bench.cases import (
    DEFAULT_GENERATED,
    DEFAULT_PROMPT,
    DEFAULT_REPETITIONS,
    BenchSettings,
    counts,
    pair,
)
from wireherd.bench.runner import Runner, measure
from wireherd.bench.text_runner import TextRunner
from wireherd.cli import bench_flags, drafting, options
from wireherd.cli.progress import bar
from wireherd.errors import UsageError
from wireherd.llm.interrupt import CtrlC

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wireherd.bench.bed import Bed
    from wireherd.bench.compare import Side, Wanted

_LONGEST_DELAY_S: Final = 86400

_DESCRIPTION = """\
Measure a model here or over workers: llama-bench's cases (pp: a prompt at once, tg: tokens one by one), columns and
formats. Lists take ranges: 0-512+128, 1-64*2.

  wireherd bench -m model.gguf --rpc 10.0.0.2,10.0.0.3 -p 512 -n 128 -r 5
  wireherd bench -m model.gguf --workers 2 -t 1 --link 0.5,1000 --compare split=layer,tensor
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
        metavar="N,...",
        help=f"prompt lengths, 0 for none ({DEFAULT_PROMPT}; none with drafts)",
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
        metavar="N",
        help=f"runs of each case ({DEFAULT_REPETITIONS}; pairs of --compare: {compare.DEFAULT_PAIRS})",
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
    bench_flags.add_flags(parser)
    drafting.add_draft(parser)
    options.add_library(parser)
    options.add_common(parser)


def main(args: argparse.Namespace) -> int:
    """Measure and print, each case as soon as it is done."""
    drafts = args.model_draft is not None or args.lookup
    prompts = counts(args.n_prompt or ("0" if drafts else str(DEFAULT_PROMPT)))
    generated = counts(args.n_gen)
    pairs, depths = tuple(map(pair, args.pg)), counts(args.n_depth)
    if args.profile and (args.output != "md" or args.output_err):
        raise UsageError("--profile prints text only: leave out -o")
    if args.profile and args.plot:
        raise UsageError("--profile prints text only: leave out --plot")
    if args.profile and (pairs or any(depths)):
        raise UsageError("--profile looks at generated tokens on an empty context: leave out -pg and -d")
    wanted, site, bed = bench_flags.wanted(args), bench_flags.site(args), bench_flags.bed(args)
    text = bench_flags.text(args)
    if args.plot:
        plot.check(args.plot)
    with bar() as progress:
        model = options.model_path(args, progress)
        draft = drafting.draft_options(args, progress)
    repetitions = args.repetitions
    if repetitions is None:
        repetitions = DEFAULT_REPETITIONS if wanted is None else compare.DEFAULT_PAIRS
    settings = BenchSettings(
        llama=replace(options.llama_options(args, model), draft=draft),
        prompts=prompts,
        generated=generated,
        pairs=pairs,
        depths=depths,
        repetitions=repetitions,
        warm_up=not args.no_warmup,
        delay_s=args.delay,
        link="" if bed.link is None else str(bed.link),
    )
    settings.check()
    with CtrlC(on_exit=bed.kill), bed:
        if wanted is not None:
            sides = compare.sides(wanted, settings, site, (args.driver_a, args.driver_b))
            _compare(wanted, sides, bed, text, args)
            return 0
        settings = replace(settings, llama=replace(settings.llama, rpc=bed.stand(site)))
        if args.profile:
            for part in _profile(settings):
                sys.stdout.write(part)
                sys.stdout.flush()
        else:
            _measure(settings, text, args)
    return 0


def _open(settings: BenchSettings, text: str = "") -> Runner:
    with bar() as progress:
        return Runner(settings, progress, text)


def _measure(settings: BenchSettings, text: str, args: argparse.Namespace) -> None:
    drafts = settings.llama.draft is not None
    with _open(settings, text if drafts else "") as runner:
        measured = TextRunner(runner, text, speculate=True) if drafts else runner
        results, kept = itertools.tee(measure(measured, _tell if args.progress else _say_nothing))
        to_out, to_err = itertools.tee(results)
        setup = runner.setup()
        out = report.FORMATS[args.output](setup, settings, to_out)
        err = report.FORMATS[args.output_err](setup, settings, to_err) if args.output_err else iter(())
        _print(out, err)
        if args.plot:
            plot.plot_results(args.plot, f"{setup.model_type}, {settings.link or setup.backend}", list(kept))


def _compare(wanted: Wanted, sides: tuple[Side, Side], bed: Bed, text: str, args: argparse.Namespace) -> None:
    with bar() as progress:
        comparer = compare.Comparer(wanted, sides, bed, progress, text)
    with comparer:
        found, kept = itertools.tee(comparer.comparisons(_tell if args.progress else _say_nothing))
        to_out, to_err = itertools.tee(found)
        both = comparer.both()
        out = compare_report.FORMATS[args.output](both, to_out)
        err = compare_report.FORMATS[args.output_err](both, to_err) if args.output_err else iter(())
        _print(out, err)
        if args.plot:
            title = f"{both.setup_b.model_type}, {wanted.key}: {wanted.name_b} over {wanted.name_a}"
            link = both.settings_b.link
            plot.plot_comparisons(args.plot, f"{title}, {link}" if link else title, list(kept))


def _print(out: Iterator[str], err: Iterator[str]) -> None:
    for out_part, err_part in itertools.zip_longest(out, err, fillvalue=""):
        for stream, part in ((sys.stdout, out_part), (sys.stderr, err_part)):
            stream.write(part)
            stream.flush()


def _say_nothing(_: str) -> None:
    """Without --progress."""


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
