"""How the next token is chosen: llama.cpp's samplers in llama.cpp's order.

Penalties, top-k, top-p, min-p, temperature, then a draw with the seed; a temperature of zero or less takes the most
likely token after the penalties. All of it runs on this machine's CPU, where the same seed gives the same text.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from wireherd.errors import UsageError
from wireherd.ggml import sampler as native

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

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


def build(lib: Library, settings: SamplerSettings, *, seed: int, n_vocab: int, n_ctx: int) -> native.Sampler:
    """Make the chain that the settings describe; the caller closes it. What is more than there can be counts as all."""
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
            native.dist(lib, seed),
        ]
    return native.chain(lib, steps)


class SessionSampler:
    """A sampler chain at work on a session's logits. Use as a context manager, or close it.

    Attributes:
        seed: the seed in use, drawn or given.
    """

    def __init__(
        self, session: LlmSession, settings: SamplerSettings, prompt: Sequence[int], *, ignore_eos: bool
    ) -> None:
        settings.check()
        self.seed = settings.seed if settings.seed >= 0 else secrets.randbelow(SEED_LIMIT)
        self._session = session
        self._context = session.context
        vocab = session.model.vocab
        self._forbidden = session.eog_tokens() if ignore_eos else []
        self._chain = build(session.lib, settings, seed=self.seed, n_vocab=vocab.n_tokens, n_ctx=session.n_ctx)
        if settings.has_penalties:  # llama.cpp's tools let the prompt count, too
            for token in prompt[-session.n_ctx :]:
                self._chain.accept(token)

    def sample(self) -> int:
        """Choose a token from the logits of the last decode.

        Raises:
            WorkerError: the logits did not arrive.
        """
        self._session.synchronize()
        if self._forbidden:
            self._context.logits()[self._forbidden] = -math.inf
        return self._chain.sample(self._context)

    def close(self) -> None:
        """Free the chain."""
        self._chain.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
