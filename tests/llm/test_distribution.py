"""The arithmetic of speculative sampling: whatever the draft was drawn from, the result is the target's."""

import numpy as np
import pytest

from wireherd.llm.distribution import Distribution

DRAWS = 20_000


def made(**odds):
    """A distribution over tokens 0, 1, 2 ... from `a=0.5, b=0.25 ...`."""
    pairs = [(ord(name) - ord("a"), odd) for name, odd in odds.items()]
    return Distribution(np.array([p[0] for p in pairs], np.int32), np.array([p[1] for p in pairs], np.float64))


def chi_square(counts, expected):
    """Pearson's statistic over tokens that can come."""
    return sum((counts.get(token, 0) - DRAWS * odd) ** 2 / (DRAWS * odd) for token, odd in expected.items())


P = {0: 0.5, 1: 0.3, 2: 0.15, 3: 0.05}


@pytest.mark.parametrize(
    "q",
    [
        made(a=0.5, b=0.3, c=0.15, d=0.05),  # the same
        made(a=0.05, b=0.15, c=0.3, d=0.5),  # the other way round
        made(a=0.9, e=0.1),  # of which one can never be kept
        made(f=1.0),  # nothing in common
        made(b=1.0),  # a sure guess
    ],
)
def test_kept_or_replaced_it_is_the_targets(q):
    p = made(a=0.5, b=0.3, c=0.15, d=0.05)
    random = np.random.default_rng(11)
    counts = {}
    for _ in range(DRAWS):
        token = p.accept(q.draw(random), q, random)
        counts[token] = counts.get(token, 0) + 1
    assert set(counts) <= set(P)
    assert chi_square(counts, P) < 16.3  # 3 degrees of freedom: one in a thousand is above


def test_as_much_is_kept_as_the_two_have_in_common():
    """No other rule keeps more: one minus the distance of the two."""
    p, q = made(a=0.5, b=0.3, c=0.15, d=0.05), made(a=0.2, b=0.3, c=0.5)
    random = np.random.default_rng(5)
    kept = sum(p.accept(token, q, random) == token for token in (q.draw(random) for _ in range(DRAWS)))
    common = 0.2 + 0.3 + 0.15
    # what takes the place of a refused token is never that token again: it comes from where p is above q
    assert abs(kept / DRAWS - common) < 0.015


def test_draws_follow_the_probabilities():
    p, random, counts = made(a=0.5, b=0.3, c=0.15, d=0.05), np.random.default_rng(3), {}
    for _ in range(DRAWS):
        token = p.draw(random)
        counts[token] = counts.get(token, 0) + 1
    assert chi_square(counts, P) < 16.3


def test_forbidden_tokens_are_never_drawn():
    p = Distribution.of_logits(np.arange(4, dtype=np.int32), np.array([1.0, -np.inf, 0.5, -np.inf], np.float32))
    random = np.random.default_rng(1)
    assert {p.draw(random) for _ in range(500)} == {0, 2}
    assert p.probabilities.sum() == pytest.approx(1.0)
    assert (p.of(1), p.of(9)) == (0.0, 0.0)


def test_equal_but_for_rounding_leaves_the_target():
    p = made(a=0.5, b=0.5)
    assert p.without(p) is p
