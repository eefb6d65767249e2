"""How long to pause between attempts: growing, jittered, and within a budget."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FIRST_S: Final = 0.05
FACTOR: Final = 2.0
MOST_S: Final = 1.0


def pauses(budget_s: float, chance: Callable[[], float] = random.random) -> Iterator[float]:
    """Yield pauses in seconds that together fill `budget_s`; a budget of zero gives none.

    Each is between half and all of its nominal length (by `chance`, from 0 to 1), so that many clients that lost the
    same worker do not come back in step.
    """
    nominal = FIRST_S
    left = budget_s
    while left > 0:
        pause = min(left, nominal * (0.5 + 0.5 * chance()))
        yield pause
        left -= pause
        nominal = min(nominal * FACTOR, MOST_S)
