"""Runs the cases: random tokens through a loaded session, timed around decode and synchronise only.

As llama-bench does it (`test_prompt`, `test_gen`): a prompt goes through in batches with the logits of its last token,
generated tokens go through one by one, each waited for; what they are does not matter, so they are random.
"""

from __future__ import annotations

import random
import time
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from wireherd.bench import stats
from wireherd.bench.result import Result, Setup
from wireherd.bench.traffic import Traffic
from wireherd.llm.options import default_threads
from wireherd.llm.session import LlmSession

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from wireherd.bench.cases import BenchSettings, Case
    from wireherd.llm.fetch import Progress

_SEED: Final = 1
#: a graph may be kept at its second sight, and its buffers are two in turn
WARM_TOKENS: Final = 4
#: tokens that a vocabulary adds to a text
_SPECIAL: Final = 8


class Sample(NamedTuple):
    """One run of a case: its time, what went over the wire meanwhile, and the figures of a text, if it was one."""

    ns: int
    traffic: Traffic
    text: Mapping[str, int | float] = {}


def now() -> str:
    """When a case began, as llama-bench writes it."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def result(case: Case, samples: Sequence[Sample], began: str) -> Result:
    """Put runs of a case together."""
    traffic = sum((sample.traffic for sample in samples), Traffic())
    text = {name: stats.mean([sample.text[name] for sample in samples]) for name in samples[0].text}
    return Result(case, tuple(sample.ns for sample in samples), began, traffic, text)


class Measured(Protocol):
    """Something that runs cases."""

    @property
    def settings(self) -> BenchSettings:
        """What to measure."""

    def setup(self) -> Setup:
        """What it measures on."""

    def warm_up(self, case: Case) -> None:
        """Run what only happens once."""

    def run(self, case: Case) -> Sample:
        """Run a case once."""


def measure(measured: Measured, tell: Callable[[str], object] = lambda _: None) -> Iterator[Result]:
    """Run all cases, one after the other.

    Args:
        measured: what runs them.
        tell: called with a line about each run before it begins.

    Raises:
        WorkerError: a worker failed.
        GgmlFailed: this machine failed.
    """
    settings = measured.settings
    cases = settings.cases()
    for number, case in enumerate(cases, 1):
        if number > 1:
            time.sleep(settings.delay_s)
        label = f"test {number}/{len(cases)}, {case.name}"
        if settings.warm_up:
            tell(f"{label}: warm-up")
            measured.warm_up(case)
        began = now()
        samples = []
        for repetition in range(1, settings.repetitions + 1):
            tell(f"{label}: run {repetition}/{settings.repetitions}")
            samples.append(measured.run(case))
        yield result(case, samples, began)


class Runner:
    """A loaded model and the cases to run on it. Use it as a context manager, or `close` it."""

    def __init__(self, settings: BenchSettings, progress: Progress | None = None, text: str = "") -> None:
        """Connect and load.

        Args:
            settings: what to measure.
            progress: told of the loading.
            text: room for this text is made in the context, too.

        Raises:
            UsageError, ModelError, WorkerError, NativeError: see `LlmSession.open`.
        """
        settings.check()
        self.settings = settings
        llama = settings.fitted()
        if text:  # no token is shorter than a byte; a draft may reach beyond the end
            spare = llama.draft.n_max if llama.draft else 0
            llama = replace(llama, n_ctx=llama.n_ctx + len(text.encode()) + spare + _SPECIAL)
        self.session = LlmSession.open(llama, progress)
        self._random = random.Random(_SEED)  # noqa: S311 - which tokens are measured is no secret

    def setup(self) -> Setup:
        """What is measured on."""
        session, model = self.session, self.session.model
        return Setup(
            build=session.lib.build,
            cpu=session.lib.cpu_device().description,
            backend=",".join(dict.fromkeys(self._backends())) or "CPU",
            model_type=model.desc,
            model_size=model.size,
            model_n_params=model.n_params,
            threads=self.settings.llama.threads or default_threads(),
            default_threads=default_threads(),
        )

    def _backends(self) -> Iterator[str]:
        """What takes part: RPC for workers, else the kinds of this machine's devices."""
        if self.settings.llama.rpc:
            yield "RPC"
        else:
            yield from (share.device.name.rstrip("0123456789") for share in self.session.plan)

    def warm_up(self, case: Case) -> None:
        """Run what only happens once: a whole prompt, as its graphs are built by size; few tokens, which are alike."""
        self.run(replace(case, n_gen=min(case.n_gen, WARM_TOKENS)))

    def run(self, case: Case) -> Sample:
        """Run a case once on a context filled to its depth, which is neither timed nor counted."""
        session = self.session
        session.reset()
        if case.n_depth:
            session.decode(self.tokens(case.n_depth))
        session.synchronize()
        prompt, generated = self.tokens(case.n_prompt), self.tokens(case.n_gen)
        before = Traffic.of(session.workers())
        start = time.perf_counter_ns()
        if prompt:
            session.decode(prompt)
            session.synchronize()
        for token in generated:
            session.decode([token])
            session.synchronize()
        taken = time.perf_counter_ns() - start
        return Sample(taken, Traffic.of(session.workers()) - before)

    def tokens(self, count: int) -> list[int]:
        """Random tokens, the model's start token first where it wants one."""
        vocab = self.session.model.vocab
        tokens = [self._random.randrange(vocab.n_tokens) for _ in range(count)]
        if tokens and vocab.bos >= 0:
            tokens[0] = vocab.bos
        return tokens

    def close(self) -> None:
        """Free the model and end the connections."""
        self.session.close()

    def __enter__(self) -> Runner:  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
