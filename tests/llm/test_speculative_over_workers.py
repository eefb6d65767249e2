"""Speculative decoding over real workers: target, draft model or both there, and a draft model whose worker dies."""

import logging

import pytest
from quick import options

from wireherd.errors import UsageError, WorkerLost
from wireherd.llm.draft_options import DraftOptions
from wireherd.llm.generate import GenerateOptions
from wireherd.llm.session import LlmSession
from wireherd.testing import tiny
from wireherd.worker.launch import spawn

PROMPT = "the man and the woman and the man and the woman and the"
COUNT = 48
GREEDY = GenerateOptions(n_predict=COUNT, temperature=0.0, ignore_eos=True)
PLAIN = GenerateOptions(n_predict=COUNT, temperature=0.0, ignore_eos=True, speculate=False)


@pytest.fixture(scope="module")
def pair():
    with spawn(["-t", "1"]) as first, spawn(["-t", "1"]) as second:
        yield (first.endpoint, second.endpoint)


@pytest.fixture(scope="module")
def layered(tmp_path_factory):
    """Eight layers, so that some can stay here."""
    return tiny.write(tmp_path_factory.mktemp("tiny") / "layered.gguf", tiny.Shape(n_layer=8), tied=False)


@pytest.mark.parametrize(("way", "n_gpu_layers"), [("lookup", 4), ("here", -1), ("here", 4), ("there", -1)])
def test_the_same_text_in_fewer_round_trips(layered, pair, way, n_gpu_layers):
    draft = {
        "lookup": DraftOptions(lookup=True, ngram_min=1),
        "here": DraftOptions(model=layered, p_min=0.0),
        "there": DraftOptions(model=layered, p_min=0.0, rpc=pair),  # two contexts, each with its own connections
    }[way]
    with LlmSession.open(options(layered, rpc=pair, n_gpu_layers=n_gpu_layers, draft=draft)) as session:
        plain = session.generate(PROMPT, PLAIN).run()
        for _ in range(2):  # graphs are kept when they are seen for the second time
            session.generate(PROMPT, GREEDY).run()
        before = session.workers()
        result = session.generate(PROMPT, GREEDY).run()
        after = session.workers()
        assert result.tokens == plain.tokens  # F32: batches of another size round in the last bit only
        assert [entry.get("draft", False) for entry in after] == [False, False] + [True, True] * (way == "there")
        trips = after[1]["round_trips"] - before[1]["round_trips"]
        timings = result.timings
        assert trips <= COUNT - timings.draft_n_accepted + 4
        if way != "lookup":
            assert timings.draft_n_accepted == timings.draft_n > COUNT / 2
        for old, new in zip(before, after, strict=True):
            assert new["graphs_sent"] == old["graphs_sent"]


def test_a_worker_of_the_draft_model_dies(layered, pair, caplog):
    with spawn(["-t", "1"]) as mortal:
        draft = DraftOptions(model=layered, p_min=0.0, rpc=(mortal.endpoint,))
        with LlmSession.open(options(layered, rpc=pair[:1], draft=draft)) as session:
            plain = session.generate(PROMPT, PLAIN).run()
            heard = []

            def on_token(token):
                heard.append(token)
                if len(heard) == 20:
                    mortal.kill()

            with caplog.at_level(logging.WARNING):
                result = session.generate(PROMPT, GREEDY, on_token).run()
            assert result.tokens == plain.tokens
            assert f"going on without drafts: worker {mortal.endpoint}" in caplog.text
            assert 0 < result.timings.draft_n < COUNT
            assert session.generate(PROMPT, GREEDY).run().timings.draft_n == 0


def test_a_worker_of_the_target_dies(layered, pair):
    with spawn(["-t", "1"]) as mortal:
        draft = DraftOptions(model=layered, p_min=0.0, rpc=pair)
        with LlmSession.open(options(layered, rpc=(mortal.endpoint,), draft=draft)) as session:
            pieces = iter(session.generate(PROMPT, GREEDY))
            next(pieces)
            mortal.kill()
            with pytest.raises(WorkerLost, match=mortal.endpoint):
                list(pieces)
            assert session.failed


def test_no_worker_for_the_draft_model(layered, pair):
    with pytest.raises(WorkerLost, match=r"127\.0\.0\.1:9"):
        LlmSession.open(options(layered, rpc=pair, draft=DraftOptions(model=layered, rpc=("127.0.0.1:9",))))
    with pytest.raises(UsageError, match="named twice"):
        LlmSession.open(options(layered, rpc=pair, draft=DraftOptions(model=layered, rpc=pair[:1] * 2)))
