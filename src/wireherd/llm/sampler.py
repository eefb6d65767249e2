"""How the next token is chosen: llama.cpp's samplers in llama.cpp's order.

Penalties, top-k, top-p, min-p, temperature, then a draw with the seed; a temperature of zero or less takes the most
likely token after the penalties. All of it runs on this machine's CPU, where the same seed gives the same text.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from wireherd.errors import UsageError
from wireherd.ggml import sampler as native
from wireherd.llm.distribution import Distribution

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from numpy.typing import NDArray
    from typing_extensions import Self

    from wireherd.ggml.library import Library
    from wireherd.llm.session import LlmSession

#: seeds lie below it; the number itself stands for "draw one" in llama.cpp
SEED_LIMIT: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerSettings:
    """Settings under llama.cpp's names and with its defaults; a `seed` below zero draws one."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int = -1

    def check(self) -> None:
        """Refuse what makes no sense.

        Raises:
            UsageError: a value out of range.
        """
        for name in ("temperature", "top_p", "min_p", "repeat_penalty", "frequency_penalty", "presence_penalty"):
            if not math.isfinite(getattr(self, name)):
                raise UsageError(f"{name} must be a number, not {getattr(self, name)}")
        if self.repeat_penalty <= 0:
            raise UsageError(f"the repeat penalty must be above zero, not {self.repeat_penalty:g}")
        if not 0 <= self.min_p <= 1:
            raise UsageError(f"min-p must be between 0 and 1, not {self.min_p:g}")
        if self.seed > SEED_LIMIT:
            raise UsageError(f"the seed must be below {SEED_LIMIT}, not {self.seed}")

    @property
    def is_greedy(self) -> bool:
        """Whether no chance is involved."""
        return self.temperature <= 0

    @property
    def has_penalties(self) -> bool:
        """Whether earlier tokens have a say."""
        plain = self.repeat_penalty == 1.0 and self.frequency_penalty == 0.0 and self.presence_penalty == 0.0
        return self.repeat_last_n != 0 and not plain


def build(
    lib: Library, settings: SamplerSettings, *, seed: int, n_vocab: int, n_ctx: int, draw: bool = True
) -> native.Sampler:
    """Make the chain that the settings describe; the caller closes it. What is more than there can be counts as all.

    Without `draw` it ends before the random choice.
    """
    steps = []
    if settings.has_penalties:
        last_n = n_ctx if settings.repeat_last_n < 0 else min(settings.repeat_last_n, n_ctx)
        repeat, frequency, presence = settings.repeat_penalty, settings.frequency_penalty, settings.presence_penalty
        steps.append(native.penalties(lib, n_vocab, last_n, repeat, frequency, presence))
    if settings.is_greedy:
        steps.append(native.greedy(lib))
    else:
        steps += [
            native.top_k(lib, max(0, min(settings.top_k, n_vocab))),
            native.top_p(lib, settings.top_p),
            native.min_p(lib, settings.min_p),
            native.temp(lib, settings.temperature),
        ]
        if draw:
            steps.append(native.dist(lib, seed))
    return native.chain(lib, steps)


def draw_seed(settings: SamplerSettings) -> int:
    """Give the seed of the settings, or a random one if they have none."""
    return settings.seed if settings.seed >= 0 else secrets.randbelow(SEED_LIMIT)


class SessionSampler:
    """A sampler chain at work on a session's logits. Use as a context manager, or close it.

    Attributes:
        seed: the seed in use, drawn or given.
    """

    def __init__(
        self,
        session: LlmSession,
        settings: SamplerSettings,
        prompt: Sequence[int] = (),
        *,
        ignore_eos: bool = False,
        by_hand: bool = False,
        stream: int = 0,
    ) -> None:
        """Make the chain.

        Args:
            session: whose logits.
            settings: how to choose.
            prompt: what counts for penalties.
            ignore_eos: never choose a token that ends the answer.
            by_hand: draw here and not in llama.cpp, so that `distribution` can be asked for.
            stream: number of the independent stream of random numbers to draw from by hand.
        """
        settings.check()
        self.seed = draw_seed(settings)
        self.by_hand = by_hand and not settings.is_greedy
        self._session = session
        self._context = session.context
        last_n = settings.repeat_last_n if settings.repeat_last_n >= 0 else session.n_ctx
        #: how many tokens penalties look back on
        self._penalised = min(last_n, session.n_ctx) if settings.has_penalties else 0
        vocab = session.model.vocab
        self._forbidden = session.eog_tokens() if ignore_eos else []
        self._random = np.random.default_rng([self.seed, stream])
        self._chain = build(
            session.lib,
            settings,
            seed=self.seed,
            n_vocab=vocab.n_tokens,
            n_ctx=session.n_ctx,
            draw=not self.by_hand,
        )
        self.remember(prompt)

    def remember(self, tokens: Sequence[int]) -> None:
        """Let these tokens, and no others, be what penalties look at; llama.cpp's tools let the prompt count, too."""
        if self._penalised:
            self._chain.reset()
            for token in tokens[-self._penalised :]:
                self._chain.accept(token)

    def logits(self, index: int = -1) -> NDArray[np.float32]:
        """Logits f4[n_vocab] at a place of the last batch (-1: its last output), a view, without forbidden tokens.

        Raises:
            WorkerError: they did not arrive.
        """
        self._session.synchronize()
        logits = self._context.logits(index)
        if self._forbidden:
            logits[self._forbidden] = -math.inf
        return logits

    def sample(self, index: int = -1) -> int:
        """Choose a token from the logits at a place of the last batch (-1: its last output).

        Raises:
            WorkerError: the logits did not arrive.
        """
        if self.by_hand:
            return self.take(self.distribution(index).draw(self._random))
        if self._forbidden:
            self.logits(index)
        else:
            self._session.synchronize()
        return self._chain.sample(self._context, index)

    def distribution(self, index: int = -1) -> Distribution:
        """What the next token is drawn from; only for a sampler that draws `by_hand`."""
        return Distribution.of_logits(*self._chain.shape(self.logits(index)))

    def verify(self, token: int, drafted_from: Distribution, index: int) -> int:
        """Choose a token at a place of the last batch where another sampler drew `token`.

        Speculative sampling (Leviathan et al., arXiv 2211.17192): whatever the draft was drawn from, the choice has
        the distribution that `sample` has.
        """
        return self.take(self.distribution(index).accept(token, drafted_from, self._random))

    def take(self, token: int) -> int:
        """Let a token count for penalties that was drawn by hand; returns it."""
        if self._penalised:
            self._chain.accept(token)
        return token

    def draw(self, distribution: Distribution) -> int:
        """Draw a token by hand, with this sampler's random numbers."""
        return distribution.draw(self._random)

    def close(self) -> None:
        """Free the chain."""
        self._chain.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
