"""The verbs as a user and as a script sees them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from support.cli import GREEDY, wireherd

#: what scripts that read llama-bench's JSON look for
BENCH_KEYS = re.split(
    r"\s+",
    """build_commit build_number cpu_info gpu_info backends model_filename model_type model_size model_n_params
n_batch n_ubatch n_threads cpu_mask cpu_strict poll type_k type_v n_gpu_layers n_cpu_moe split_mode main_gpu
no_kv_offload flash_attn devices tensor_split tensor_buft_overrides use_mmap use_direct_io embeddings no_op_offload
no_host repack fit_target fit_min_ctx n_prompt n_gen n_depth test_time avg_ns stddev_ns avg_ts stddev_ts samples_ns
samples_ts""",
)


@pytest.fixture(scope="module")
def pair() -> Any:
    from support.workers import Worker

    started = [Worker(), Worker()]
    yield started
    for worker in started:
        worker.stop()


def endpoints(pair: Any) -> str:
    return ",".join(worker.endpoint for worker in pair)


def test_bench_json_reads_as_llama_bench(pair: Any, tiny_model: str) -> None:
    outcome = wireherd(
        *("bench", "-m", tiny_model, "--rpc", endpoints(pair), "-p", "64,32", "-n", "8", "-r", "3", "-t", "1"),
        *("-ub", "32", "-o", "json"),
    )
    assert outcome.code == 0, outcome.err
    rows = json.loads(outcome.out)
    assert [(row["n_prompt"], row["n_gen"]) for row in rows] == [(64, 0), (32, 0), (0, 8)]
    for row in rows:
        assert list(row)[: len(BENCH_KEYS)] == BENCH_KEYS
        assert len(row["samples_ns"]) == len(row["samples_ts"]) == 3
        tokens = row["n_prompt"] + row["n_gen"]
        assert row["avg_ts"] == pytest.approx(sum(tokens * 1e9 / ns for ns in row["samples_ns"]) / 3, rel=1e-3)
        assert row["avg_ns"] == pytest.approx(sum(row["samples_ns"]) / 3, rel=1e-3)
        assert row["backends"] == "RPC"
        assert row["rpc"] == endpoints(pair).split(",")
        assert row["n_ubatch"] == 32
        assert row["model_n_params"] > 0
        assert isinstance(row["build_number"], int)


def test_bench_table(pair: Any, tiny_model: str) -> None:
    outcome = wireherd(
        *("bench", "-m", tiny_model, "--rpc", endpoints(pair), "-p", "32", "-n", "8", "-r", "2", "-t", "1")
    )
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    header = [cell.strip() for cell in lines[0].strip("|").split("|")]
    assert header[:5] == ["model", "size", "params", "backend", "ngl"]
    speed = header.index("t/s")
    assert header[speed - 1 :] == [
        *("test", "t/s"),
        *("workers", "protocol", "trips", "up B", "down B", "sent", "rerun", "hits"),
    ]
    assert re.fullmatch(r"\|( :?-+:? \|)+", lines[1])
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:4]]
    assert [row[speed - 1] for row in rows] == ["pp32", "tg8"]
    assert all(re.fullmatch(r"\d+\.\d\d ± \d+\.\d\d", row[speed]) for row in rows)
    assert len({len(line) for line in lines[:4]}) == 1, "the columns are ragged"


def test_bench_profile(pair: Any, tiny_model: str) -> None:
    outcome = wireherd(
        *("bench", "-m", tiny_model, "--rpc", endpoints(pair), "-p", "0", "-n", "16", "-r", "1", "-t", "1", "--profile")
    )
    assert outcome.code == 0, outcome.err
    for word in ("sockets", "callbacks", "libllama"):
        assert word in outcome.out


def test_bench_alone(tiny_model: str) -> None:
    outcome = wireherd("bench", "-m", tiny_model, "-p", "16", "-n", "4", "-r", "1", "-t", "1", "-o", "json")
    assert outcome.code == 0, outcome.err
    assert {row["backends"] for row in json.loads(outcome.out)} == {"CPU"}


def test_run_streams_text_and_nothing_else(pair: Any, tiny_model: str) -> None:
    outcome = wireherd("run", "-m", tiny_model, "--rpc", endpoints(pair), "-p", "hello", "-n", "8", *GREEDY)
    assert outcome.code == 0
    assert outcome.err == "", "a pipe gets no progress"
    assert outcome.out


def test_run_json_is_one_object(pair: Any, tiny_model: str) -> None:
    outcome = wireherd("run", "--json", "-m", tiny_model, "--rpc", endpoints(pair), "-p", "hello", "-n", "8", *GREEDY)
    answer = json.loads(outcome.out)
    assert set(answer) >= {"text", "tokens", "timings", "workers"}
    assert set(answer["timings"]) >= {"prompt_n", "prompt_per_second", "predicted_n", "predicted_per_second"}
    assert all(isinstance(token, int) for token in answer["tokens"])
    for worker in answer["workers"]:
        assert set(worker) >= {"endpoint", "protocol", "bytes_sent", "bytes_received", "round_trips"}


def test_devices_names_what_is_there(pair: Any) -> None:
    outcome = wireherd("devices", "--rpc", endpoints(pair))
    assert outcome.code == 0, outcome.err
    for number, worker in enumerate(pair):
        (line,) = (line for line in outcome.out.splitlines() if worker.endpoint in line)
        assert line.split()[2] == f"RPC{number}", "the name that -dev takes"


@pytest.mark.model
@pytest.mark.timeout(180)
def test_demo(smollm: str) -> None:
    """The demo ends well only if the text over two workers is the local one."""
    del smollm  # fetched before the clock starts
    outcome = wireherd("demo", timeout_s=170)
    assert outcome.code == 0, outcome.err
    for word in ("local", "one worker", "two workers"):
        assert word in outcome.out.lower() or word.replace("one", "1").replace("two", "2") in outcome.out.lower()


@pytest.mark.parametrize("verb", ["demo", "worker", "run", "devices", "pull", "explain", "bench"])
def test_help(verb: str) -> None:
    outcome = wireherd(verb, "--help")
    assert outcome.code == 0
    assert outcome.err == ""
    assert verb in outcome.out


def test_version() -> None:
    from wireherd import __version__

    assert wireherd("--version").out.strip() == f"wireherd {__version__}"
