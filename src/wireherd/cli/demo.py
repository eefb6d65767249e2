"""`wireherd demo`: a small real model over two local workers, and the proof that it says the same as one machine."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table

from wireherd.cli import options
from wireherd.cli.progress import bar
from wireherd.llm import models
from wireherd.llm.chat import prompt_tokens
from wireherd.llm.generate import GenerateOptions, Result
from wireherd.llm.interrupt import CtrlC
from wireherd.llm.options import LlamaOptions
from wireherd.llm.session import LlmSession
from wireherd.worker.launch import WorkerProcess, spawn
from wireherd.worker.settings import WorkerSettings

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

_MODEL: Final = "smollm2-135m-instruct"
_PROMPT: Final = "Explain in a few sentences why the sky is blue and sunsets are red."


@dataclass(frozen=True, slots=True)
class _Run:
    name: str
    load_ms: float
    result: Result


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb and its flags."""
    parser = subparsers.add_parser(
        "demo",
        help="split a small model over two local workers",
        description="Fetch a small model (93 MB, once), run it here, over one and over two local workers with one "
        "thread each, and compare the tokens. Exits with 0 only if they are equal.",
    )
    parser.add_argument("-p", "--prompt", default=_PROMPT, metavar="TEXT", help="what to ask")
    parser.add_argument(
        "-n", "--predict", type=options.positive, default=64, metavar="N", help="most tokens (default 64)"
    )
    parser.add_argument("--offline", action="store_true", help="fetch nothing")
    options.add_library(parser)
    options.add_common(parser)


def main(args: argparse.Namespace) -> int:
    """Run the three, stream the last, print the table."""
    console = Console(soft_wrap=True)
    model = models.find(_MODEL)
    if model:
        sys.stderr.write(f"{model.about}. Licence: {model.licence}.\n")
    with bar() as progress:
        path = models.pull(_MODEL, progress=progress, offline=args.offline)
    with contextlib.ExitStack() as stack:
        workers: list[WorkerProcess] = []

        def kill_workers() -> None:
            for worker in workers:
                worker.kill()

        stack.enter_context(CtrlC(on_exit=kill_workers))
        runs = [_measure("local", args, path, ())]
        settings = WorkerSettings(port=0, threads=1, ggml=str(args.ggml) if args.ggml else None)
        workers += [stack.enter_context(spawn(settings)) for _ in range(2)]
        addresses = tuple(worker.endpoint for worker in workers)
        runs.append(_measure("1 worker", args, path, addresses[:1]))
        print(f"\n{args.prompt}\n")
        runs.append(_measure("2 workers", args, path, addresses, stream=True))
        print("\n")
    console.print(_table(runs))
    equal = all(run.result.tokens == runs[0].result.tokens for run in runs)
    print(
        f"All {len(runs[0].result.tokens)} tokens are equal."
        if equal
        else "The tokens differ: workers and this machine do not compute alike."
    )
    return 0 if equal else 1


def _measure(name: str, args: argparse.Namespace, path: Path, rpc: tuple[str, ...], *, stream: bool = False) -> _Run:
    # equal kernels on both sides: weights not repacked here, as many threads here as a worker has
    llama = LlamaOptions(
        model=path, rpc=rpc, devices=None if rpc else (), repack=False, threads=1, n_ctx=2048, ggml=args.ggml
    )
    generate = GenerateOptions(n_predict=args.predict, temperature=0.0)
    with bar() as progress:
        session = LlmSession.open(llama, progress)
    with session:
        prompt = prompt_tokens(session, [{"role": "user", "content": args.prompt}])
        # the first pass pays for what only happens once: threads, pages, graphs
        session.generate(prompt, replace(generate, n_predict=1)).run()
        generation = session.generate(prompt, generate)
        for piece in generation:
            if stream:
                sys.stdout.write(piece)
                sys.stdout.flush()
        return _Run(name, session.load_ms, generation.result)


def _table(runs: list[_Run]) -> Table:
    table = Table(title="SmolLM2-135M, one thread each")
    table.add_column("")
    for title in ("load s", "prompt t/s", "generate t/s", "same tokens"):
        table.add_column(title, justify="right")
    for run in runs:
        timings = run.result.timings
        same = "" if run is runs[0] else "yes" if run.result.tokens == runs[0].result.tokens else "NO"
        table.add_row(
            run.name,
            f"{run.load_ms / 1000:.2f}",
            f"{timings.prompt_per_second:.1f}",
            f"{timings.predicted_per_second:.1f}",
            same,
        )
    return table
