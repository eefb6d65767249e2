"""The command line as a user starts it: a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: both sides compute alike: flash attention said outright, weights not repacked, one thread
EQUAL_KERNELS = ("-fa", "on", "--no-repack", "-t", "1")
GREEDY = ("--temp", "0")
#: freshly allocated memory is filled with this byte's complement, so that whatever reads it unset shows
PERTURBED = {"MALLOC_PERTURB_": "90"}


@dataclass
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str
    seconds: float

    def sentence(self) -> str:
        """The one line on stderr that says what went wrong."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        assert len(lines) == 1, f"one sentence was expected, not:\n{self.err}"
        assert "Traceback" not in self.err
        return lines[0]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "wireherd", *arguments]


def wireherd(*arguments: str, env: Mapping[str, str] | None = None, timeout_s: float = 120) -> Outcome:
    """Run a verb to its end."""
    start = time.monotonic()
    done = subprocess.run(
        command(*arguments),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, **(env or {})},
        timeout=timeout_s,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr, time.monotonic() - start)


def generate(
    model: str,
    prompt: str,
    *,
    rpc: Sequence[str] = (),
    n: int = 24,
    extra: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    timeout_s: float = 200,
) -> dict[str, Any]:
    """`wireherd run --json` with equal kernels; the printed object."""
    where = ["--rpc", ",".join(rpc)] if rpc else ["-ngl", "0"]
    outcome = wireherd(
        *("run", "--json", "-m", model, "-p", prompt, "-n", str(n), *where, *EQUAL_KERNELS, *extra),
        env=PERTURBED if env is None else env,
        timeout_s=timeout_s,
    )
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)
