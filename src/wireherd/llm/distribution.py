"""Probabilities of the next token, and the arithmetic of speculative sampling on them. Pure: numpy and chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """Tokens i4[n] that can come next and their probabilities f8[n], which add up to 1; all others have none."""

    tokens: NDArray[np.int32]
    probabilities: NDArray[np.float64]

    @classmethod
    def of_logits(cls, tokens: NDArray[np.int32], logits: NDArray[np.float32]) -> Distribution:
        """Probabilities of tokens by their logits; one of -inf has none, and if none is left, all are alike."""
        wide = logits.astype(np.float64)
        most = wide.max()
        if most == -np.inf:
            return cls(tokens, np.full(len(wide), 1.0 / len(wide)))
        weights = np.exp(wide - most)
        return cls(tokens, weights / weights.sum())

    def of(self, token: int) -> float:
        """Probability of one token."""
        found = self.probabilities[self.tokens == token]
        return float(found[0]) if len(found) else 0.0

    def draw(self, random: np.random.Generator) -> int:
        """Draw a token."""
        sums = np.cumsum(self.probabilities)
        place = int(np.searchsorted(sums, random.random() * sums[-1], side="right"))
        return int(self.tokens[min(place, len(self.tokens) - 1)])

    def accept(self, token: int, drafted_from: Distribution, random: np.random.Generator) -> int:
        """Keep a token that was drawn from another distribution, or draw one in its place.

        With p here and q there, it is kept with the probability min(1, p/q); what takes its place is drawn from
        max(0, p - q). Over all draws from q the result is distributed as p.
        """
        p, q = self.of(token), drafted_from.of(token)
        if random.random() * q < p:
            return token
        return self.without(drafted_from).draw(random)

    def without(self, other: Distribution) -> Distribution:
        """What this one has more than another, scaled to add up to 1; itself if that is nothing but rounding."""
        size = 1 + int(max(self.tokens.max(), other.tokens.max()))
        theirs = np.zeros(size)
        theirs[other.tokens] = other.probabilities
        rest = np.maximum(self.probabilities - theirs[self.tokens], 0.0)
        total = rest.sum()
        return Distribution(self.tokens, rest / total) if total > 0 else self
