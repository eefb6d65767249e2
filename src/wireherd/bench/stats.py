"""Mean and spread as llama-bench computes them (tools/llama-bench/llama-bench.cpp, `avg` and `stdev`)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; 0 for no values."""
    return math.fsum(values) / len(values) if values else 0.0


def deviation(values: Sequence[float]) -> float:
    """Sample standard deviation (divisor n - 1); 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    middle = mean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))


def rates(tokens: int, samples_ns: Sequence[int]) -> list[float]:
    """Tokens per second of each sample."""
    return [1e9 * tokens / sample for sample in samples_ns]
