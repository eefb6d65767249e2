"""Measure with another program in our place, such as a stock client: it runs the cases, we keep the books.

The program is started once. It writes a JSON object when it is ready: `build`, `model_type`, `model_size` and
`model_n_params` where it knows them. Then it reads a line for each run, `{"n_prompt": 512, "n_gen": 0, "n_depth": 0}`,
runs that on an emptied context as `Runner.run` does, and answers `{"ns": nanoseconds}`, or `{"error": "sentence"}`. It
ends when its standard input does.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from wireherd.bench.result import Setup
from wireherd.bench.runner import WARM_TOKENS, Sample
from wireherd.bench.traffic import Traffic
from wireherd.errors import UsageError, WireherdError
from wireherd.llm.options import default_threads

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wireherd.bench.cases import BenchSettings, Case

_END_S: Final = 5.0


class DriverError(WireherdError):
    """The program that was to be measured failed."""


class Driver:
    """A running program that measures. Close it, or use it as a context manager."""

    def __init__(self, command: str, settings: BenchSettings) -> None:
        """Start the program and wait until it is ready.

        Args:
            command: words as in a shell; `{rpc}`, `{model}`, `{ctx}`, `{sm}`, `{t}` and `{ub}` become what this side
                measures with.
            settings: of this side.

        Raises:
            UsageError: the command is no command.
            DriverError: the program ended or failed.
        """
        self.settings = settings
        llama = settings.fitted()
        values = {
            "rpc": ",".join(llama.rpc),
            "model": str(llama.path),
            "ctx": str(llama.n_ctx),
            "sm": llama.split_mode,
            "t": str(llama.threads or default_threads()),
            "ub": str(llama.n_ubatch),
        }
        try:
            words = [_filled(word, values) for word in shlex.split(command)]
        except ValueError as error:
            raise UsageError(f"the command {command!r} cannot be taken apart: {error}") from error
        if not words:
            raise UsageError("a driver needs a command")
        self.name = words[0]
        try:
            self._process = subprocess.Popen(  # noqa: S603 (the user's own command)
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        except OSError as error:
            raise UsageError(f"cannot start {self.name}: {error.strerror or error}") from error
        try:
            self._facts = self._answer()
        except BaseException:
            self.close()
            raise

    def setup(self) -> Setup:
        """What it measures with, as far as it told."""
        facts, llama = self._facts, self.settings.llama
        return Setup(
            build=str(facts.get("build", "")),
            cpu="",
            backend="RPC" if llama.rpc else "CPU",
            model_type=str(facts.get("model_type", "")),
            model_size=int(facts.get("model_size", 0)),
            model_n_params=int(facts.get("model_n_params", 0)),
            threads=llama.threads or default_threads(),
            default_threads=default_threads(),
        )

    def warm_up(self, case: Case) -> None:
        """Run what only happens once."""
        self.run(replace(case, n_gen=min(case.n_gen, WARM_TOKENS)))

    def run(self, case: Case) -> Sample:
        """Have a case run once.

        Raises:
            DriverError: the program ended or failed.
        """
        pipe = self._process.stdin
        order = {"n_prompt": case.n_prompt, "n_gen": case.n_gen, "n_depth": case.n_depth}
        try:
            if pipe is not None:
                pipe.write(json.dumps(order) + "\n")
                pipe.flush()
        except OSError as error:
            raise DriverError(f"{self.name} ended with exit code {self._process.wait()}") from error
        taken = self._answer().get("ns")
        if not isinstance(taken, int) or taken <= 0:
            raise DriverError(f"{self.name} measured {case.name} without a time")
        return Sample(taken, Traffic(workers=len(self.settings.llama.rpc), known=False))

    def _answer(self) -> Mapping[str, Any]:
        pipe = self._process.stdout
        line = pipe.readline() if pipe is not None else ""
        if not line:
            raise DriverError(f"{self.name} ended with exit code {self._process.wait()}")
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise DriverError(f"{self.name} said {line.strip()!r}, which is no JSON object") from error
        if not isinstance(answer, dict):
            raise DriverError(f"{self.name} said {line.strip()!r}, which is no JSON object")
        if "error" in answer:
            raise DriverError(f"{self.name}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the program."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what it was still to be told, it no longer hears
                    pipe.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Driver:  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _filled(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace("{" + name + "}", value)
    return word
