"""Every family and type of weights and cache runs over two workers bit for bit as on one machine alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.cli import EQUAL_KERNELS, PERTURBED, wireherd
from support.workers import Worker
from wireherd import ggml
from wireherd.llm.session import LlamaOptions, LlmSession
from wireherd.testing import families

PROMPT = "the old keeper climbed the stairs to the lamp and the ships far out at sea saw it"
STEPS = 6
#: sums of parts moved logits, whose standard deviation is 1, by 0.002 at most
MARGIN = 0.05
WEIGHTS = ["Q2_K", "Q3_K_S", "Q3_K_M", "Q4_0", "Q4_K_M", "Q6_K", "Q8_0", "IQ4_XS", "F16", "BF16"]
#: each family with some of the types, so that all are there; the whole product is for those who have the time
CHOSEN = [
    *(("llama", weights) for weights in ("Q2_K", "Q3_K_S", "Q3_K_M", "Q4_0", "F16")),
    *(("llama-tied", weights) for weights in ("Q6_K", "Q8_0")),
    *(("llama-moe", "Q4_0"), ("qwen2", "BF16"), ("qwen2", "Q4_K_M"), ("qwen3", "IQ4_XS"), ("qwen3", "Q2_K")),
    *(("gemma3", "Q4_K_M"), ("gemma3", "Q3_K_M"), ("qwen3moe", "Q4_K_M"), ("qwen3moe", "Q8_0")),
    *(("gpt-oss", "MXFP4_MOE"), ("gpt-oss", "Q6_K")),
]
PRODUCT = [
    (family, weights)
    for family in families.FAMILIES
    for weights in [*WEIGHTS, "Q4_1", "Q5_0", "Q5_1", "Q4_K_S", "Q5_K_M", "IQ4_NL", "MXFP4_MOE", "F32"]
]
EXPERTS = r"ffn_.*_exps"
#: the first layer goes to the first worker, the second one and the output to the second worker
SHARES = (1, 3)

Trace = tuple[list[int], np.ndarray[Any, np.dtype[np.float32]]]
Traced = Callable[..., Trace]


@pytest.fixture(scope="module")
def pair() -> Iterator[list[str]]:
    """Two workers whose fresh memory is dirty."""
    started: list[Worker] = []
    try:
        for _ in range(2):
            started.append(Worker(env=PERTURBED))  # noqa: PERF401 - those started must be stopped
        yield [worker.endpoint for worker in started]
    finally:
        for worker in started:
            worker.stop()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Path of a family's tiny model of a type, written on first use."""
    folder = tmp_path_factory.mktemp("families")

    def path(family: str, weights: str) -> Path:
        found = folder / f"{family}-{weights}.gguf"
        return found if found.exists() else families.write(found, ggml.load(), family, weights)

    return path


def trace(session: LlmSession) -> Trace:
    """Greedy tokens, and all logits on the way: those of each token of the prompt and of each step."""
    prompt = session.tokenize(PROMPT)
    assert len(prompt) > 32, "the sliding windows must be full"
    session.decode(prompt, outputs="all")
    session.synchronize()
    rows = [session.context.logits(number).copy() for number in range(len(prompt))]
    tokens = []
    for _ in range(STEPS):
        tokens.append(int(rows[-1].argmax()))
        session.decode([tokens[-1]])
        session.synchronize()
        rows.append(session.context.logits(-1).copy())
    return tokens, np.stack(rows)


def options(path: Path, values: dict[str, Any]) -> LlamaOptions:
    alike = {"n_ctx": 256, "n_batch": 128, "n_ubatch": 32, "threads": 1, "repack": False, "flash_attn": "on"}
    return LlamaOptions(path, **(alike | values))


@pytest.fixture(scope="module")
def alone() -> Traced:
    """Trace of a local run, computed once."""
    known: dict[tuple[Any, ...], Trace] = {}

    def run(path: Path, **values: Any) -> Trace:
        key = (path, *sorted(values.items()))
        if key not in known:
            with LlmSession.open(options(path, values)) as session:
                known[key] = trace(session)
        return known[key]

    return run


def assert_same(got: Trace, wanted: Trace) -> None:
    assert got[0] == wanted[0]
    assert np.isfinite(wanted[1]).all()
    assert wanted[1].std() > 0.1, "a model that says nothing proves nothing"
    assert np.array_equal(got[1], wanted[1]), f"logits differ by up to {np.abs(got[1] - wanted[1]).max()}"


def over(path: Path, pair: list[str], **values: Any) -> tuple[Trace, list[int]]:
    """Trace over the workers, and bytes that each was sent while the model was loaded."""
    with LlmSession.open(options(path, {"rpc": pair, **values})) as session:
        sent = [worker["bytes_sent"] for worker in session.workers()]
        return trace(session), sent


@pytest.mark.parametrize(("family", "weights"), CHOSEN)
def test_layers_over_two_workers(family: str, weights: str, model: Any, pair: list[str], alone: Traced) -> None:
    path = model(family, weights)
    traced, sent = over(path, pair, tensor_split=SHARES)
    assert_same(traced, alone(path))
    assert min(sent) > path.stat().st_size / 4, "a worker got too few of the weights"


@pytest.mark.slow
@pytest.mark.parametrize(("family", "weights"), [case for case in PRODUCT if case not in CHOSEN])
def test_every_family_of_every_type(family: str, weights: str, model: Any, pair: list[str], alone: Traced) -> None:
    test_layers_over_two_workers(family, weights, model, pair, alone)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "gemma3", "qwen3moe", "gpt-oss"])
def test_quantised_caches(family: str, model: Any, pair: list[str], alone: Traced) -> None:
    path = model(family, "Q4_0")
    values = {"type_k": "q8_0", "type_v": "q8_0"}
    traced, _ = over(path, pair, **values)
    assert_same(traced, alone(path, **values))
    assert not np.array_equal(traced[1], alone(path)[1]), "the cache is not of that type"


@pytest.mark.parametrize("kind", ["f32", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"])
def test_every_type_of_cache(kind: str, model: Any, pair: list[str], alone: Traced) -> None:
    path = model("llama", "Q4_0")
    values = {"type_k": kind, "type_v": kind}
    traced, _ = over(path, pair, **values)
    assert_same(traced, alone(path, **values))


@pytest.mark.parametrize("family", ["llama-tied", "qwen2", "gemma3", "gpt-oss"])
def test_without_flash_attention(family: str, model: Any, pair: list[str], alone: Traced) -> None:
    path = model(family, "Q4_0")
    traced, _ = over(path, pair, flash_attn="off")
    assert_same(traced, alone(path, flash_attn="off"))


@pytest.mark.parametrize("family", ["llama-moe", "qwen3moe", "gpt-oss"])
@pytest.mark.parametrize("values", [{"cpu_moe": True}, {"n_cpu_moe": 1}], ids=str)
def test_experts_on_the_cpu(family: str, values: Any, model: Any, pair: list[str], alone: Traced) -> None:
    path = model(family, "Q4_0")
    traced, sent = over(path, pair, tensor_split=SHARES, **values)
    assert_same(traced, alone(path))
    assert sent[0] < path.stat().st_size / 4, "the first layer's experts are on the worker"
    if "n_cpu_moe" in values:
        assert sent[1] > path.stat().st_size / 4, "the second layer's experts are not"


@pytest.mark.parametrize(
    ("family", "rules", "told"),  # whether each worker gets more or less than without the rules
    [
        ("llama", (r"blk\.0\.ffn=RPC0[{1}]",), (-1, 1)),
        ("llama", ("token_embd=RPC0",), (1, 0)),
        ("llama", ("ffn=RPC0[{0}]", "attn=RPC1"), (0, 0)),
        ("llama-tied", (r"^output_norm=CPU", "blk=RPC1"), (-1, 1)),
        ("qwen2", ("token_embd=RPC0", r"blk\.0\.attn=RPC1"), (-1, 1)),
        ("gemma3", ("token_embd=RPC1", "ffn_down=CPU"), (-1, -1)),
        ("qwen3moe", (EXPERTS + "=CPU",), (-1, -1)),
        ("qwen3moe", (EXPERTS + "=RPC0[{1}]", "attn=RPC0[{0}]"), (-1, 1)),
        ("gpt-oss", ("ffn_down_exps=RPC0", "ffn_up_exps=RPC1", "attn_output=CPU"), (-1, -1)),
    ],
    ids=str,
)
def test_tensors_where_they_are_put(
    family: str, rules: tuple[str, ...], told: tuple[int, int], model: Any, pair: list[str], alone: Traced
) -> None:
    path = model(family, "Q4_0")
    # the buffer type of a worker's first device is RPC0[its address], whatever its number in the cluster
    named = tuple(rule.format(*pair) for rule in rules)
    with LlmSession.open(options(path, {"rpc": pair, "tensor_split": SHARES})) as session:
        plain = [worker["bytes_sent"] for worker in session.workers()]
    traced, sent = over(path, pair, tensor_split=SHARES, tensor_overrides=named)
    assert_same(traced, alone(path))
    moved = [(now - before) / path.stat().st_size for now, before in zip(sent, plain, strict=True)]
    assert all((move > 0.02) == (to > 0) and (move < -0.02) == (to < 0) for move, to in zip(moved, told, strict=True))


@pytest.mark.parametrize("family", families.FAMILIES)
def test_every_layer_split_over_two_workers(family: str, model: Any, pair: list[str]) -> None:
    """Sums of parts round differently: each token must be the best of a run alone, or nearly."""
    path = model(family, "Q4_0")
    with LlmSession.open(options(path, {"rpc": pair, "split_mode": "tensor"})) as session:
        tokens, _ = trace(session)
        assert min(worker["bytes_sent"] for worker in session.workers()) > path.stat().st_size / 4
    with LlmSession.open(options(path, {})) as alone:
        prompt = alone.tokenize(PROMPT)
        for number, token in enumerate(tokens):
            alone.decode(tokens[number - 1 : number] if number else prompt)  # in the same shapes
            alone.synchronize()
            logits = alone.context.logits(-1)
            assert logits[token] >= logits.max() - MARGIN, f"token {number}"


def test_a_buffer_type_that_is_not_there(model: Any, pair: list[str]) -> None:
    outcome = wireherd(
        *("run", "-m", str(model("llama", "Q4_0")), "-p", "x", "-n", "1", *EQUAL_KERNELS),
        *("--rpc", pair[0], "-ot", "ffn=CUDA0"),
    )
    assert outcome.code
    assert outcome.sentence().endswith(f"there are CPU, RPC0 or RPC0[{pair[0]}]")
