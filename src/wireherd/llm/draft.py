"""Drafts by a small model beside the target: another GGUF with the same vocabulary, here or on workers.

It has a context and, on workers, connections of its own: what the target does never waits for it on a worker, and its
graphs never push the target's out of a cache.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wireherd.errors import UsageError, WorkerError
from wireherd.llm.drafter import Draft
from wireherd.obs.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from wireherd.ggml.llama import Vocab
    from wireherd.llm.draft_options import DraftOptions
    from wireherd.llm.generate import GenerateOptions
    from wireherd.llm.options import LlamaOptions
    from wireherd.llm.sampler import SessionSampler
    from wireherd.llm.session import LlmSession

_log = get_logger(__name__)

#: `SPEC_VOCAB_MAX_SIZE_DIFFERENCE` of llama.cpp (common/speculative.cpp): tables are padded, more than that is another
_MOST_APART: Final = 128
#: `SPEC_VOCAB_CHECK_START_TOKEN_ID`: the first few are control tokens, whose names differ from release to release
_FIRST_COMPARED: Final = 5
#: names of `enum llama_vocab_type`
_KINDS: Final = {0: "none", 1: "SPM", 2: "BPE", 3: "WPM", 4: "UGM", 5: "RWKV", 6: "PLAMO2"}
#: a batch of another size would make libllama build a new graph, which a worker must be sent; so few go one by one
_ONE_BY_ONE: Final = 3


def same_vocabulary(target: Vocab, draft: Vocab) -> str:
    """Compare two vocabularies as llama.cpp does; returns in which way they differ, "" if a draft can be used.

    They must be of one kind, handle start and end alike, be of nearly one size, and spell every token alike.
    """
    if target.type != draft.type:
        kinds = [_KINDS.get(vocab.type, str(vocab.type)) for vocab in (draft, target)]
        return f"its tokeniser is {kinds[0]}, not {kinds[1]}"
    for what, name in (("start", "bos"), ("end", "eos")):
        theirs, ours = (getattr(vocab, f"add_{name}") for vocab in (draft, target))
        if theirs != ours:
            return f"it puts {'a' if theirs else 'no'} {what} token around a text"
        theirs, ours = (getattr(vocab, name) for vocab in (draft, target))
        if getattr(target, f"add_{name}") and theirs != ours:
            return f"its {what} token is {theirs}, not {ours}"
    if abs(target.n_tokens - draft.n_tokens) > _MOST_APART:
        return f"it has {draft.n_tokens} tokens, not {target.n_tokens}"
    for token in range(_FIRST_COMPARED, min(target.n_tokens, draft.n_tokens)):
        if target.text(token) != draft.text(token):
            spelt = draft.text(token).decode("utf-8", "replace"), target.text(token).decode("utf-8", "replace")
            return f"its token {token} is {spelt[0]!r}, not {spelt[1]!r}"
    return ""


def draft_llama_options(target: LlamaOptions, draft: DraftOptions, n_ctx: int) -> LlamaOptions:
    """Options for the draft model: the target's, as far as they are not about where its layers go."""
    nowhere = target.devices is not None and set(target.devices) <= {"none"}
    return replace(
        target,
        model=draft.path,
        rpc=tuple(draft.rpc),
        devices=() if nowhere and not draft.rpc else None,
        n_gpu_layers=draft.n_gpu_layers,
        split_mode="layer",
        main_gpu=0,
        tensor_split=None,
        tensor_overrides=(),
        cpu_moe=False,
        n_cpu_moe=0,
        n_ctx=n_ctx,
        swa_full=True,  # it goes back after every draft, and a sliding window has forgotten what lies there
        draft=None,
    )


class DraftModel:
    """A draft model at work. See `Drafter` for its methods."""

    def __init__(self, session: LlmSession, target: LlmSession, options: DraftOptions) -> None:
        """Take over an open session, and close it from now on.

        Raises:
            UsageError: the vocabularies differ, or the draft model cannot go back.
        """
        self.draws = False
        self.failed = False
        self._session = session
        self._options = options
        self._n_target = target.model.vocab.n_tokens
        self._sampler: SessionSampler | None = None
        self._known = 0
        try:
            name, whose = session.options.path.name, target.options.path.name
            difference = same_vocabulary(target.model.vocab, session.model.vocab)
            if difference:
                raise UsageError(f"{name} cannot draft for {whose}, whose vocabulary it does not share: {difference}")
            if session.model.is_recurrent:
                raise UsageError(f"{name} cannot draft: it keeps a state that cannot be taken back after a wrong draft")
        except BaseException:
            self.close()
            raise

    def start(self, prompt: Sequence[int], options: GenerateOptions, seed: int) -> None:
        """Begin a new text: read its prompt, keeping what is known of it.

        With chance in the target's sampler the drafts are drawn, too, from the draft model under the same settings.
        With `n_min` they are its best guesses: to drop a short draft because of what was drawn would not be fair.
        """
        if self.failed:
            return
        self._finish()
        self.draws = not options.is_greedy and self._options.n_min == 0
        self._sampler = self._session.sampler(
            replace(options, seed=seed), prompt, ignore_eos=options.ignore_eos, by_hand=True, stream=1
        )
        self._attempt(lambda: self._read(prompt))

    def _read(self, text: Sequence[int]) -> None:
        """Bring the context to a text: drop what is not of it, decode what is missing."""
        session = self._session
        missing = text[session.rewind(text, known=self._known) :]
        self._known = len(text)
        if len(missing) <= _ONE_BY_ONE and session.cluster is not None:
            for token in missing:
                session.decode([token])
        else:
            session.decode(missing)

    def propose(self, text: Sequence[int], most: int) -> Draft:
        """Draft until the model is no longer sure, or ends the text."""
        draft = Draft()
        most = min(most, self._options.n_max, self._session.n_ctx - len(text)) if not self.failed else 0
        if most < max(1, self._options.n_min):
            return draft
        self._attempt(lambda: self._guess(text, most, draft))
        return draft if len(draft.tokens) >= self._options.n_min and not self.failed else Draft()

    def _guess(self, text: Sequence[int], most: int, draft: Draft) -> None:
        sampler, session = self._sampler, self._session
        if sampler is None:
            return
        self._read(text)
        sampler.remember(text)
        while True:
            logits = sampler.logits()
            logits[self._n_target :] = -np.inf
            if _best(logits) < self._options.p_min:
                return
            if self.draws:
                draft.drawn_from.append(sampler.distribution())
                token = sampler.take(sampler.draw(draft.drawn_from[-1]))
            else:
                token = int(logits.argmax())
            draft.tokens.append(token)
            if len(draft.tokens) == most or session.is_eog(token):
                return
            session.decode([token])

    def _attempt(self, work: Callable[[], None]) -> None:
        """Run what may meet a dead worker: the target can go on without drafts."""
        try:
            work()
        except WorkerError as error:
            self.failed = True
            _log.warning("going on without drafts: %s", error)

    def verified(self, drafted: int, accepted: int) -> None:
        """Nothing to learn: what was wrong is dropped with the next text."""

    def abort(self) -> None:
        """Stop what runs, from any thread."""
        self._session.abort()

    def cancel(self) -> None:
        """Stop what runs here and on workers, from any thread."""
        self._session.cancel()

    def workers(self) -> list[dict[str, Any]]:
        """What went to each of the draft model's workers."""
        return self._session.workers()

    def _finish(self) -> None:
        self._known = 0
        if self._sampler is not None:
            self._sampler.close()
            self._sampler = None

    def close(self) -> None:
        """Free the draft model and end its connections."""
        self._finish()
        self._session.close()


def _best(logits: NDArray[np.float32]) -> float:
    """Probability of the likeliest token."""
    return float(1.0 / np.exp(logits - logits.max()).sum())
