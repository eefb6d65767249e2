"""How tokens are drafted for speculative decoding: by a small model, or by looking them up in the text so far."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wireherd.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_I32: Final = (1 << 31) - 1
#: a longer draft is a slip of the hand: it would be verified as a prompt
MOST_DRAFTED: Final = 1024
#: a longer n-gram is never found before a shorter one has done the work
_LONGEST_NGRAM: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOptions:
    """Who drafts, and how much; names and defaults are llama.cpp's.

    Attributes:
        model: GGUF file of a draft model that shares the target's vocabulary; None without one.
        rpc: workers that hold the draft model; they may be the target's. Empty: it runs on this machine.
        n_gpu_layers: layers of the draft model that leave the CPU for devices; below zero all.
        n_max: most tokens in a draft.
        n_min: a draft model's shorter drafts are dropped.
        p_min: a draft ends before the token after which the draft model's best guess is less likely than this.
        lookup: draft what followed the last n-gram where it stood before, without a draft model.
        ngram_min: shortest n-gram that is looked up; `ngram_max` the longest, which is tried first.
    """

    model: Path | str | None = None
    rpc: Sequence[str] = ()
    n_gpu_layers: int = -1
    n_max: int = 16
    n_min: int = 0
    p_min: float = 0.75
    lookup: bool = False
    ngram_min: int = 2
    ngram_max: int = 4

    @property
    def path(self) -> Path:
        """The draft model's file.

        Raises:
            UsageError: there is none.
        """
        if self.model is None:
            raise UsageError("there is no draft model: give -md")
        return Path(self.model).expanduser()

    def check(self) -> None:
        """Refuse what makes no sense.

        Raises:
            UsageError: a value out of range, or two ways to draft at once, or none.
        """
        if (self.model is not None) == self.lookup:
            raise UsageError("a draft comes from a model or from the text so far: give either -md or --lookup")
        if self.model is None and self.rpc:
            raise UsageError("--rpc-draft names the workers of a draft model: give -md, too")
        if not 1 <= self.n_max <= MOST_DRAFTED:
            raise UsageError(f"--spec-draft-n-max must be between 1 and {MOST_DRAFTED}, not {self.n_max}")
        if not 0 <= self.n_min <= self.n_max:
            raise UsageError(f"--spec-draft-n-min must be between 0 and {self.n_max}, the most, not {self.n_min}")
        if not 0 <= self.p_min <= 1:
            raise UsageError(f"--spec-draft-p-min must be between 0 and 1, not {self.p_min:g}")
        if not -_I32 <= self.n_gpu_layers <= _I32:
            raise UsageError(f"-ngld must be between {-_I32} and {_I32}, not {self.n_gpu_layers}")
        if not 1 <= self.ngram_min <= self.ngram_max <= _LONGEST_NGRAM:
            raise UsageError(
                f"--lookup-ngram-min and -max must rise within 1 and {_LONGEST_NGRAM}, "
                f"not {self.ngram_min} and {self.ngram_max}"
            )
