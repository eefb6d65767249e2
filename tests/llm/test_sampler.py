"""Settings, seeds and what the chain does to real logits."""

import pytest

from wireherd.errors import UsageError
from wireherd.llm.generate import GenerateOptions
from wireherd.llm.sampler import SEED_LIMIT, SamplerSettings

PROMPT = "the cat and the"


def tokens(session, **values):
    return session.generate(PROMPT, GenerateOptions(**({"n_predict": 12, "ignore_eos": True} | values))).run().tokens


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": float("nan")},
        {"repeat_penalty": 0.0},
        {"min_p": 2.0},
        {"seed": SEED_LIMIT + 1},
        {"top_p": float("inf")},
    ],
)
def test_senseless_settings(values):
    with pytest.raises(UsageError):
        SamplerSettings(**values).check()


def test_a_seed_is_a_promise(session):
    first = tokens(session, seed=7, temperature=3.0)
    assert first == tokens(session, seed=7, temperature=3.0)
    assert first != tokens(session, seed=8, temperature=3.0)


def test_a_drawn_seed_is_told_and_can_be_used_again(session):
    result = session.generate(PROMPT, GenerateOptions(n_predict=12, temperature=3.0, ignore_eos=True)).run()
    assert 0 <= result.seed < SEED_LIMIT
    assert tokens(session, seed=result.seed, temperature=3.0) == result.tokens


def test_greedy_is_the_best_logit(session):
    session.reset()
    prompt = session.tokenize(PROMPT)
    session.decode(prompt)
    session.synchronize()
    best = int(session.context.logits().argmax())
    assert tokens(session, temperature=0.0)[0] == best
    assert tokens(session, temperature=-1.0)[0] == best
    assert tokens(session, temperature=5.0, top_k=1)[0] == best


def test_a_penalty_changes_what_repeats(session):
    plain = tokens(session, temperature=0.0, n_predict=40)
    assert len(set(tokens(session, temperature=0.0, n_predict=40, repeat_penalty=10.0))) > len(set(plain))


def test_more_than_there_is_counts_as_all(session):
    """Numbers that do not fit llama.cpp's own would be cut off, and a window beyond the context takes its memory."""
    common = {"temperature": 1.0, "seed": 1, "repeat_penalty": 1.5}
    everything = tokens(session, top_k=0, repeat_last_n=-1, **common)
    assert tokens(session, top_k=(1 << 32) + 1, repeat_last_n=(1 << 32) + 1, **common) == everything
    assert tokens(session, top_k=1 - (1 << 32), repeat_last_n=-5, **common) == everything


def test_ignore_eos_never_samples_the_end(session):
    ends = set(session.eog_tokens())
    assert ends
    found = tokens(session, temperature=100.0, top_k=0, top_p=1.0, min_p=0.0, n_predict=150, seed=1)
    assert not ends & set(found)
