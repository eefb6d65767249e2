"""Drafts without a model: what followed the last few tokens when they stood in the text before.

Prompt lookup (Saxena 2023) with the thresholds of llama.cpp's `common/ngram-cache.cpp`: code, quotes and lists repeat
themselves, and then the next tokens stand there already. It costs nothing but the verification, so a draft ends where
the text went on in different ways, and drafts get shorter where they fail and longer where they hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from wireherd.llm.drafter import Draft

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wireherd.llm.draft_options import DraftOptions
    from wireherd.llm.generate import GenerateOptions

#: how short drafts get that fail
_SHORTEST: Final = 2
#: n-grams below this length are coincidence unless they went on in the same way twice (`draft_min_sample_size_lax`)
_TELLING: Final = 3
#: a follower that was met once, or how often each of several was met
_Followers: TypeAlias = "int | dict[int, int]"


class Lookup:
    """Finds drafts in the prompt and in what was generated. See `Drafter` for its methods."""

    #: its drafts are found, not drawn
    draws = False
    failed = False

    def __init__(self, options: DraftOptions) -> None:
        self._options = options
        self._lengths = range(options.ngram_max, options.ngram_min - 1, -1)
        self._follows: list[dict[tuple[int, ...], _Followers]] = []
        self._learnt = 0
        self._limit = options.n_max
        self._forget()

    def _forget(self) -> None:
        #: for each length, n-gram → what followed it
        self._follows = [{} for _ in self._lengths]
        self._learnt = 0
        self._limit = self._options.n_max

    def start(self, prompt: Sequence[int], options: GenerateOptions, seed: int) -> None:
        """Begin a new text."""
        del options, seed
        self._forget()
        self._learn(prompt)

    def propose(self, text: Sequence[int], most: int) -> Draft:
        """Draft what followed the longest known n-gram that the text, and then the draft, ends with."""
        self._learn(text)
        window = list(text[-self._lengths[0] :])
        draft: list[int] = []
        while len(draft) < min(most, self._limit):
            token = self._follower(window)
            if token is None:
                break
            draft.append(token)
            window.append(token)
        return Draft(draft if len(draft) >= self._options.n_min else [])

    def _follower(self, window: Sequence[int]) -> int | None:
        for length, follows in zip(self._lengths, self._follows, strict=True):
            if length > len(window):
                continue
            known = follows.get(tuple(window[len(window) - length :]))
            if isinstance(known, int):
                if length >= _TELLING:
                    return known
            elif known is not None:
                token = max(known, key=known.__getitem__)
                count, total = known[token], sum(known.values())
                return token if count >= self._options.p_min * total else None
        return None

    def _learn(self, text: Sequence[int]) -> None:
        """Index all n-grams that have a follower and are not known yet."""
        for end in range(self._learnt + 1, len(text)):
            token = text[end]
            for length, follows in zip(self._lengths, self._follows, strict=True):
                if length > end:
                    continue
                key = tuple(text[end - length : end])
                known = follows.get(key)
                if known is None:
                    follows[key] = token
                elif isinstance(known, int):
                    follows[key] = {known: 2} if known == token else {known: 1, token: 1}
                else:
                    known[token] = known.get(token, 0) + 1
        self._learnt = max(self._learnt, len(text) - 1)

    def verified(self, drafted: int, accepted: int) -> None:
        """Draft more after a draft that was right as a whole, less after one that was mostly wrong."""
        if accepted == drafted:
            self._limit = min(self._limit * 2, self._options.n_max)
        elif 2 * accepted < drafted:
            self._limit = max(min(_SHORTEST, self._options.n_max), self._limit // 2)

    def abort(self) -> None:
        """Nothing runs."""

    def cancel(self) -> None:
        """Nothing runs."""

    def workers(self) -> list[dict[str, Any]]:
        """No worker takes part."""
        return []

    def close(self) -> None:
        """Nothing to free."""
