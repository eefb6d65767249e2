"""Runs a tg case behind a real text, greedily, with drafts or without: for speculative decoding.

Drafts live on what the text repeats, so random tokens would measure nothing. The prompt is the same in every run and is
not timed; the answer goes on to the length asked for, whatever the model would say, so that every run does the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wireherd.bench.runner import Sample
from wireherd.bench.textgen import run_text
from wireherd.bench.traffic import Traffic
from wireherd.errors import UsageError

if TYPE_CHECKING:
    from wireherd.bench.cases import BenchSettings, Case
    from wireherd.bench.result import Setup
    from wireherd.bench.runner import Runner


class TextRunner:
    """Measures through a runner's session; both sides of `--compare draft=off,on` share one."""

    def __init__(self, runner: Runner, prompt: str, speculate: bool) -> None:
        """Set what to generate behind, and whether with drafts.

        Raises:
            UsageError: a case asks for more than generated tokens.
        """
        self.settings: BenchSettings = runner.settings
        if any(case.n_prompt or case.n_depth for case in self.settings.cases()):
            raise UsageError("drafts are measured on generated tokens behind a text: give -p 0, and no -pg and -d")
        self._runner = runner
        self._prompt = runner.session.tokenize(prompt)
        self._speculate = speculate

    def setup(self) -> Setup:
        """What is measured on."""
        return self._runner.setup()

    def warm_up(self, case: Case) -> None:
        """The whole case: drafts have graphs of many shapes."""
        self.run(case)

    def run(self, case: Case) -> Sample:
        """Generate once; the time is that from the first token on.

        Raises:
            WorkerError, GgmlFailed: see `LlmSession.decode`.
        """
        session = self._runner.session
        before: list[Traffic] = []

        def on_token(_: int) -> None:
            if not before:
                before.append(Traffic.of(session.workers()))

        figures = run_text(session, self._prompt, case.n_gen, speculate=self._speculate, on_token=on_token)
        if not before or not figures.predicted_n:
            raise UsageError(f"{case.name} generated nothing")
        traffic = Traffic.of(session.workers()) - before[0]
        taken = figures.predicted_ns * case.n_gen / figures.predicted_n
        return Sample(round(taken), traffic, figures.figures())
