"""`-sm tensor`: every layer split over workers that add up among themselves.

Which tokens are right: kernels round by the shapes they are given, and sums by their order, so two ways of splitting
need not agree to the bit. Each token must be the best one of a reference run that is made to follow the same tokens in
the same shapes, or lie within `MARGIN` of it. The reference is libllama's own way of adding up, over the same devices.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from support.cli import EQUAL_KERNELS, GREEDY, PERTURBED, wireherd
from support.workers import Worker
from wireherd.client.reg import Registry
from wireherd.errors import UsageError
from wireherd.llm.options import LlamaOptions
from wireherd.llm.session import LlmSession
from wireherd.testing import tiny

PROMPT = "The old lighthouse keeper climbed the stairs every evening to"
N = 12
#: in logits, whose spread over the vocabulary is above 10
MARGIN = 0.1

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def herd() -> Iterator[list[str]]:
    """Addresses of four workers whose fresh memory is dirty."""
    started: list[Worker] = []
    try:
        for _ in range(4):
            started.append(Worker(env=PERTURBED))  # noqa: PERF401 - those started must be stopped
        yield [worker.endpoint for worker in started]
    finally:
        for worker in started:
            worker.stop()


@pytest.fixture(scope="module")
def even(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Eight heads and four KV heads: all ranks have a part of every sum."""
    shape = tiny.Shape(n_embd=256, n_layer=4, n_head=8, n_head_kv=4, n_ff=512)
    return str(tiny.write(tmp_path_factory.mktemp("even") / "even.gguf", shape, weights="Q8_0", tied=False))


class Run:
    """Greedy tokens with the logits behind each, and what went over the wire for them."""

    def __init__(self, session: LlmSession, follow: Sequence[int] | None = None) -> None:
        self.tokens: list[int] = []
        self.logits: list[np.ndarray] = []
        session.reset()
        before = session.workers()
        session.decode(session.tokenize(PROMPT))
        for step in range(N):
            session.synchronize()
            self.logits.append(np.array(session.context.logits(-1)))
            self.tokens.append(int(self.logits[-1].argmax()) if follow is None else follow[step])
            session.decode(self.tokens[-1:])
        session.synchronize()
        after = session.workers()
        self.moved = [
            sum(now[key] - then[key] for key in ("bytes_sent", "bytes_received"))
            for now, then in zip(after, before, strict=True)
        ]
        self.round_trips = [now["round_trips"] - then["round_trips"] for now, then in zip(after, before, strict=True)]


def opened(model: str, rpc: Sequence[str], shares: Sequence[float] | None) -> LlmSession:
    return LlmSession.open(
        LlamaOptions(
            model,
            rpc=rpc,
            split_mode="tensor",
            tensor_split=shares,
            n_ctx=256,
            threads=1,
            repack=False,
            flash_attn="on",
        )
    )


@pytest.mark.parametrize(
    ("name", "shares"),
    [
        ("smollm", (1, 1)),
        ("smollm", (3, 1, 2)),
        ("even", (1, 1)),
        ("even", (3, 1)),
        ("even", (1, 1, 2)),
        ("even", (1, 1, 1, 1)),
        pytest.param("smollm", (1, 2, 1, 1), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_tokens_are_those_of_libllamas_own_sums(
    name: str,
    shares: tuple[float, ...],
    herd: list[str],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = request.getfixturevalue(name)
    with opened(model, herd[: len(shares)], shares) as session:
        ours = Run(session)
    monkeypatch.setattr(Registry, "get_proc_address", lambda _self, _reg, _name: 0)
    with opened(model, herd[: len(shares)], shares) as session:
        reference = Run(session, ours.tokens)
    for token, logits in zip(ours.tokens, reference.logits, strict=True):
        assert logits.max() - logits[token] <= MARGIN
    assert len(set(ours.tokens)) > 3, "a text of nothing proves nothing"
    # the traffic of the sums goes between the workers: none of it through the client
    assert max(ours.round_trips) <= 2 * (N + 2)
    assert sum(reference.round_trips) > 5 * sum(ours.round_trips)
    assert sum(reference.moved) > sum(ours.moved)


def test_an_uneven_split_gives_each_worker_its_share(even: str, herd: list[str]) -> None:
    with opened(even, herd[:2], (3, 1)) as session:
        first, second = session.plan
        assert first.layers == second.layers == (0, 1, 2, 3)
        sent = [worker["bytes_sent"] for worker in session.workers()]
        assert sent[0] > 2 * sent[1]
        assert sent[0] == pytest.approx(first.weight_bytes, rel=0.2)
        assert sent[1] == pytest.approx(second.weight_bytes, rel=0.2)


@pytest.mark.parametrize(("protocol", "count"), [("5.0", 2), ("7.0", 2)])
def test_on_peers_without_the_extension(
    protocol: str, count: int, even: str, herd: list[str], workers: Callable[..., list[Worker]]
) -> None:
    """No groups, before 8.0 no rows either: slower, and right."""
    plain = workers(count, "--plain", "--protocol", protocol, env=PERTURBED)
    with opened(even, herd[:count], None) as session:
        ours = Run(session)
    with opened(even, [worker.endpoint for worker in plain], None) as session:
        theirs = Run(session, ours.tokens)
    for token, logits in zip(ours.tokens, theirs.logits, strict=True):
        assert logits.max() - logits[token] <= MARGIN


def test_this_machine_takes_a_part(even: str, herd: list[str]) -> None:
    with opened(even, herd[:2], (1, 1)) as session:
        expected = Run(session)
    with opened(even, ["local", herd[1]], (1, 1)) as session:
        found = Run(session)
        assert [worker["endpoint"] for worker in session.workers()] == ["local", herd[1]]
        assert max(found.round_trips) <= 2 * (N + 2)
        assert session.cluster is not None
        socket = Path(session.cluster.endpoints[0].session.address.name)
        assert socket.is_socket()
        assert socket.parent.stat().st_mode & 0o077 == 0, "others could open it"
    assert found.tokens == expected.tokens
    assert all(np.array_equal(one, two) for one, two in zip(found.logits, expected.logits, strict=True))
    assert not socket.parent.exists(), "the worker did not end with the session"


def test_workers_that_cannot_reach_each_other_are_no_reason_to_fail(
    even: str, herd: list[str], workers: Callable[..., list[Worker]]
) -> None:
    with opened(even, herd[:2], None) as session:
        expected = Run(session)
    pair = [worker.endpoint for worker in workers(2, "--peers", "192.0.2.0/24", env=PERTURBED)]
    outcome = wireherd(
        *("run", "--json", "-m", even, "-p", PROMPT, "-n", str(N), "--rpc", ",".join(pair), "-sm", "tensor"),
        *EQUAL_KERNELS,
        *GREEDY,
    )
    assert outcome.code == 0, outcome.err
    (line,) = outcome.err.splitlines()
    assert "cannot reach each other" in line
    assert pair[1] in line
    assert json.loads(outcome.out)["tokens"] == expected.tokens


def test_a_model_that_libllama_cannot_split(gemma: str, herd: list[str], tmp_path: Path) -> None:
    """It would abort the process: a child finds out, once, and the user gets one sentence."""
    flags = ("run", "-m", gemma, "--rpc", ",".join(herd[:2]), "-sm", "tensor", "-p", "A", "-n", "2")
    for _ in range(2):
        outcome = wireherd(*flags, env={"WIREHERD_CACHE": str(tmp_path)})
        assert outcome.code == 1
        assert "-sm layer" in outcome.sentence()
        assert Path(gemma).name in outcome.sentence()
    (kept,) = (tmp_path / "splits").iterdir()
    assert "GGML_ASSERT" in kept.read_text()
    assert outcome.seconds < 10


def test_what_makes_no_sense() -> None:
    with pytest.raises(UsageError, match="-sm tensor needs flash attention"):
        LlamaOptions("m.gguf", split_mode="tensor", flash_attn="off").check()
    outcome = wireherd("run", "-m", "m.gguf", "-sm", "tensor", "-fa", "off", "-p", "A")
    assert outcome.code == 2


def test_local_is_a_worker_everywhere(even: str) -> None:
    listed = wireherd("devices", "--rpc", "local", "--json")
    assert listed.code == 0, listed.err
    assert [device["name"] for device in json.loads(listed.out) if device["endpoint"] == "local"] == ["RPC0"]
    flags = ("run", "--json", "-m", even, "-p", PROMPT, "-n", str(N), *EQUAL_KERNELS, *GREEDY)
    answers = [wireherd(*flags, *where) for where in (("--rpc", "local"), ("-ngl", "0"))]
    assert [answer.code for answer in answers] == [0, 0], answers
    first, second = (json.loads(answer.out)["tokens"] for answer in answers)
    assert first == second
    twice = wireherd(*flags, "--rpc", "local,local")
    assert twice.code == 2
    assert "local is named twice" in twice.sentence()
