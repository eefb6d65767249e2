"""Writes that are waited for, as before protocol 2.0, and writes that are not: the same tokens, other round trips."""

import pytest
from quick import options

from wireherd.errors import UsageError, WorkerRefused
from wireherd.llm.generate import GenerateOptions
from wireherd.llm.session import LlmSession
from wireherd.worker.launch import spawn

PROMPT = "the man and the woman went to the sea and"


def generated(path, endpoint, count, **values):
    """Tokens, and how many round trips `count` of them cost."""
    greedy = GenerateOptions(n_predict=count, temperature=0.0, ignore_eos=True)
    with LlmSession.open(options(path, rpc=[endpoint], **values)) as session:
        session.generate(PROMPT, greedy).run()
        (before,) = session.workers()
        tokens = session.generate(PROMPT, greedy).run().tokens
        (after,) = session.workers()
        return tokens, after["round_trips"] - before["round_trips"]


def test_answered_writes_cost_round_trips_and_nothing_else(tiny_path):
    with spawn(["-t", "1"]) as worker:
        tokens, trips = {}, {}
        for mode in ("async", "sync"):
            _, few = generated(tiny_path, worker.endpoint, 8, set_tensor=mode)
            tokens[mode], many = generated(tiny_path, worker.endpoint, 24, set_tensor=mode)
            trips[mode] = (many - few) / 16
    assert tokens["sync"] == tokens["async"]
    assert trips["async"] == 1.0, "the answer itself"
    assert 4 <= trips["sync"] - 1.0 <= 9


def test_a_stock_server_does_not_answer(tiny_path):
    with (
        spawn(["-t", "1", "--plain"]) as worker,
        pytest.raises(WorkerRefused, match=rf"{worker.endpoint}.*--set-tensor sync needs wireherd workers"),
    ):
        generated(tiny_path, worker.endpoint, 1, set_tensor="sync")


def test_other_words_are_refused(tiny_path):
    with pytest.raises(UsageError, match="async, sync"):
        LlmSession.open(options(tiny_path, set_tensor="often"))
