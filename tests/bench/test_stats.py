from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wireherd.bench.stats import deviation, mean, median, median_interval, rates


@given(st.lists(st.integers(1, 10**12), min_size=2, max_size=20))
def test_as_the_standard_library_has_it(values):
    assert abs(mean(values) - statistics.mean(values)) <= 1e-9 * max(values)
    assert abs(deviation(values) - statistics.stdev(values)) <= 1e-6 * max(values)


def test_few_values():
    assert mean([]) == 0
    assert deviation([]) == 0
    assert deviation([5.0]) == 0


def test_rates():
    assert rates(128, [1_000_000_000, 500_000_000]) == [128, 256]


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=30))
def test_the_median_lies_in_its_interval(values):
    found = median_interval(values)
    assert median(values) == statistics.median(values)
    assert min(values) <= found.low <= median(values) <= found.high <= max(values)
    assert 0 <= found.covers <= 1


@pytest.mark.parametrize(
    ("count", "low", "high", "covers"),
    # k and coverage from tables of the binomial distribution
    [(1, 1, 1, 0.0), (3, 1, 3, 0.75), (5, 1, 5, 0.9375), (9, 2, 8, 0.9609), (11, 3, 9, 0.9346), (20, 6, 15, 0.9586)],
)
def test_intervals_by_order_statistics(count, low, high, covers):
    found = median_interval(list(range(count, 0, -1)))
    assert (found.low, found.high) == (low, high)
    assert found.covers == pytest.approx(covers, abs=1e-4)
