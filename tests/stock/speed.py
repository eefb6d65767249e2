"""Is a stock peer served as quickly as by its own kind? Alternating runs, from the folder `tests`:

    PYTHONPATH=.:../src python -m stock.speed 4|5|7|8 MODEL [ROUNDS] [PROMPT] [GENERATED]

client: our client against a stock client, on one stock server. worker: our worker against a stock server, under one
stock client; both compute with the same ggml library where it is at hand (5, 7). Prints tokens a second of a prompt
(pp) and of generation (tg), medians, and the median of the rounds' ratios ours / theirs. Needs a quiet machine.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable

from stock import peer8
from stock.get_stock import libggml, stock
from stock.running import LlamaServer, stock_server
from support.cli import wireherd
from support.workers import Worker

NAMES = {"4": "4.0", "5": "5.0", "7": "7.0", "8": "8.0"}
#: tokens a second: (prompt, generation)
Speed = tuple[float, float]


def stock_client(version: str, model: str, endpoint: str, prompt: int, generated: int) -> Speed:
    if version in {"4", "5"}:
        server = LlamaServer(stock(version) / "bin", model, [endpoint])
        try:
            server.completion([504] * 8, 2)
            timings = server.completion([504] * prompt, generated)["timings"]
            return timings["prompt_per_second"], timings["predicted_per_second"]
        finally:
            server.stop()
    if version == "7":
        command = [str(stock("7") / "bin" / "greedy"), model, str(generated), endpoint, str(prompt)]
    else:
        command = [sys.executable, peer8.__file__, str(stock("8")), "speed"]
        command += [model, str(generated), endpoint, str(prompt)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    pp, tg = done.stdout.splitlines()[-1].split()
    return float(pp), float(tg)


def our_client(model: str, endpoint: str, prompt: int, generated: int) -> Speed:
    outcome = wireherd(
        *("bench", "-m", model, "--rpc", endpoint, "-p", str(prompt), "-n", str(generated)),
        *("-r", "1", "-fa", "1", "-t", "1", "-o", "json"),
        timeout_s=600,
    )
    assert outcome.code == 0, outcome.err
    pp, tg = json.loads(outcome.out)
    return pp["avg_ts"], tg["avg_ts"]


def alternate(what: str, ours: Callable[[], Speed], theirs: Callable[[], Speed], rounds: int) -> None:
    pairs = [(ours(), theirs()) for _ in range(rounds)]
    for name, column in (("pp", 0), ("tg", 1)):
        mine, yours = [pair[0][column] for pair in pairs], [pair[1][column] for pair in pairs]
        ratios = [a / b for a, b in zip(mine, yours, strict=True)]
        print(
            f"{what} {name}: ours {statistics.median(mine):.1f}, theirs {statistics.median(yours):.1f}, "
            f"ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
            flush=True,
        )


def main(version: str, model: str, rounds: int = 5, prompt: int = 256, generated: int = 64) -> None:
    with stock_server(version) as endpoint:
        alternate(
            "client",
            lambda: our_client(model, endpoint, prompt, generated),
            lambda: stock_client(version, model, endpoint, prompt, generated),
            rounds,
        )
        library = {"5": libggml, "7": lambda: stock("7") / "bin"}.get(version)
        worker = Worker("--protocol", NAMES[version], *(("--ggml", str(library())) if library else ()))
        try:
            alternate(
                "worker",
                lambda: stock_client(version, model, worker.endpoint, prompt, generated),
                lambda: stock_client(version, model, endpoint, prompt, generated),
                rounds,
            )
        finally:
            worker.stop()


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in NAMES:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
