"""Drafts that are looked up: what they find, where they stop, and how they get shorter and longer."""

import random

import pytest

from wireherd.errors import UsageError
from wireherd.llm.draft_options import DraftOptions
from wireherd.llm.generate import GenerateOptions
from wireherd.llm.lookup import Lookup


def started(text, **values):
    lookup = Lookup(DraftOptions(lookup=True, **values))
    lookup.start(text, GenerateOptions(), 0)
    return lookup


def test_what_followed_before():
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4]
    assert started(text).propose(text, 3).tokens == [5, 6, 7]
    assert started(text).propose(text, 100).tokens == [5, 6, 7, 8, 9, 2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4]  # n_max


def test_a_period_goes_on():
    text = [7, 8, 9] * 3
    assert started(text, n_max=7).propose(text, 100).tokens == [7, 8, 9, 7, 8, 9, 7]


def test_nothing_is_known():
    assert started([1, 2, 3, 4]).propose([1, 2, 3, 4], 9).tokens == []
    assert started([1]).propose([1], 9).tokens == []
    assert started([1, 1, 1, 1]).propose([1, 1, 1, 1], 0).tokens == []


def test_two_tokens_must_have_gone_on_alike_twice():
    once = [1, 2, 3, 9, 1, 2]
    assert started(once).propose(once, 1).tokens == []
    twice = [1, 2, 3, 9, 1, 2, 3, 8, 1, 2]
    assert started(twice).propose(twice, 1).tokens == [3]


def test_a_draft_ends_where_the_text_went_on_in_different_ways():
    text = [1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 6, 0, 1, 2, 3]
    assert started(text).propose(text, 9).tokens == [4]
    assert len(started(text, p_min=0.5).propose(text, 9).tokens) == 9


def test_the_longest_ngram_decides():
    text = [5, 1, 2, 3, 7, 6, 1, 2, 3, 8, 5, 1, 2, 3]
    assert started(text, ngram_max=4).propose(text, 1).tokens == [7]
    assert started(text, ngram_max=3, p_min=0.0).propose(text, 1).tokens in ([7], [8])


def test_what_was_generated_counts_too():
    text = [1, 2, 3, 4]
    lookup = started(text)
    for token in (9, 1, 2, 3):
        text.append(token)
        found = lookup.propose(text, 2).tokens
    assert found == [4, 9]


def test_learning_in_steps_is_learning_at_once():
    chance = random.Random(4)
    text = [chance.randrange(3) for _ in range(200)]
    slow = started(text[:5])
    for end in range(6, len(text) + 1):
        assert slow.propose(text[:end], 4).tokens == started(text[:end]).propose(text[:end], 4).tokens


def test_short_drafts_are_dropped_where_asked():
    text = [1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 6, 0, 1, 2, 3]
    assert started(text, n_min=2).propose(text, 9).tokens == []


def test_shorter_where_it_fails_and_longer_where_it_holds():
    text = [7, 8, 9] * 5
    lookup = started(text)
    lookup.verified(16, 2)
    assert len(lookup.propose(text, 99).tokens) == 8
    for _ in range(9):
        lookup.verified(8, 0)
    assert len(lookup.propose(text, 99).tokens) == 2
    lookup.verified(2, 2)
    assert len(lookup.propose(text, 99).tokens) == 4
    lookup.verified(4, 3)
    assert len(lookup.propose(text, 99).tokens) == 4
    lookup.start(text, GenerateOptions(), 0)
    assert len(lookup.propose(text, 99).tokens) == 16


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({}, "either -md or --lookup"),
        ({"lookup": True, "model": "x"}, "either -md or --lookup"),
        ({"lookup": True, "rpc": ("a:1",)}, "--rpc-draft"),
        ({"lookup": True, "n_max": 0}, "n-max"),
        ({"lookup": True, "n_min": 17}, "n-min"),
        ({"lookup": True, "p_min": float("nan")}, "p-min"),
        ({"lookup": True, "ngram_min": 0}, "ngram-min"),
        ({"lookup": True, "ngram_min": 5}, "ngram-min"),
        ({"model": "x", "n_gpu_layers": 1 << 40}, "-ngld"),
    ],
)
def test_senseless_options(values, word):
    with pytest.raises(UsageError, match=word):
        DraftOptions(**values).check()
