from __future__ import annotations

import pytest

from wireherd.session.retry import MOST_S, pauses


def test_no_budget_no_pause():
    assert list(pauses(0)) == []


@pytest.mark.parametrize("chance", [0.0, 0.3, 1.0])
def test_pauses_fill_the_budget_grow_and_stay_small(chance):
    found = list(pauses(10.0, lambda: chance))
    assert sum(found) == pytest.approx(10.0)
    assert max(found) <= MOST_S
    assert found[0] <= 0.05
    assert found[:-1] == sorted(found[:-1])
