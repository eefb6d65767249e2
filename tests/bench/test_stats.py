from __future__ import annotations

import statistics

from hypothesis import given
from hypothesis import strategies as st

from wireherd.bench.stats import deviation, mean, rates


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
