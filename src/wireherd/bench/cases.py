"""What a bench run measures: prompt processing (pp) and token generation (tg), with the settings they share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from wireherd.errors import UsageError

if TYPE_CHECKING:
    from wireherd.llm.options import LlamaOptions

DEFAULT_PROMPT: Final = 512
DEFAULT_GENERATED: Final = 128
DEFAULT_REPETITIONS: Final = 5


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table: a prompt of `n_prompt` tokens, or `n_gen` tokens one by one; the other is 0."""

    n_prompt: int = 0
    n_gen: int = 0

    @property
    def name(self) -> str:
        """llama-bench's name of the test: pp512, tg128."""
        return f"pp{self.n_prompt}" if self.n_prompt else f"tg{self.n_gen}"

    @property
    def tokens(self) -> int:
        """Tokens that pass through the model in one repetition."""
        return self.n_prompt + self.n_gen


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """What a run measures; defaults are llama-bench's.

    Attributes:
        llama: what to load, where, and how to run it; its context is made to fit the longest case.
        prompts: prompt lengths, one pp case each.
        generated: lengths, one tg case each.
        repetitions: measured runs of each case, after the one that warms up.
        warm_up: run each case once before it is measured.
    """

    llama: LlamaOptions
    prompts: tuple[int, ...] = (DEFAULT_PROMPT,)
    generated: tuple[int, ...] = (DEFAULT_GENERATED,)
    repetitions: int = DEFAULT_REPETITIONS
    warm_up: bool = True

    def check(self) -> None:
        """Refuse what cannot be measured.

        Raises:
            UsageError: no repetition, or nothing to measure.
        """
        if self.repetitions < 1:
            raise UsageError(f"-r must be at least 1, not {self.repetitions}")
        if not self.cases():
            raise UsageError("there is nothing to measure: give -p or -n a number above zero")

    def cases(self) -> list[Case]:
        """All cases in llama-bench's order: first the prompts, then the generations; zeros are left out."""
        return [Case(n_prompt=n) for n in self.prompts if n] + [Case(n_gen=n) for n in self.generated if n]

    def fitted(self) -> LlamaOptions:
        """The options with a context that holds the longest case."""
        return replace(self.llama, n_ctx=max(case.tokens for case in self.cases()))


def counts(text: str) -> tuple[int, ...]:
    """Parse a comma list of token counts; 0 stands for "leave this out".

    Raises:
        UsageError: anything else.
    """
    try:
        values = tuple(int(part, 10) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{text!r} is no list of whole numbers, like 512 or 128,512") from None
    if any(value < 0 for value in values):
        raise UsageError(f"token counts cannot be below zero: {text!r}")
    return values
