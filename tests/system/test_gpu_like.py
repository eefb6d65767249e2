"""A worker on a device that is no CPU: Vulkan on Mesa's software driver. Runs in the interop step.

Its memory is not the worker's own, so everything goes through its driver; its kernels round in their own way, and it
lacks some. The libraries are those of a stock build (backend API 2) while the client's have API 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from remote_tensors import Bench, read, write

from stock.get_stock import stock
from stock.running import PROMPT
from support.cli import EQUAL_KERNELS, wireherd
from support.workers import Worker
from wireherd import ggml
from wireherd.client.plugin import Cluster
from wireherd.ggml.enums import DeviceType
from wireherd.llm.generate import GenerateOptions
from wireherd.llm.session import LlamaOptions, LlmSession
from wireherd.session.options import ClientOptions
from wireherd.testing import families

DRIVER = Path("/usr/share/vulkan/icd.d/lvp_icd.x86_64.json")
#: Vulkan devices that run on the CPU must be named, or ggml passes them over
ENVIRONMENT = {"VK_DRIVER_FILES": str(DRIVER), "GGML_VK_VISIBLE_DEVICES": "0"}
#: half precision inside its products moves logits by more than another CPU's kernels do
MARGIN = 0.5
STEPS = 4
Q8_0, TQ1_0 = 8, 34

pytestmark = [
    pytest.mark.stock,
    pytest.mark.skipif(not DRIVER.exists(), reason="needs Mesa's software Vulkan driver (mesa-vulkan-drivers)"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with_driver = Worker("--ggml", str(stock("5") / "bin"), env=ENVIRONMENT)
    yield with_driver
    with_driver.stop()


@pytest.fixture
def cluster(worker: Worker) -> Iterator[Cluster]:
    joined = Cluster(ggml.load(), [worker.endpoint], ClientOptions())
    yield joined
    joined.close()


def options(path: str | Path, **values: Any) -> LlamaOptions:
    return LlamaOptions(path, **({"n_ctx": 128, "n_ubatch": 16, "threads": 1, "repack": False} | values))


def behind(path: str | Path, prompt: list[int], tokens: list[int]) -> list[float]:
    """By how much each token's logit falls short of the best, on this machine's CPU."""
    with LlmSession.open(options(path)) as alone:
        alone.decode(prompt + tokens[:-1], outputs="all")
        alone.synchronize()
        rows = [alone.context.logits(len(prompt) - 1 + number).copy() for number in range(len(tokens))]
        for row in rows:
            row[alone.eog_tokens()] = -np.inf  # they were not to be chosen
        return [float(row.max() - row[token]) for row, token in zip(rows, tokens, strict=True)]


def assert_right(path: str | Path, endpoint: str) -> int:
    """Greedy tokens are those of this machine alone, but for near ties; returns the bytes sent for the weights."""
    with LlmSession.open(options(path, rpc=[endpoint])) as session:
        sent: int = session.workers()[0]["bytes_sent"]
        prompt = session.tokenize(PROMPT)
        tokens = (
            session.generate(prompt, GenerateOptions(n_predict=STEPS, temperature=0.0, ignore_eos=True)).run().tokens
        )
    assert len(tokens) == STEPS
    assert max(behind(path, prompt, tokens)) <= MARGIN
    return sent


def test_what_it_says_it_is(worker: Worker, cluster: Cluster) -> None:
    (device,) = cluster.devices
    facts = device.facts
    assert (facts.type, facts.name) == (DeviceType.GPU, "Vulkan0")
    assert "llvmpipe" in facts.description
    assert not facts.plain_alloc_size, "its buffer type may pad"
    assert facts.alignment >= 16
    assert 1 << 28 <= facts.max_size < 1 << 40
    told = wireherd("devices", "--rpc", worker.endpoint)
    assert told.code == 0
    assert "RPC0" in told.out
    assert "Vulkan0: llvmpipe" in told.out


def test_its_memory_is_read_and_written_through_the_driver(cluster: Cluster) -> None:
    lib = ggml.load()
    bench = Bench(lib, cluster.device_pointers[0])
    try:
        values = np.random.default_rng(1).standard_normal(5000, np.float32)
        tensor = bench.tensor(5000)
        write(lib, tensor, values)
        write(lib, tensor, values[:7], 400)
        lib.c.ggml_backend_tensor_memset(tensor, 0, 4096, 512)
        values[100:107] = values[:7]
        values[1024:1152] = 0
        assert np.array_equal(read(lib, tensor), values)
        assert not lib.c.ggml_backend_buffer_is_host(bench.buffer)
    finally:
        bench.close()


def test_what_it_has_no_kernel_for(cluster: Cluster) -> None:
    """Asked over the wire: a product with ternary weights, which only the CPU knows."""
    lib = ggml.load()
    (device,) = cluster.devices
    bench = Bench(lib, device.pointer)
    try:
        new = lib.c.ggml_new_tensor_2d
        right = new(bench.context, 0, 256, 4)
        before = cluster.stats()[0]["round_trips"]
        known, unknown = (
            lib.c.ggml_mul_mat(bench.context, new(bench.context, kind, 256, 8), right) for kind in (Q8_0, TQ1_0)
        )
        assert device.supports_op(0, known)
        assert not device.supports_op(0, unknown)
        assert cluster.stats()[0]["round_trips"] == before + 2
        assert lib.cpu_device().supports_op(unknown)
    finally:
        bench.close()


@pytest.mark.parametrize("family", ["gemma3"])
def test_a_tiny_model(family: str, worker: Worker, tmp_path: Path) -> None:
    path = families.write(tmp_path / "a.gguf", ggml.load(), family, "Q8_0")
    assert assert_right(path, worker.endpoint) > path.stat().st_size * 0.8


def test_operations_that_it_lacks_stay_here(worker: Worker, tmp_path: Path) -> None:
    path = families.write(tmp_path / "a.gguf", ggml.load(), "llama", "TQ1_0")
    assert assert_right(path, worker.endpoint) < path.stat().st_size * 0.7, "the ternary weights went to the worker"


@pytest.mark.model
def test_a_real_model(worker: Worker, smollm: str) -> None:
    assert_right(smollm, worker.endpoint)


def test_a_limit_on_its_memory(tmp_path: Path) -> None:
    """The owner's limit holds there too: refused before anything is sent, in one sentence."""
    path = families.write(tmp_path / "a.gguf", ggml.load(), "llama", "Q8_0")
    limited = Worker("--ggml", str(stock("5") / "bin"), "-m", "1", env=ENVIRONMENT)
    try:
        told = wireherd("devices", "--rpc", limited.endpoint)
        assert told.out.splitlines()[-1].split()[4:6] == ["1", "1"]
        refused = wireherd("run", "-m", str(path), "-p", "x", "-n", "1", *EQUAL_KERNELS, "--rpc", limited.endpoint)
        assert refused.code
        assert "1 MiB free" in refused.sentence()
    finally:
        limited.stop()
