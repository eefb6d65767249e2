"""Sessions over real workers: the same tokens as alone, failures that name the worker, and life afterwards."""

import threading
import time

import pytest
from quick import options

from wireherd.errors import Cancelled, ModelError, UsageError, WorkerError, WorkerLost
from wireherd.llm import inventory
from wireherd.llm.chat import prompt_tokens
from wireherd.llm.generate import GenerateOptions
from wireherd.llm.session import LlmSession
from wireherd.testing import tiny
from wireherd.worker.launch import spawn

GREEDY = GenerateOptions(n_predict=16, temperature=0.0, ignore_eos=True)
PROMPT = "the man and the woman went to the sea and"


@pytest.fixture(scope="module")
def pair():
    with spawn(["-t", "1"]) as first, spawn(["-t", "1"]) as second:
        yield [first.endpoint, second.endpoint]


@pytest.fixture(scope="module")
def layered(tmp_path_factory):
    """Eight layers, so that shares can differ."""
    return tiny.write(tmp_path_factory.mktemp("tiny") / "layered.gguf", tiny.Shape(n_layer=8), tied=False)


def tokens(path, **values):
    with LlmSession.open(options(path, **values)) as session:
        return session.generate(PROMPT, GREEDY).run().tokens


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"n_gpu_layers": 0},
        {"n_gpu_layers": 4},
        {"tensor_split": (3, 1)},
        {"tensor_split": (0, 1)},
        {"devices": ("RPC1", "RPC0")},
        {"devices": ("RPC1",)},
        {"devices": ("none",)},
        {"split_mode": "none", "main_gpu": 1},
        {"tensor_overrides": (r"blk\.[0-3]\.ffn=CPU", "output=RPC0")},
        {"mmap": False},
        {"n_batch": 8, "n_ubatch": 4},
        {"flash_attn": "off"},
    ],
    ids=str,
)
def test_the_same_tokens_as_alone(layered, pair, values):
    alone = tokens(
        layered, **{key: value for key, value in values.items() if key in {"n_batch", "n_ubatch", "flash_attn"}}
    )
    assert tokens(layered, rpc=pair, **values) == alone


def test_the_plan_says_where_layers_are(layered, pair):
    with LlmSession.open(options(layered, rpc=pair, tensor_split=(2, 1))) as session:
        first, second = session.plan
        assert (first.layers, second.layers, second.has_output) == (tuple(range(6)), (6, 7), True)
        assert pair[0] in first.device.name
        sent = [worker["bytes_sent"] for worker in session.workers()]
        assert [worker["endpoint"] for worker in session.workers()] == pair
        # the plan's sizes are what really went over
        assert sent[0] == pytest.approx(first.weight_bytes, rel=0.1)
        assert sent[1] == pytest.approx(second.weight_bytes, rel=0.1)


def test_devices_in_the_wrong_place(layered, pair):
    with pytest.raises(UsageError, match="there are RPC0, RPC1"):
        LlmSession.open(options(layered, rpc=pair, devices=("RPC2",)))
    with pytest.raises(UsageError, match="-mg 2"):
        LlmSession.open(options(layered, rpc=pair, split_mode="none", main_gpu=2))
    with pytest.raises(UsageError, match="3 shares for 2 devices"):
        LlmSession.open(options(layered, rpc=pair, tensor_split=(1, 1, 1)))


def test_inventory(pair):
    (found,) = inventory.remote(pair[0])
    assert found.endpoint == pair[0]
    assert found.protocol.startswith("8.0")
    assert (found.name, found.type) == ("RPC0", "CPU")
    assert 0 < found.memory_free <= found.memory_total
    assert pair[0] not in found.description
    (second,) = inventory.remote(pair[1], first=1)
    assert second.name == "RPC1", "as a session over both calls it"


def test_too_large_is_said_before_anything_is_sent(tmp_path):
    path = tiny.write(tmp_path / "large.gguf", tiny.Shape(n_embd=256, n_ff=1024, n_layer=4))
    with spawn(["-t", "1", "-m", "12"]) as worker:
        with pytest.raises(ModelError, match=r"would need \d+ MiB for weights and has 12 MiB free") as raised:
            LlmSession.open(options(path, rpc=[worker.endpoint]))
        assert worker.endpoint in str(raised.value)
        # the cache does not fit either, and that only the worker can know
        small = tiny.write(tmp_path / "small.gguf", tiny.Shape(n_embd=256, n_ff=1024, n_layer=1))
        with pytest.raises((ModelError, WorkerError)) as raised:
            LlmSession.open(options(small, rpc=[worker.endpoint], n_ctx=65536))
        assert worker.endpoint in str(raised.value)
        assert tokens(small, rpc=[worker.endpoint]) == tokens(small)


@pytest.mark.parametrize("when", ["before", "loading", "generating", "between"])
def test_a_killed_worker_is_named_and_the_process_goes_on(layered, pair, when):
    with spawn(["-t", "1"]) as victim:
        rpc = [pair[0], victim.endpoint]

        def progress(_what, done, _total):
            if when == "loading" and done > 500:
                victim.kill()

        if when == "before":
            victim.kill()
        with pytest.raises(WorkerLost) as raised:  # noqa: PT012 - where it is noticed differs
            with LlmSession.open(options(layered, rpc=rpc), progress) as session:
                generation = session.generate(PROMPT, GenerateOptions(temperature=0.0, ignore_eos=True))
                for count, _ in enumerate(generation):
                    if when == "generating" and count == 3:
                        victim.kill()
                    if when == "between" and count == 3:
                        break
                victim.kill()
                killed = time.monotonic()
                session.generate(PROMPT, GREEDY).run()
            assert time.monotonic() - killed < 2
        assert raised.value.endpoint == victim.endpoint
    assert tokens(layered, rpc=pair) == tokens(layered)


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A prompt of 2,000 tokens takes it seconds."""
    shape = tiny.Shape(n_embd=512, n_layer=8, n_head=8, n_head_kv=8, n_ff=2048)
    return tiny.write(tmp_path_factory.mktemp("tiny") / "slow.gguf", shape)


def test_cancel_stops_the_workers(slow, pair):
    prompt = [60 + number % 100 for number in range(2000)]
    with LlmSession.open(options(slow, rpc=pair, n_ctx=2048)) as session:
        timer = threading.Timer(0.5, session.cancel)
        timer.start()
        began = time.monotonic()
        with pytest.raises((Cancelled, WorkerError)):  # noqa: PT012 - the last wait may find it
            session.decode(prompt)
            session.synchronize()
        assert time.monotonic() - began < 1.5
        timer.join()
        assert session.failed
    assert tokens(slow, rpc=pair) == tokens(slow)


def test_a_closed_session_frees_the_workers_memory(slow):
    with spawn(["-t", "1", "-m", "400"]) as worker:
        with LlmSession.open(options(slow, rpc=[worker.endpoint])) as session:
            session.generate(PROMPT, GREEDY).run()
            assert inventory.remote(worker.endpoint)[0].memory_free < 400 << 20
        deadline = time.monotonic() + 10
        while inventory.remote(worker.endpoint)[0].memory_free < 400 << 20:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.model
def test_a_real_chat_over_workers(smollm, pair):
    def chat(**values):
        with LlmSession.open(options(smollm, **values)) as session:
            prompt = prompt_tokens(session, [{"role": "user", "content": "What is 2+2?"}])
            return session.generate(prompt, GenerateOptions(n_predict=24, temperature=0.0)).run()

    alone, spread = chat(), chat(rpc=pair)
    assert alone.stop == "eos"
    assert "4" in alone.text
    assert (spread.tokens, spread.text, spread.stop) == (alone.tokens, alone.text, alone.stop)
