#!/usr/bin/env python3
"""Run the benches that stand behind our claims, and write docs/results.md from what was run.

    results.py FOLDER                      run what FOLDER has no result of yet, and write docs/results.md
    results.py FOLDER NAME ...             run these, again if need be (--list names them all)
    results.py FOLDER --no-run             only write the page
    results.py FOLDER -r 3 -n 8 -p 32      quick settings; the page tells them, as each command stands there whole

Each line is one `wireherd bench`, kept as FOLDER/NAME.json with the command, the machine and the date, so that a run
that was cut off goes on where it stood. A line that failed or was never run is on the page as just that. Stock peers
are fetched, protocol 7 is built, on first use (Linux x86-64).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "results.md"
SMOL = "smollm2-135m"
#: written by tools/make_even.py into the folder of results
EVEN = "even.gguf"
SCHEMA = 1
INTRODUCTION = """\
# Results

Written by `tools/results.py` out of what was run; nothing here is typed in. [METHODOLOGY.md](METHODOLOGY.md) says how
each figure is taken. `b/a` is the median of the pairs' ratios: above 1, the second mode is faster. All workers run on
one machine with the client, one thread each; where a command has `--link`, behind the emulated link. Commands that
begin with `python -m stock.compare` need `tests` on `PYTHONPATH`.

SmolLM2's three KV heads flatter our tensor split: where a rank has nothing to add, stock peers wait for it all the
same. The even model (`tools/make_even.py`) does not.
"""


@dataclass(frozen=True)
class Line:
    """One bench: its flags, and the ratios (b over a) that it must reach, by the beginning of the test's name."""

    name: str
    says: str
    flags: str
    model: str = SMOL
    stock: str = ""
    bars: dict[str, float] = field(default_factory=dict)
    prompt: int = 128
    generated: int = 32


def _lines() -> list[Line]:
    found = [
        Line(
            f"set-tensor-{delay}ms",
            f"SET_TENSOR answered against not answered, one worker, {delay} ms one way",
            f"--workers 1 --link {delay} --compare set-tensor=sync,async",
            bars={"tg": 1.2 if delay == "3" else 1.0, "pp": 1.0},
        )
        for delay in ("0.1", "0.5", "3")
    ]
    tensor = "--workers 2 -sm tensor --link 0.1,1000"
    found += [
        Line("tensor-before", "Tensor split, what there was before (protocol 7.0) against now",
             f"{tensor} --compare protocol=7.0,herd", bars={"tg": 2.4, "pp": 1.0}),
        Line("tensor-graph-cache", "Tensor split, graph cache off against on",
             f"{tensor} --compare graph-cache=0,1024", bars={"tg": 1.8, "pp": 1.0}),
        Line("cache-policy", "A cache of 16 for some 120 graphs a token: reset against lru",
             f"{tensor} --graph-cache 16 --compare graph-cache-policy=reset,lru"),
    ]  # fmt: skip
    found += [
        Line(f"peer-{major}", f"A stock {name} server, through its own client and through ours", "",
             stock=f"{major} client 1", bars={"tg": 1.0, "pp": 1.0})
        for major, name in (("4", "4.0.3"), ("5", "5.0"), ("7", "7.0"), ("8", "8.0"))
    ]  # fmt: skip
    found += [
        Line(f"worker-{major}", f"A stock {name} client, on its own server and on our worker", "",
             stock=f"{major} worker 1")
        for major, name in (("5", "5.0"), ("7", "7.0"), ("8", "8.0"))
    ]  # fmt: skip
    found += [
        Line(f"tensor-{count}", f"Layers against tensor split, {count} workers, 0.1 ms and 1 Gbit/s",
             f"--workers {count} --link 0.1,1000 --compare split=layer,tensor")
        for count in (2, 3, 4)
    ]  # fmt: skip
    for model, short, where, count, bar in (
        # No --link: stock servers link up with each other at a port of their own, around the emulated link.
        (SMOL, "smollm2", "", 2, 2.5),
        (EVEN, "even", "", 2, 1.2),
    ):
        place = f"{where} ms" if where else "loopback"
        found.append(
            Line(
                f"stock8-{short}-{count}-{where or 'loopback'}",
                f"Stock 8.0 against ours, tensor split, {count} workers, {place}, {short}",
                "-sm tensor" + (f" --link {where}" if where else ""),
                model=model,
                stock=f"8 both {count}",
                bars={"tg": bar},
            )
        )
    draft = f"-md {SMOL} -ngld 0"
    found += [
        Line("draft-local", "Drafts of the model itself, this machine", f"{draft} --compare draft=off,on", prompt=0,
             generated=64),
        Line("draft-3ms", "Drafts of the model itself on this machine, the target behind 3 ms",
             f"--workers 1 --link 3 {draft} --compare draft=off,on", prompt=0, generated=64),
        Line("lookup-local", "N-grams looked up, this machine", "--lookup --compare draft=off,on", prompt=0,
             generated=64),
        Line("lookup-3ms", "N-grams looked up, the target behind 3 ms",
             "--workers 1 --link 3 --lookup --compare draft=off,on", prompt=0, generated=64, bars={"tg": 1.5}),
    ]  # fmt: skip
    return found


def command(line: Line, given: argparse.Namespace) -> list[str]:
    """The words of a bench, as the page shows them, but for where the formats go."""
    model = str(given.folder / EVEN) if line.model == EVEN else line.model
    prompt = min(line.prompt, given.prompt) if given.prompt is not None else line.prompt
    generated = given.generated if given.generated is not None else line.generated
    start = ["python", "-m", "stock.compare", *line.stock.split()] if line.stock else ["wireherd", "bench", "-t", "1"]
    return [*start, "-m", model, "-p", str(prompt), "-n", str(generated), "-r", str(given.pairs), *line.flags.split()]


def run(line: Line, given: argparse.Namespace) -> dict[str, Any]:
    """Run a line to its end; what it printed, or why there is nothing."""
    words = command(line, given)
    if line.model == EVEN and not (given.folder / EVEN).exists():
        maker = [sys.executable, ROOT / "tools" / "make_even.py", given.folder / EVEN]
        subprocess.run(maker, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 (our own tool)
    real = [sys.executable, *words[1:]] if line.stock else [sys.executable, "-m", "wireherd", *words[1:]]
    path = [str(ROOT / "tests")] * bool(line.stock) + [os.environ.get("PYTHONPATH", "")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "name": line.name,
        "command": shlex.join(words),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine(),
    }
    begun = time.monotonic()
    try:
        done = subprocess.run(  # noqa: S603 (a bench of this list)
            [*real, "-o", "json", "-oe", "md"],
            capture_output=True, text=True, check=False, env=env, timeout=given.timeout,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return found | {"error": f"not done within {given.timeout:g} s", "rows": [], "table": ""}
    found["seconds"] = round(time.monotonic() - begun, 1)
    said = done.stderr.splitlines()
    if done.returncode:
        last = next((text for text in reversed(said) if text.strip()), f"exit code {done.returncode}")
        return found | {"error": last, "rows": [], "table": ""}
    table = "\n".join(text for text in said if text.startswith("|"))
    build = next((text for text in said if text.startswith("build: ")), "")
    return found | {"error": "", "rows": json.loads(done.stdout), "table": table, "build": build}


def machine() -> dict[str, str]:
    """What it ran on."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [text.partition(":")[2].strip() for text in info.read_text().splitlines() if "model name" in text]
        cpu = names[0] if names else cpu
    words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    commit = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603 (git)
    return {
        "cpu": cpu,
        "cores": str(os.cpu_count()),
        "system": platform.platform(),
        "python": platform.python_version(),
        "wireherd": " ".join(filter(None, (_version("wireherd"), commit))),
        "library": f"xllamacpp {_version('xllamacpp')}",
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def verdict(line: Line, row: dict[str, Any]) -> str:
    """Whether a ratio reaches its bar: it misses only if its interval lies wholly below."""
    bars = [bar for start, bar in line.bars.items() if row["test"].startswith(start)]
    told = f"{row['test']}: {row['ratio']:.2f} ({row['ratio_min']:.2f} - {row['ratio_max']:.2f}, {row['pairs']} pairs)"
    if not bars:
        return told
    if row["ratio"] >= bars[0]:
        word = "reached"
    else:
        word = "**missed**" if row["ratio_max"] < bars[0] else "not reached, though the interval holds it"
    return f"{told}; at least {bars[0]:g} was wanted: {word}"


def page(lines: list[Line], folder: Path) -> str:
    """The whole page out of what lies in the folder."""
    kept = {line.name: _kept(folder, line.name) for line in lines}
    machines = {json.dumps(found["machine"], sort_keys=True): found["machine"] for found in kept.values() if found}
    text = [INTRODUCTION]
    for number, facts in enumerate(machines.values(), 1):
        title = "Machine" if len(machines) == 1 else f"Machine and code {number}"
        text += [f"{title}: " + ", ".join(f"{key} {value}" for key, value in facts.items() if value) + ".", ""]
    for line in lines:
        found = kept[line.name]
        text += [f"## {line.says}", ""]
        if found is None:
            text += ["Not run.", ""]
            continue
        text += ["```sh", found["command"], "```", ""]
        if found["error"]:
            text += [f"Failed on {found['date']}: {found['error']}", ""]
            continue
        text += [f"- {verdict(line, row)}" for row in found["rows"]]
        text += ["", found["table"], "", f"{found['build']}. Run on {found['date']}, {found['seconds']} s.", ""]
    return "\n".join(text).rstrip() + "\n"


def _kept(folder: Path, name: str) -> dict[str, Any] | None:
    path = folder / f"{name}.json"
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found if found.get("schema") == SCHEMA else None


def main() -> int:
    """Run what is wanted and write the page."""
    lines = _lines()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("-r", dest="pairs", type=int, default=9, help="pairs of each test (%(default)s)")
    parser.add_argument("-n", dest="generated", type=int, help="generated tokens, instead of each line's own")
    parser.add_argument("-p", dest="prompt", type=int, help="prompt tokens at most")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for a line (%(default)s)")
    parser.add_argument("--limit", type=float, default=float("inf"), help="begin no line after so many seconds")
    parser.add_argument("--no-run", action="store_true", help="only write the page")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--list", action="store_true", help="print all names with their commands")
    given = parser.parse_args()
    given.folder = given.folder or Path("results")
    known = {line.name: line for line in lines}
    if given.list:
        for line in lines:
            print(f"{line.name:24} {shlex.join(command(line, given))}")
        return 0
    unknown = [name for name in given.names if name not in known]
    if unknown:
        parser.error(f"there is no line {', '.join(unknown)}: see --list")
    given.folder.mkdir(parents=True, exist_ok=True)
    begun, failed = time.monotonic(), 0
    for line in [] if given.no_run else [known[name] for name in given.names] or lines:
        before = _kept(given.folder, line.name)
        if not given.names and before is not None and not before["error"]:
            continue
        if time.monotonic() - begun > given.limit:
            print(f"{line.name}: left for another run")
            continue
        print(f"{line.name}: {shlex.join(command(line, given))}", flush=True)
        found = run(line, given)
        (given.folder / f"{line.name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        failed += bool(found["error"])
        print("  " + (found["error"] or "; ".join(verdict(line, row) for row in found["rows"])), flush=True)
    given.page.write_text(page(lines, given.folder), encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
