"""What a bench run measures: prompt processing (pp) and token generation (tg), with the settings they share."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from wireherd.errors import UsageError

if TYPE_CHECKING:
    from wireherd.llm.options import LlamaOptions

DEFAULT_PROMPT: Final = 512
DEFAULT_GENERATED: Final = 128
DEFAULT_REPETITIONS: Final = 5
_RANGE: Final = re.compile(r"(\d+)-(\d+)(?:([+*])(\d+))?", re.ASCII)
#: a list longer than this is a slip of the hand
_MOST_COUNTS: Final = 1000


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table: behind `n_depth` unmeasured tokens a prompt of `n_prompt`, then `n_gen` one by one."""

    n_prompt: int = 0
    n_gen: int = 0
    n_depth: int = 0

    @property
    def name(self) -> str:
        """llama-bench's name of the test: pp512, tg128, pp512+tg128, pp512 @ d1024."""
        parts = [f"pp{self.n_prompt}"] * bool(self.n_prompt) + [f"tg{self.n_gen}"] * bool(self.n_gen)
        return "+".join(parts) + (f" @ d{self.n_depth}" if self.n_depth else "")

    @property
    def tokens(self) -> int:
        """Measured tokens of one repetition."""
        return self.n_prompt + self.n_gen


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """What a run measures; defaults are llama-bench's.

    Attributes:
        llama: what to load, where, and how to run it; its context is made to fit the longest case.
        prompts: prompt lengths, one pp case each.
        generated: lengths, one tg case each.
        pairs: prompt and generated length of each case that measures both in one go.
        depths: tokens in the context before a case begins; all cases are run at each.
        repetitions: measured runs of each case, after the one that warms up.
        warm_up: run each case once before it is measured.
        delay_s: seconds of rest between two cases.
        link: the emulated link in words; empty without one.
    """

    llama: LlamaOptions
    prompts: tuple[int, ...] = (DEFAULT_PROMPT,)
    generated: tuple[int, ...] = (DEFAULT_GENERATED,)
    pairs: tuple[tuple[int, int], ...] = ()
    depths: tuple[int, ...] = (0,)
    repetitions: int = DEFAULT_REPETITIONS
    warm_up: bool = True
    delay_s: float = 0.0
    link: str = ""

    def check(self) -> None:
        """Refuse what cannot be measured.

        Raises:
            UsageError: no repetition, or nothing to measure.
        """
        if self.repetitions < 1:
            raise UsageError(f"-r must be at least 1, not {self.repetitions}")
        if not self.cases():
            raise UsageError("there is nothing to measure: give -p, -n or -pg a number above zero")

    def cases(self) -> list[Case]:
        """All cases in llama-bench's order: at each depth prompts, generations, pairs; zeros are left out."""
        lengths = [(n, 0) for n in self.prompts] + [(0, n) for n in self.generated] + list(self.pairs)
        return [Case(*length, depth) for depth in self.depths for length in lengths if any(length)]

    def fitted(self) -> LlamaOptions:
        """The options with a context that holds the longest case."""
        return replace(self.llama, n_ctx=max(case.n_depth + case.tokens for case in self.cases()))


def counts(text: str) -> tuple[int, ...]:
    """Parse a comma list of token counts and ranges (8-10, 0-512+128, 1-64*2); 0 stands for "leave this out".

    Raises:
        UsageError: anything else.
    """
    values: list[int] = []
    for part in text.split(","):
        found = _RANGE.fullmatch(part)
        if found:
            values += _range(part, int(found[1]), int(found[2]), found[3] or "+", int(found[4] or 1))
        elif part.isascii() and part.isdecimal():
            values.append(int(part))
        else:
            raise UsageError(f"{text!r} is no list of whole numbers and ranges, like 512, 128,512 or 0-512+128")
    if len(values) > _MOST_COUNTS:
        raise UsageError(f"{text!r} lists more than {_MOST_COUNTS} numbers")
    return tuple(values)


def _range(text: str, first: int, last: int, sign: str, step: int) -> list[int]:
    if first > last or (step < 1 if sign == "+" else step < 2 or not first):
        raise UsageError(f"the range {text!r} never ends: it must rise from its first number to its last")
    values = [first]
    while len(values) <= _MOST_COUNTS:
        following = values[-1] + step if sign == "+" else values[-1] * step
        if following > last:
            break
        values.append(following)
    return values


def pair(text: str) -> tuple[int, int]:
    """Parse the prompt and generated length of a -pg case, such as 512,128.

    Raises:
        UsageError: anything else.
    """
    words = text.split(",")
    if len(words) != 2 or not all(word.isascii() and word.isdecimal() for word in words):
        raise UsageError(f"-pg {text!r} is no pair of whole numbers, like 512,128")
    return int(words[0]), int(words[1])
