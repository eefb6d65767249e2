"""A case with real text: what speculative decoding does depends on the words, and random tokens repeat nothing.

The figures are those of llama.cpp's users: PN tokens of the prompt, PP its tokens a second, TG generated tokens a
second, DN tokens drafted, DA how many of these were right. Greedy, over the end of the answer, so that every run does
the same work.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wireherd.errors import UsageError
from wireherd.llm.generate import GenerateOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wireherd.llm.session import LlmSession

#: text that repeats itself as tables, logs and code under edit do; a model goes on in the same manner
REPETITIVE: Final = 5 * (
    "## Morning round\n"
    "- open the valve, wait for the pump, read the pressure and write it down\n"
    "- close the valve, stop the pump, read the level and write it down\n"
    "- lock the door, switch off the light and hand over the key\n\n"
)


@dataclass(frozen=True, slots=True)
class TextFigures:
    """One run: tokens, and nanoseconds for the prompt and for all that was generated behind it."""

    prompt_n: int
    prompt_ns: int
    predicted_n: int
    predicted_ns: int
    draft_n: int
    draft_n_accepted: int

    @property
    def prompt_per_second(self) -> float:
        """PP."""
        return 1e9 * self.prompt_n / self.prompt_ns if self.prompt_ns else 0.0

    @property
    def predicted_per_second(self) -> float:
        """TG."""
        return 1e9 * self.predicted_n / self.predicted_ns if self.predicted_ns else 0.0

    def figures(self) -> dict[str, int | float]:
        """PN, PP, TG, DN, DA."""
        return {
            "PN": self.prompt_n,
            "PP": self.prompt_per_second,
            "TG": self.predicted_per_second,
            "DN": self.draft_n,
            "DA": self.draft_n_accepted,
        }


def prompt_text(path: Path | str | None) -> str:
    """Text of a prompt file, or the built-in one.

    Raises:
        UsageError: it cannot be read, is empty, or is no text.
    """
    if path is None:
        return REPETITIVE
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read the prompt file {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the prompt file {path} is not UTF-8 text") from error
    if not text.strip():
        raise UsageError(f"the prompt file {path} is empty")
    return text


def run_text(
    session: LlmSession,
    prompt: Sequence[int],
    count: int,
    *,
    speculate: bool = True,
    on_token: Callable[[int], None] | None = None,
) -> TextFigures:
    """Generate `count` tokens behind a prompt on an emptied context, with the session's drafter or without it.

    `on_token` hears each token as soon as it is sampled.

    Raises:
        UsageError: prompt and answer do not fit the context.
        WorkerError, GgmlFailed: see `LlmSession.decode`.
    """
    if len(prompt) + count > session.n_ctx:
        raise UsageError(
            f"{len(prompt)} tokens of prompt and {count} to generate do not fit a context of {session.n_ctx}"
        )
    options = GenerateOptions(temperature=0.0, n_predict=count, ignore_eos=True, speculate=speculate, seed=0)
    timings = session.generate(prompt, options, on_token).run().timings
    return TextFigures(
        prompt_n=timings.prompt_n,
        prompt_ns=round(1e6 * timings.prompt_ms),
        predicted_n=timings.predicted_n,
        predicted_ns=round(1e6 * timings.predicted_ms),
        draft_n=timings.draft_n,
        draft_n_accepted=timings.draft_n_accepted,
    )
