"""What makes drafts: the interface that the loop of speculative decoding knows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wireherd.llm.distribution import Distribution
    from wireherd.llm.generate import GenerateOptions


@dataclass(slots=True)
class Draft:
    """Tokens that may come next, and what each was drawn from; nothing for a draft without chance."""

    tokens: list[int] = field(default_factory=list)
    drawn_from: list[Distribution] = field(default_factory=list)


class Drafter(Protocol):
    """Makes drafts of one text at a time.

    Attributes:
        draws: whether the drafts of the text begun last are random.
        failed: whether it makes drafts no more.
    """

    draws: bool
    failed: bool

    def start(self, prompt: Sequence[int], options: GenerateOptions, seed: int) -> None:
        """Begin a new text with a prompt, of which drafts know nothing else than this."""

    def propose(self, text: Sequence[int], most: int) -> Draft:
        """Draft up to `most` tokens behind a text: the one begun last, which has only grown since then.

        When to end a draft that is random must not depend on its last token, or the output would no longer be
        distributed as the target model's.
        """

    def verified(self, drafted: int, accepted: int) -> None:
        """Hear how many tokens of the last draft were verified, and how many of them were right."""

    def abort(self) -> None:
        """Stop what runs, from any thread."""

    def cancel(self) -> None:
        """Stop what runs here and on workers, from any thread; afterwards it can only be closed."""

    def workers(self) -> list[dict[str, Any]]:
        """What went to each worker that drafts."""

    def close(self) -> None:
        """Free everything; may be called again."""
