"""What a measurement found, and on what: the facts that every format prints."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from wireherd.bench import stats
from wireherd.bench.traffic import NO_TRAFFIC, Traffic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wireherd.bench.cases import Case

#: llama-bench prints a bool; "auto" is -1, as in `enum llama_flash_attn_type`
FLASH: Final[dict[str, bool | int]] = {"on": True, "off": False, "auto": -1}
#: figures of a case behind a text, and their keys
TEXT_KEYS: Final = {
    "PN": "text_prompt_n",
    "PP": "text_prompt_per_second",
    "TG": "text_predicted_per_second",
    "DN": "text_draft_n",
    "DA": "text_draft_n_accepted",
}


@dataclass(frozen=True, slots=True)
class Setup:
    """What was measured on: facts that are the same for every case of a run.

    Attributes:
        build: name of the native library's build.
        cpu: what this machine's processor calls itself.
        backend: "RPC" as soon as a worker takes part, else "CPU".
        model_type: architecture, size and quantisation as llama.cpp words them.
        model_size: bytes of all tensors.
        model_n_params: elements of all tensors.
        threads: CPU threads in use here.
        default_threads: CPU threads if nobody says otherwise.
    """

    build: str
    cpu: str
    backend: str
    model_type: str
    model_size: int
    model_n_params: int
    threads: int
    default_threads: int


@dataclass(frozen=True, slots=True)
class Result:
    """One measured case.

    Attributes:
        samples_ns: nanoseconds of each repetition.
        test_time: when it began, ISO 8601, UTC.
        traffic: what went over the wire in all repetitions.
        text: PN, PP, TG, DN and DA of a case behind a text, means over the repetitions.
    """

    case: Case
    samples_ns: tuple[int, ...]
    test_time: str
    traffic: Traffic = NO_TRAFFIC
    text: Mapping[str, float] = field(default_factory=dict)

    @property
    def samples_ts(self) -> list[float]:
        """Tokens per second of each repetition."""
        return stats.rates(self.case.tokens, self.samples_ns)

    @property
    def tokens(self) -> int:
        """Measured tokens of all repetitions."""
        return self.case.tokens * len(self.samples_ns)


def build_number(build: str) -> int:
    """Number in a build's name ("b11549" gives 11549); 0 if it has none."""
    found = re.match(r"b(\d+)", build)
    return int(found[1]) if found else 0


def split_text(shares: Sequence[float] | None) -> str:
    """Shares of devices as llama-bench writes them: 0.00 without."""
    return "/".join(f"{share:.2f}" for share in shares or (0.0,))
