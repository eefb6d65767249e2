"""Runs the cases: random tokens through a loaded session, timed around decode and synchronise only.

As llama-bench does it (`test_prompt`, `test_gen`): a prompt goes through in batches with the logits of its last token,
generated tokens go through one by one, each waited for; what they are does not matter, so they are random.
"""

from __future__ import annotations

import random
import time
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from wireherd.bench.report import Result, Setup
from wireherd.llm.options import default_threads
from wireherd.llm.session import LlmSession

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wireherd.bench.cases import BenchSettings, Case
    from wireherd.llm.fetch import Progress

_SEED: Final = 1


class Runner:
    """A loaded model and the cases to run on it. Use it as a context manager, or `close` it."""

    def __init__(self, settings: BenchSettings, progress: Progress | None = None) -> None:
        """Connect and load.

        Raises:
            UsageError, ModelError, WorkerError, NativeError: see `LlmSession.open`.
        """
        settings.check()
        self.settings = settings
        self.session = LlmSession.open(settings.fitted(), progress)
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

    def results(self, tell: Callable[[str], object] = lambda _: None) -> Iterator[Result]:
        """Run all cases, one after the other.

        Args:
            tell: called with a line about each run before it begins.

        Raises:
            WorkerError: a worker failed.
            GgmlFailed: this machine failed.
        """
        cases = self.settings.cases()
        for number, case in enumerate(cases, 1):
            if number > 1:
                time.sleep(self.settings.delay_s)
            label = f"test {number}/{len(cases)}, {case.name}"
            if self.settings.warm_up:
                tell(f"{label}: warm-up")
                # a whole prompt, as its graphs are built by size; one token, as all after it are alike
                self.run(replace(case, n_gen=min(case.n_gen, 1)))
            began = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
            samples = []
            for repetition in range(1, self.settings.repetitions + 1):
                tell(f"{label}: run {repetition}/{self.settings.repetitions}")
                samples.append(self.run(case))
            yield Result(case, tuple(samples), began)

    def run(self, case: Case) -> int:
        """Run a case once on a context filled to its depth, which takes no part in the nanoseconds returned."""
        session = self.session
        session.reset()
        if case.n_depth:
            session.decode(self.tokens(case.n_depth))
        session.synchronize()
        prompt, generated = self.tokens(case.n_prompt), self.tokens(case.n_gen)
        start = time.perf_counter_ns()
        if prompt:
            session.decode(prompt)
            session.synchronize()
        for token in generated:
            session.decode([token])
            session.synchronize()
        return time.perf_counter_ns() - start

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
