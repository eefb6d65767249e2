"""The owner's memory limit, shared by all sessions: who holds how much of it. Pure bookkeeping."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable


class Budget:
    """Bytes granted to sessions out of one limit; without a limit everything is granted and still counted."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._held: Counter[Hashable] = Counter()

    @property
    def used(self) -> int:
        """Bytes granted now."""
        return sum(self._held.values())

    @property
    def free(self) -> int | None:
        """Bytes left; None without a limit."""
        return None if self.limit is None else max(0, self.limit - self.used)

    def reserve(self, holder: Hashable, size: int) -> bool:
        """Grant `size` bytes to `holder`, or nothing at all."""
        if size < 0 or (self.limit is not None and size > self.limit - self.used):
            return False
        self._held[holder] += size
        return True

    def release(self, holder: Hashable, size: int) -> None:
        """Take bytes back; never more than `holder` has."""
        self._held[holder] -= min(max(size, 0), self._held[holder])

    def drop(self, holder: Hashable) -> int:
        """Take everything back from a holder that is gone; returns how much that was."""
        return self._held.pop(holder, 0)
