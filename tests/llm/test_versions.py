"""Our client on workers that answer as every stock version, one by one and in one cluster: the tokens of a run alone."""

from __future__ import annotations

import contextlib

from quick import options

from wireherd.llm.generate import GenerateOptions
from wireherd.llm.session import LlmSession
from wireherd.protocol.version import SUPPORTED
from wireherd.testing import tiny
from wireherd.worker.launch import spawn

GREEDY = GenerateOptions(n_predict=16, temperature=0.0, ignore_eos=True)
PROMPT = "the man and the woman went to the sea and"


def tokens(path, rpc=()):
    with LlmSession.open(options(path, rpc=rpc)) as session:
        found = session.generate(PROMPT, GREEDY).run().tokens
        return found, [worker["protocol"] for worker in session.workers()]


def test_every_version_alone_and_all_in_one_cluster(tmp_path):
    layered = tiny.write(tmp_path / "layered.gguf", tiny.Shape(n_layer=8), tied=False)
    alone, _ = tokens(layered)
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(spawn(["-t", "1", "--plain", "--protocol", version.short])) for version in SUPPORTED
        ]
        for version, worker in zip(SUPPORTED, started, strict=True):
            assert tokens(layered, [worker.endpoint]) == (alone, [version.short])
        ours = stack.enter_context(spawn(["-t", "1"]))
        together = [*(worker.endpoint for worker in started), ours.endpoint]
        assert tokens(layered, together) == (alone, [*(version.short for version in SUPPORTED), "8.0+herd"])
