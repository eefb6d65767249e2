"""Speculative decoding: tokens that were drafted cheaply are verified by the target model, several in one batch.

A round: the drafter proposes tokens behind the text, the target decodes the text's last token and all of them at once
(one round trip where single tokens would have cost one each), the sampler decides token by token, and what was wrong is
taken back from the context. Each round gives at least one token: the one that the target puts in place of a wrong one,
or behind a draft that was right.

The output is distributed as that of the target alone. A draft without chance (a model's best guess, an n-gram found in
the text) is compared with what the target's own sampler chooses, which is the very same choice as without a draft.
A draft that was drawn is kept or replaced by `SessionSampler.verify`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from wireherd.errors import UsageError
from wireherd.llm.draft import DraftModel, draft_llama_options
from wireherd.llm.drafter import Draft
from wireherd.llm.lookup import Lookup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wireherd.llm.drafter import Drafter
    from wireherd.llm.fetch import Progress
    from wireherd.llm.generate import Timings
    from wireherd.llm.options import LlamaOptions
    from wireherd.llm.sampler import SessionSampler
    from wireherd.llm.session import LlmSession


def make_drafter(
    target: LlmSession, opener: Callable[[LlamaOptions, Progress | None], LlmSession], progress: Progress
) -> Drafter | None:
    """Make what the target's options ask for; None if there shall be no drafts.

    Args:
        target: A session that is loaded.
        opener: Opens another one (`LlmSession.open`).
        progress: Told of a draft model's loading.

    Raises:
        UsageError: the draft model does not go with the target, or one of them cannot go back.
        ModelError, WorkerError, NativeError: see `LlmSession.open`.
    """
    options = target.options.draft
    if options is None:
        return None
    if target.model.is_recurrent:
        raise UsageError(
            f"{target.options.path.name} keeps a state that cannot be taken back after a wrong draft: "
            "leave out -md and --lookup"
        )
    if options.lookup:
        return Lookup(options)
    wanted = draft_llama_options(target.options, options, target.n_ctx)
    return DraftModel(opener(wanted, progress), target, options)


class Rounds(Protocol):
    """Continues a text, some tokens at a time."""

    def next(self, text: Sequence[int], most: int) -> list[int]:
        """Decode the last token of a text and choose what follows it.

        Args:
            text: all tokens so far; all but the last are in the context.
            most: how many tokens may be chosen, at least 1.

        Returns:
            1 to `most` tokens, of which all but the last are in the context then. One that ends the answer is the last.

        Raises:
            UsageError: the context is full.
            WorkerError, Cancelled, GgmlFailed: see `LlmSession.decode`.
        """


class OneByOne:
    """Without drafts: one token a round."""

    def __init__(self, session: LlmSession, sampler: SessionSampler) -> None:
        self._session = session
        self._sampler = sampler

    def next(self, text: Sequence[int], most: int) -> list[int]:
        """Decode and choose one token."""
        del most
        self._session.decode(text[-1:])
        return [self._sampler.sample()]


class Speculation:
    """Speculative decoding of one text, on which a drafter was started. It counts what was drafted in `timings`."""

    def __init__(
        self, session: LlmSession, drafter: Drafter, sampler: SessionSampler, timings: Timings, *, ignore_eos: bool
    ) -> None:
        self._session = session
        self._drafter = drafter
        self._sampler = sampler
        self._timings = timings
        self._ignore_eos = ignore_eos

    def next(self, text: Sequence[int], most: int) -> list[int]:
        """Decode the last token of a text with a draft behind it, and choose."""
        session = self._session
        room = min(session.n_ctx - session.n_past, session.context.n_batch, session.context.n_ubatch)
        draft = self._drafter.propose(text, min(most, room) - 1) if min(most, room) > 1 else Draft()
        batch = [text[-1], *draft.tokens]
        session.decode(batch, outputs="all")
        chosen = self._verify(draft)
        session.take_back(len(batch) - len(chosen))
        if draft.tokens:
            # each chosen token but the last was drafted, and the last too if the answer ends with it
            accepted = sum(mine == theirs for mine, theirs in zip(chosen, draft.tokens, strict=False))
            self._timings.draft_n += len(draft.tokens)
            self._timings.draft_n_accepted += accepted
            self._drafter.verified(len(draft.tokens), accepted)
        return chosen

    def _verify(self, draft: Draft) -> list[int]:
        """Choose tokens from the logits of the batch until one differs from the draft."""
        chosen: list[int] = []
        while True:
            place = len(chosen)
            if place < len(draft.drawn_from):
                token = self._sampler.verify(draft.tokens[place], draft.drawn_from[place], place)
            else:
                token = self._sampler.sample(place)
            chosen.append(token)
            if place == len(draft.tokens) or token != draft.tokens[place]:
                return chosen
            if self._session.is_eog(token) and not self._ignore_eos:
                return chosen
