"""The rule by which both ends keep graphs."""

from hypothesis import given
from hypothesis import strategies as st

from wireherd.protocol.kept import KeptGraphs


def test_the_oldest_go_by_number_and_by_bytes():
    kept = KeptGraphs(3, 100)
    assert [kept.keep(uid, 10) for uid in (1, 2, 3)] == [[], [], []]
    assert kept.keep(4, 10) == [1]
    assert kept.keep(2, 10) == []  # sent again: now the newest
    assert kept.keep(5, 85) == [3, 4]
    assert 2 in kept
    assert kept.nbytes == 95


def test_the_newest_is_kept_whatever_its_size():
    kept = KeptGraphs(3, 100)
    kept.keep(1, 10)
    assert kept.keep(2, 1000) == [1]
    assert 2 in kept
    assert kept.keep(3, 1) == [2]


@given(st.lists(st.tuples(st.sampled_from("kd"), st.integers(1, 9), st.integers(0, 60))))
def test_what_goes_is_told(steps):
    kept, told = KeptGraphs(4, 100), {}
    for step, uid, size in steps:
        if step == "k":
            told.pop(uid, None)
            for gone in kept.keep(uid, size):
                del told[gone]
            told[uid] = size
        else:
            kept.drop(uid)
            told.pop(uid, None)
        assert {uid for uid in range(1, 10) if uid in kept} == set(told)
        assert kept.nbytes == sum(told.values())
        assert len(kept) <= 4
        assert kept.nbytes <= 100 or len(kept) == 1
