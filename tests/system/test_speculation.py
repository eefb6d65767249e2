"""Speculative decoding with real models: acceptance, the margin rule, sliding windows, two workers."""

import pytest

from wireherd.bench.textgen import REPETITIVE
from wireherd.llm.draft_options import DraftOptions
from wireherd.llm.generate import GenerateOptions
from wireherd.llm.options import LlamaOptions
from wireherd.llm.session import LlmSession

#: logits of quantised models in batches of other sizes differ by less; the two best of a step are mostly further apart
MARGIN = 1.0


def opened(model, **values):
    return LlmSession.open(LlamaOptions(model, **({"n_ctx": 1024, "threads": 1, "repack": False} | values)))


def greedy(count):
    return GenerateOptions(temperature=0.0, n_predict=count, ignore_eos=True)


def assert_within_margin(session, prompt, tokens):
    session.reset()
    text = prompt + tokens[:-1]
    cut = len(prompt) - 1
    session.decode(text[:cut])
    for start in range(cut, len(text), 16):  # batches of about the size in which they were verified
        part = text[start : start + 16]
        session.decode(part, outputs="all")
        session.synchronize()
        for place in range(len(part)):
            logits, token = session.context.logits(place), tokens[start - cut + place]
            assert logits[token] >= logits.max() - MARGIN, f"token {start - cut + place}"


@pytest.mark.parametrize("way", ["itself", "lookup"])
def test_smollm_over_two_workers(smollm, workers, way):
    names = tuple(worker.endpoint for worker in workers(2, "-t", "1"))
    draft = DraftOptions(lookup=True) if way == "lookup" else DraftOptions(model=smollm)
    with opened(smollm, rpc=names, draft=draft) as session:
        prompt = session.tokenize(REPETITIVE)[:160]
        result = session.generate(prompt, greedy(32)).run()
        timings = result.timings
        assert len(result.tokens) == 32
        assert timings.draft_n_accepted > 0.9 * timings.draft_n > 12
        assert_within_margin(session, prompt, result.tokens)


def test_a_sliding_window_goes_back(gemma):
    """Beyond its window of 512 tokens a cache forgets; what is taken back must still see all that it should."""
    with opened(gemma, draft=DraftOptions(lookup=True)) as session:
        prompt = session.tokenize(REPETITIVE * 2)[:540]
        assert len(prompt) > session.model.n_swa > 0
        result = session.generate(prompt, greedy(32)).run()
        assert result.timings.draft_n > 10
        assert_within_margin(session, prompt, result.tokens)
