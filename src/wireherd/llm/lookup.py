"""Drafts without a model: what followed the last few tokens when they stood in the text before.

Prompt lookup (Saxena 2023; `examples/lookup` of llama.cpp): code, quotes and lists repeat themselves, and then the
next tokens stand there already. It costs nothing but the verification, so drafts get shorter where they fail and
longer where they hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from wireherd.llm.drafter import Draft

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wireherd.llm.draft_options import DraftOptions
    from wireherd.llm.generate import GenerateOptions

_SHORTEST: Final = 2


class Lookup:
    """Finds drafts in the prompt and in what was generated. See `Drafter` for its methods."""

    #: its drafts are found, not drawn
    draws = False
    failed = False

    def __init__(self, options: DraftOptions) -> None:
        self._options = options
        self._lengths = range(options.ngram_max, options.ngram_min - 1, -1)
        self._follows: list[dict[tuple[int, ...], int]] = []
        self._learnt = 0
        self._limit = options.n_max
        self._forget()

    def _forget(self) -> None:
        #: for each length, n-gram → where the text goes on behind its latest occurrence
        self._follows = [{} for _ in self._lengths]
        self._learnt = 0
        self._limit = self._options.n_max

    def start(self, prompt: Sequence[int], options: GenerateOptions, seed: int) -> None:
        """Begin a new text."""
        del options, seed
        self._forget()
        self._learn(prompt)

    def propose(self, text: Sequence[int], most: int) -> Draft:
        """Draft what followed the longest n-gram that the text ends with, where it was last."""
        self._learn(text)
        found: list[int] = []
        most = min(most, self._limit)
        for length, follows in zip(self._lengths, self._follows, strict=True):
            if length > len(text):
                continue
            place = follows.get(tuple(text[len(text) - length :]))
            if place is not None:
                for index in range(place, place + most):  # beyond its end the text goes on with the draft
                    found.append(text[index] if index < len(text) else found[index - len(text)])
                break
        return Draft(found if len(found) >= self._options.n_min else [])

    def _learn(self, text: Sequence[int]) -> None:
        """Index all n-grams that have a follower and are not known yet."""
        for end in range(self._learnt + 1, len(text)):
            for length, follows in zip(self._lengths, self._follows, strict=True):
                if length <= end:
                    follows[tuple(text[end - length : end])] = end
        self._learnt = max(self._learnt, len(text) - 1)

    def verified(self, drafted: int, accepted: int) -> None:
        """Draft more after a draft that was right as a whole, less after one that was mostly wrong."""
        if accepted == drafted:
            self._limit = min(self._limit * 2, self._options.n_max)
        elif 2 * accepted < drafted:
            self._limit = max(min(_SHORTEST, self._options.n_max), self._limit // 2)

    def abort(self) -> None:
        """Nothing runs."""

    def workers(self) -> list[dict[str, Any]]:
        """No worker takes part."""
        return []

    def close(self) -> None:
        """Nothing to free."""
