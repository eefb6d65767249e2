"""A prompt in, pieces of text out: the loop of decode and sample, what ends it, and how long it took."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wireherd.errors import UsageError
from wireherd.llm.sampler import SamplerSettings, draw_seed
from wireherd.llm.speculative import OneByOne, Speculation
from wireherd.llm.stream import TextStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wireherd.llm.session import LlmSession
    from wireherd.llm.speculative import Rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions(SamplerSettings):
    """What one answer shall be like: how tokens are chosen (see `SamplerSettings`), and how many.

    Attributes:
        n_predict: most tokens to generate; below zero until the model ends or the context is full.
        stop: texts that end the answer; they are not part of it.
        ignore_eos: go on where the model would end.
        special: show control tokens in the text.
        reuse: keep what the context shares with the prompt from its start on, instead of decoding all of it.
        speculate: verify drafts where the session has a way to make them (`LlamaOptions.draft`).
    """

    n_predict: int = -1
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    special: bool = False
    reuse: bool = False
    speculate: bool = True


@dataclass(slots=True)
class Timings:
    """Durations under llama-server's names, in milliseconds; `cache_n` tokens of the prompt needed no work.

    `draft_n` tokens were drafted and verified, of which the answer took `draft_n_accepted`.
    """

    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0
    cache_n: int = 0
    draft_n: int = 0
    draft_n_accepted: int = 0

    @property
    def prompt_per_second(self) -> float:
        """Tokens of the prompt a second; 0 if there was nothing to measure."""
        return 1000.0 * self.prompt_n / self.prompt_ms if self.prompt_ms > 0 else 0.0

    @property
    def predicted_per_second(self) -> float:
        """Generated tokens a second; 0 if there was nothing to measure."""
        return 1000.0 * self.predicted_n / self.predicted_ms if self.predicted_ms > 0 else 0.0

    def figures(self) -> dict[str, int | float]:
        """Give tokens of the prompt and their rate, rate of generation, tokens drafted, and of these accepted."""
        return {
            "PN": self.prompt_n,
            "PP": self.prompt_per_second,
            "TG": self.predicted_per_second,
            "DN": self.draft_n,
            "DA": self.draft_n_accepted,
        }

    def to_dict(self) -> dict[str, int | float]:
        """Give all of llama-server's `timings` fields."""
        return {
            "cache_n": self.cache_n,
            "prompt_n": self.prompt_n,
            "prompt_ms": self.prompt_ms,
            "prompt_per_token_ms": self.prompt_ms / self.prompt_n if self.prompt_n else 0.0,
            "prompt_per_second": self.prompt_per_second,
            "predicted_n": self.predicted_n,
            "predicted_ms": self.predicted_ms,
            "predicted_per_token_ms": self.predicted_ms / self.predicted_n if self.predicted_n else 0.0,
            "predicted_per_second": self.predicted_per_second,
            "draft_n": self.draft_n,
            "draft_n_accepted": self.draft_n_accepted,
        }


@dataclass(slots=True)
class Result:
    """What came out, and grows while it comes.

    Attributes:
        tokens: ids as sampled, without the one that ended the answer.
        text: the same as text, cut before a stop string.
        stop: why it ended: "eos", "stop" (a stop string), "length" (`n_predict`), "context" (full), "" (still running).
        timings: durations.
        seed: the seed that was used.
    """

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    stop: str = ""
    timings: Timings = field(default_factory=Timings)
    seed: int = 0


class Generation:
    """One answer: iterate over it for pieces of text; `result` is complete when the iteration ends.

    An iteration that is left early leaves a usable session, and the next one is a new answer with a new `result`.
    Errors are those of `LlmSession.decode`.
    """

    def __init__(
        self,
        session: LlmSession,
        prompt: Sequence[int],
        options: GenerateOptions,
        on_token: Callable[[int], None] | None = None,
    ) -> None:
        """`on_token` hears each id as soon as it is sampled."""
        self.result = Result()
        self._session = session
        self._prompt = list(prompt)
        self._options = options
        self._on_token = on_token

    def __iter__(self) -> Iterator[str]:
        session, options = self._session, self._options
        result = self.result = Result()
        if not self._prompt:
            raise UsageError("the prompt is empty: there is nothing to continue")
        if len(self._prompt) >= session.n_ctx:
            raise UsageError(
                f"the prompt has {len(self._prompt)} tokens and the context holds {session.n_ctx}: raise -c"
            )
        options.check()
        timings = result.timings
        started = time.perf_counter()
        timings.cache_n = session.rewind(self._prompt) if options.reuse else session.reset()
        fresh = self._prompt[timings.cache_n :]
        drafter = session.drafter if options.speculate else None
        result.seed = draw_seed(options)
        session.decode(fresh)
        if drafter is not None:
            drafter.start(self._prompt, options, result.seed)  # workers are busy with the prompt meanwhile
        with session.sampler(
            replace(options, seed=result.seed),
            self._prompt,
            ignore_eos=options.ignore_eos,
            by_hand=drafter is not None and drafter.draws,
        ) as sampler:
            rounds: Rounds = OneByOne(session, sampler)
            if drafter is not None:
                rounds = Speculation(session, drafter, sampler, timings, ignore_eos=options.ignore_eos)
            session.synchronize()
            timings.prompt_n = len(fresh)
            now = time.perf_counter()
            timings.prompt_ms = 1000.0 * (now - started)
            stream = TextStream(options.stop)
            began = now
            text = list(self._prompt)
            coming: list[int] = []
            while not result.stop:
                if 0 <= options.n_predict <= len(result.tokens):
                    result.stop = "length"
                    break
                if not result.tokens:
                    coming = [sampler.sample()]
                elif not coming:
                    if session.n_past >= session.n_ctx:
                        result.stop = "context"
                        break
                    most = options.n_predict if options.n_predict >= 0 else len(result.tokens) + session.n_ctx
                    coming = rounds.next(text, most - len(result.tokens))
                token = coming.pop(0)
                text.append(token)
                if session.is_eog(token) and not options.ignore_eos:
                    result.stop = "eos"
                    break
                result.tokens.append(token)
                timings.predicted_n = len(result.tokens)
                timings.predicted_ms = 1000.0 * (time.perf_counter() - began)
                if self._on_token:
                    self._on_token(token)
                piece = stream.feed(session.piece(token, special=options.special))
                if stream.stopped:
                    result.stop = "stop"
                if piece:
                    result.text += piece
                    yield piece
            if rest := stream.finish():
                result.text += rest
                yield rest
            timings.predicted_ms = 1000.0 * (time.perf_counter() - began)

    def run(self) -> Result:
        """Go to the end and return the result."""
        for _ in self:
            pass
        return self.result
