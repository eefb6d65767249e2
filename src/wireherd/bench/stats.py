"""Mean and spread as llama-bench has them (tools/llama-bench/llama-bench.cpp, `avg`, `stdev`); medians for ratios."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

#: the least a printed interval covers, where there are enough values
LEVEL: Final = 0.9


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


class Interval(NamedTuple):
    """Where a median lies: between `low` and `high` with a probability of `covers` (0 to 1)."""

    low: float
    high: float
    covers: float


def median(values: Sequence[float]) -> float:
    """Middle value, the mean of the two middle ones of an even number; 0 for no values."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if not ordered:
        return 0.0
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def median_interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """The narrowest interval between two order statistics that holds the median with a probability of `level`.

    Whatever the distribution, the k-th smallest and k-th largest of n values enclose its median unless fewer than k of
    them fall on one side of it, which a fair coin decides for each (H. A. David, Order Statistics, section 7.1). With
    too few values for the level, all of them are enclosed, and `covers` says what that is worth.
    """
    ordered = sorted(values)
    count = len(ordered)
    if not count:
        return Interval(0.0, 0.0, 0.0)
    best, covers = 1, 1 - 2 * 0.5**count
    outside = 0
    for k in range(1, count // 2 + 1):
        outside += math.comb(count, k - 1)
        inside = 1 - 2 * outside * 0.5**count
        if inside < level:
            break
        best, covers = k, inside
    return Interval(ordered[best - 1], ordered[count - best], covers)
