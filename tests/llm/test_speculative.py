"""Speculative decoding changes how fast text comes, not which: every way to draft, every way to end."""

import os
import random
import signal
import threading

import numpy as np
import pytest
from quick import options

from wireherd.errors import Cancelled, UsageError
from wireherd.llm.draft_options import DraftOptions
from wireherd.llm.drafter import Draft
from wireherd.llm.generate import GenerateOptions
from wireherd.llm.interrupt import CtrlC
from wireherd.llm.session import LlmSession
from wireherd.testing import tiny

PROMPT = "the man and the woman and the man and the woman and the"
#: logits of F32 models in batches of another size differ by less
MARGIN = 1e-3


@pytest.fixture(scope="module")
def other_path(tmp_path_factory):
    """A draft model that agrees with the tiny one now and then: the same noise, rounded to four bits."""
    return tiny.write(tmp_path_factory.mktemp("tiny") / "other.gguf", weights="Q4_0", chat_template=tiny.CHATML)


def opened(path, draft, **values):
    return LlmSession.open(options(path, draft=draft, **values))


def ways(tiny_path, other_path):
    return {
        "lookup": DraftOptions(lookup=True),
        "lookup-1": DraftOptions(lookup=True, n_max=1, ngram_min=1, p_min=0.0),
        "itself": DraftOptions(model=tiny_path, p_min=0.0),
        "other": DraftOptions(model=other_path, p_min=0.0, n_max=5),
        "other-min": DraftOptions(model=other_path, p_min=0.004, n_max=5, n_min=2),
        "sure": DraftOptions(model=tiny_path, p_min=0.9),
    }


NAMES = sorted(ways("", ""))


class Corrupted:
    """Drafts what is known to come, with faults: the worst and the best drafter there can be, and all between."""

    draws = failed = False

    def __init__(self, known, fault, n_vocab, seed=0):
        self.known, self.fault, self.n_vocab = known, fault, n_vocab
        self.chance = random.Random(seed)
        self.asked = []

    def start(self, prompt, _options, _seed):
        self.n_prompt = len(prompt)

    def propose(self, text, most):
        self.asked.append(most)
        right = self.known[len(text) - self.n_prompt :][: min(most, self.chance.randrange(9))]
        return Draft([self.chance.randrange(self.n_vocab) if self.chance.random() < self.fault else t for t in right])

    def verified(self, drafted, accepted):
        assert 0 <= accepted <= drafted

    def abort(self):
        pass

    def cancel(self):
        pass

    def workers(self):
        return []

    def close(self):
        pass


def greedy(count=60, **values):
    return GenerateOptions(**{"temperature": 0.0, "n_predict": count, "ignore_eos": True} | values)


def assert_within_margin(session, prompt, tokens, margin=MARGIN):
    """Each token is the best, or nearly, of a run that is fed with the tokens before it, all in one batch."""
    session.reset()
    session.decode(prompt + tokens[:-1], outputs="all")
    session.synchronize()
    for number, token in enumerate(tokens):
        logits = session.context.logits(len(prompt) - 1 + number)
        assert logits[token] >= logits.max() - margin, f"token {number}"


@pytest.mark.parametrize("way", NAMES)
def test_greedy_text_is_the_targets(tiny_path, other_path, way):
    with opened(tiny_path, ways(tiny_path, other_path)[way]) as session:
        prompt = session.tokenize(PROMPT)
        result = session.generate(prompt, greedy()).run()
        assert_within_margin(session, prompt, result.tokens)
        assert result.tokens == session.generate(prompt, greedy(speculate=False)).run().tokens
        timings = result.timings
        assert len(result.tokens) == timings.predicted_n == 60
        assert timings.draft_n_accepted <= timings.draft_n
        assert timings.draft_n if way != "sure" else not timings.draft_n  # noise is never sure
        if way == "itself":
            assert timings.draft_n_accepted == timings.draft_n > 50


@pytest.mark.parametrize("fault", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_any_drafter_at_all(session, fault, temperature):
    """With drafts of no chance, even the random numbers are used up alike."""
    how = greedy(temperature=temperature, seed=3, repeat_penalty=1.3, speculate=False)
    plain = session.generate(PROMPT, how).run().tokens
    session.drafter = Corrupted(plain, fault, session.model.vocab.n_tokens)
    result = session.generate(PROMPT, greedy(temperature=temperature, seed=3, repeat_penalty=1.3)).run()
    assert result.tokens == plain
    assert session.n_past <= len(session.tokenize(PROMPT)) + 59
    if fault in {0.0, 1.0}:
        assert (result.timings.draft_n_accepted > 0) == (fault == 0.0)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 17])
def test_never_more_than_asked_for(tiny_path, count):
    with opened(tiny_path, DraftOptions(model=tiny_path, p_min=0.0)) as session:
        heard = []
        result = session.generate(PROMPT, greedy(count), heard.append).run()
        assert (len(result.tokens), result.stop) == (count, "length")
        assert heard == result.tokens
        assert session.n_past <= len(session.tokenize(PROMPT)) + max(count - 1, 0)


@pytest.mark.parametrize("way", ["lookup", "itself", "other"])
def test_the_context_ends_where_it_does_without(tiny_path, other_path, way):
    with opened(tiny_path, ways(tiny_path, other_path)[way], n_ctx=256) as session:
        plain = session.generate(PROMPT, greedy(-1, speculate=False)).run()
        result = session.generate(PROMPT, greedy(-1)).run()
        assert plain.stop == result.stop == "context"
        assert len(result.tokens) == len(plain.tokens) == session.n_ctx - len(session.tokenize(PROMPT)) + 1
        assert session.n_past == session.n_ctx


def test_a_small_physical_batch_bounds_the_draft(session, tiny_path):
    session.drafter = Corrupted([], 0.0, 1)
    with LlmSession.open(options(tiny_path, n_batch=8, n_ubatch=4)) as small:
        small.drafter = Corrupted([1] * 99, 0.0, 1)
        small.generate(PROMPT, greedy(30)).run()
        assert max(small.drafter.asked) == 3


def test_the_end_of_the_answer_inside_a_draft(session):
    """A draft that goes on behind the end: nothing of that is looked at."""
    for seed in range(200):
        how = GenerateOptions(n_predict=40, temperature=4.0, top_k=0, min_p=0.0, top_p=1.0, seed=seed)
        session.drafter = None
        plain = session.generate(PROMPT, how).run()
        if plain.stop == "eos" and 4 < len(plain.tokens) < 30:
            break
    assert plain.stop == "eos"
    ends = session.eog_tokens()
    for end in ends:
        session.drafter = Corrupted([*plain.tokens, end, 1, 2, 3, 4, 5], 0.0, 300, seed=seed)
        result = session.generate(PROMPT, how).run()
        assert (result.tokens, result.stop) == (plain.tokens, "eos")
        n_prompt = len(session.tokenize(PROMPT))
        assert n_prompt + len(plain.tokens) - 1 <= session.n_past <= n_prompt + len(plain.tokens)


def test_a_stop_text_inside_a_draft(session):
    plain = session.generate(PROMPT, greedy(40, speculate=False)).run()
    session.drafter = Corrupted(plain.tokens, 0.0, 300)
    stop = plain.text[len(plain.text) // 2 :][:3]
    result = session.generate(PROMPT, greedy(40, stop=(stop,))).run()
    assert result.stop == "stop"
    assert result.text == plain.text[: plain.text.index(stop)]
    again = session.generate(PROMPT, greedy(40, reuse=True)).run()  # goes on from what the stop left behind
    assert again.tokens == plain.tokens
    assert again.timings.cache_n


def test_a_conversation_goes_on_from_it(tiny_path, other_path):
    with opened(tiny_path, DraftOptions(model=other_path, p_min=0.0)) as session:
        first = session.generate(PROMPT, greedy(20)).run()
        longer = session.tokenize(PROMPT) + first.tokens + session.tokenize(" and then", add_special=False)
        result = session.generate(longer, greedy(20, reuse=True)).run()
        assert result.timings.cache_n >= len(longer) - 8
        assert result.tokens == session.generate(longer, greedy(20, speculate=False)).run().tokens


def test_an_answer_left_early_leaves_a_usable_session(tiny_path):
    with opened(tiny_path, DraftOptions(model=tiny_path, p_min=0.0)) as session:
        pieces = iter(session.generate(PROMPT, greedy()))
        for _ in range(3):
            next(pieces)
        pieces.close()
        whole = session.generate(PROMPT, greedy()).run()
        assert whole.tokens == session.generate(PROMPT, greedy(speculate=False)).run().tokens


def test_an_abort_leaves_a_usable_session(tiny_path):
    with opened(tiny_path, DraftOptions(model=tiny_path, p_min=0.0)) as session:
        whole = session.generate(PROMPT, greedy(speculate=False)).run()
        generation = session.generate(PROMPT, greedy(), on_token=lambda _: session.abort())
        with pytest.raises(Cancelled):
            generation.run()
        assert generation.result.tokens == whole.tokens[: len(generation.result.tokens)]
        assert session.generate(PROMPT, greedy()).run().tokens == whole.tokens


def test_ctrl_c_leaves_a_usable_session(tiny_path):
    with opened(tiny_path, DraftOptions(model=tiny_path, p_min=0.0), n_ctx=2048) as session, CtrlC():
        whole = session.generate(PROMPT, greedy(speculate=False)).run()
        for delay in (0.05, 0.1, 0.15):
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                session.generate(PROMPT, greedy(-1)).run()
            assert not session.failed
            assert session.generate(PROMPT, greedy()).run().tokens == whole.tokens


# ---- the distribution


def expected_tokens(session, prompt, how, depth):
    """Exact probabilities of each sequence of `depth` tokens, by llama.cpp's samplers on the target alone."""
    found = {(): 1.0}
    for _ in range(depth):
        longer = {}
        for tokens, odds in found.items():
            session.rewind([*prompt, *tokens])
            session.decode([*prompt, *tokens][session.n_past :])
            with session.sampler(how, [*prompt, *tokens], by_hand=True) as sampler:
                next_one = sampler.distribution()
            for token, odd in zip(next_one.tokens, next_one.probabilities, strict=True):
                longer[(*tokens, int(token))] = odds * float(odd)
        found = longer
    return found


@pytest.mark.parametrize("way", ["other", "other-min", "fixed", "itself"])
def test_the_distribution_is_the_targets(tiny_path, other_path, way):
    """Pearson's test on the second and third token: those that a draft can stand behind."""
    runs = 800
    how = {"temperature": 1.5, "top_k": 4, "n_predict": 5, "ignore_eos": True, "reuse": True, "repeat_penalty": 1.1}
    with opened(tiny_path, ways(tiny_path, other_path).get(way)) as session:
        prompt = session.tokenize("the man and the")
        if way == "fixed":
            known = session.generate(prompt, greedy(5)).run().tokens
            session.drafter = Corrupted(known, 0.0, 300)
        expected = {}
        for tokens, odds in expected_tokens(session, prompt, GenerateOptions(**how), 3).items():
            expected[tokens[1:]] = expected.get(tokens[1:], 0.0) + odds
        counts, drafted, accepted = {}, 0, 0
        for seed in range(runs):
            result = session.generate(prompt, GenerateOptions(**how, seed=seed)).run()
            pair = tuple(result.tokens[1:3])
            counts[pair] = counts.get(pair, 0) + 1
            drafted += result.timings.draft_n
            accepted += result.timings.draft_n_accepted
        assert set(counts) <= set(expected)
        assert drafted > runs / 10
        if way == "itself":
            assert accepted > 0.99 * drafted  # the same distribution but for rounding
        else:
            assert 0.02 * drafted < accepted < 0.9 * drafted
        common = {pair: odds for pair, odds in expected.items() if odds * runs >= 8}
        rest = 1.0 - sum(common.values())
        square = sum((counts.get(pair, 0) - runs * odds) ** 2 / (runs * odds) for pair, odds in common.items())
        rare = sum(count for pair, count in counts.items() if pair not in common)
        square += (rare - runs * rest) ** 2 / (runs * rest) if rest * runs >= 1 else 0
        freedom = len(common)
        assert freedom >= 8
        # mean and spread of the statistic are known: 4.5 sigma above it is one in some ten thousand
        assert square < freedom + 4.5 * np.sqrt(2 * freedom), f"{square:.1f} at {freedom} degrees of freedom"


# ---- what cannot draft


@pytest.mark.parametrize(
    ("shape", "reason"),
    [({"n_vocab": 300 + 129}, "it has 429 tokens, not 300"), ({"n_vocab": 310}, "")],
)
def test_vocabularies_must_match(tmp_path, tiny_path, shape, reason):
    odd = tiny.write(tmp_path / "odd.gguf", tiny.Shape(n_layer=1, **shape))
    if not reason:  # a padded table is no other vocabulary; what is beyond the target's is never drafted
        with opened(tiny_path, DraftOptions(model=odd, p_min=0.0)) as session:
            result = session.generate(PROMPT, greedy()).run()
            assert result.tokens == session.generate(PROMPT, greedy(speculate=False)).run().tokens
            assert result.timings.draft_n
        return
    with pytest.raises(UsageError, match=f"odd.gguf cannot draft for tiny.gguf, .*: {reason}"):
        opened(tiny_path, DraftOptions(model=odd))


def test_another_spelling(tmp_path, tiny_path, monkeypatch):
    monkeypatch.setattr(tiny, "_MERGES", [tiny._MERGES[1], tiny._MERGES[0], *tiny._MERGES[2:]])
    odd = tiny.write(tmp_path / "odd.gguf")
    with pytest.raises(UsageError, match=r"its token \d+ is '.+', not '.+'"):
        opened(tiny_path, DraftOptions(model=odd))


def test_a_missing_draft_model(tmp_path, tiny_path):
    with pytest.raises(UsageError, match=r"nowhere\.gguf"):
        opened(tiny_path, DraftOptions(model=tmp_path / "nowhere.gguf"))
