from __future__ import annotations

import csv
import io
import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from llama_bench import STANDARD

from wireherd.bench.cases import BenchSettings, Case
from wireherd.bench.report import FORMATS, json_lines, markdown_lines, record
from wireherd.bench.result import Result, Setup, build_number
from wireherd.bench.traffic import Traffic
from wireherd.llm.options import LlamaOptions

SETUP = Setup(
    build="b11549",
    cpu="A processor",
    backend="RPC",
    model_type="llama 256M Q4_1",
    model_size=98_000_000,
    model_n_params=134_515_008,
    threads=4,
    default_threads=4,
)
LLAMA = LlamaOptions(model=Path("smol.gguf"), rpc=("a:1", "b:2"), n_gpu_layers=99)
SETTINGS = BenchSettings(llama=LLAMA)
RESULTS = [
    Result(Case(n_prompt=512), (2_000_000_000, 4_000_000_000), "2026-11-30T12:00:00Z"),
    Result(Case(n_gen=128), (1_000_000_000,), "2026-11-30T12:00:10Z"),
]


def test_table_as_llama_bench_prints_it():
    local = BenchSettings(llama=replace(LLAMA, rpc=()))
    assert "".join(markdown_lines(replace(SETUP, backend="BLAS"), local, iter(RESULTS))) == (
        "| model                          |       size |     params | backend    | ngl |            test |                  t/s |\n"
        "| ------------------------------ | ---------: | ---------: | ---------- | --: | --------------: | -------------------: |\n"
        "| llama 256M Q4_1                |  93.46 MiB |   134.52 M | BLAS       |  99 |           pp512 |       192.00 ± 90.51 |\n"
        "| llama 256M Q4_1                |  93.46 MiB |   134.52 M | BLAS       |  99 |           tg128 |        128.00 ± 0.00 |\n"
        "\nbuild: b11549 (11549)\n"
    )


def test_own_columns_stand_behind_when_workers_take_part():
    went = Traffic(2, "8.0+herd,5.0", 256, 128_000, 12_800_000, 1, 255, 128, 3)
    settings = replace(SETTINGS, link="3 ms")
    lines = "".join(markdown_lines(SETUP, settings, iter([replace(RESULTS[1], traffic=went)]))).splitlines()
    names, row = ([cell.strip() for cell in lines[n].strip("|").split("|")] for n in (0, 2))
    assert names[-10:] == ["t/s", "link", "workers", "protocol", "trips", "up B", "down B", "sent", "rerun", "hits"]
    assert row[-9:] == ["3 ms", "2", "8.0+herd,5.0", "2.00", "1000", "100000", "0.01", "1.99", "1.00"]
    found = record(SETUP, settings, replace(RESULTS[1], traffic=went))
    assert list(found)[: len(STANDARD)] == STANDARD, "llama-bench's keys come first, in its order"
    assert (found["workers"], found["protocol"], found["link"]) == (2, "8.0+herd,5.0", "3 ms")
    assert (found["round_trips_per_token"], found["bytes_up_per_token"]) == (2.0, 1000.0)
    assert (found["bytes_down_per_token"], found["graphs_sent_per_token"]) == (100_000.0, 0.0078)
    assert (found["graph_cache_hits_per_token"], found["graph_cache_resets"]) == (1.0, 3)


def test_columns_appear_where_settings_differ():
    llama = replace(LLAMA, n_ubatch=128, flash_attn="on", tensor_split=(3.0, 1.0), repack=False)
    settings = BenchSettings(llama=replace(llama, rpc=()))
    header = next(iter(markdown_lines(replace(SETUP, threads=1), settings, iter(()))))
    names = [cell.strip() for cell in header.splitlines()[0].strip("|").split("|")]
    assert names == [
        "model",
        "size",
        "params",
        "backend",
        "ngl",
        "threads",
        "n_ubatch",
        "fa",
        "ts",
        "repack",
        "test",
        "t/s",
    ]


def test_a_local_run_shows_threads_and_no_layers():
    settings = BenchSettings(llama=replace(LLAMA, rpc=()))
    header = next(iter(markdown_lines(replace(SETUP, backend="CPU"), settings, iter(()))))
    names = [cell.strip() for cell in header.splitlines()[0].strip("|").split("|")]
    assert names == ["model", "size", "params", "backend", "threads", "test", "t/s"]


def test_large_models_are_counted_in_gib_and_billions():
    setup = replace(SETUP, model_size=5 << 30, model_n_params=7_240_000_000)
    row = list(markdown_lines(setup, SETTINGS, iter(RESULTS)))[1]
    assert "5.00 GiB" in row
    assert "7.24 B" in row


def test_json_is_an_array_of_records():
    rows = json.loads("".join(json_lines(SETUP, SETTINGS, iter(RESULTS))))
    assert rows == [record(SETUP, SETTINGS, result) for result in RESULTS]
    assert rows[0]["samples_ts"] == [256.0, 128.0]
    assert rows[0]["avg_ts"] == 192.0
    assert rows[0]["stddev_ts"] == pytest.approx(90.509668)
    assert rows[0]["stddev_ns"] == 1_414_213_562
    assert rows[1]["stddev_ts"] == 0
    assert rows[0]["rpc"] == ["a:1", "b:2"]
    own = list(rows[0])[list(rows[0]).index("samples_ts") + 1 :]
    assert own[:3] == ["rpc", "link", "set_tensor"], "own keys stand after llama-bench's"


def test_json_without_results():
    assert json.loads("".join(json_lines(SETUP, SETTINGS, iter(())))) == []


@pytest.mark.parametrize(("value", "expected"), [("on", True), ("off", False), ("auto", -1)])
def test_flash_attention_is_a_bool_where_it_is_known(value, expected):
    found = record(SETUP, BenchSettings(llama=replace(LLAMA, flash_attn=value)), RESULTS[0])["flash_attn"]
    assert type(found) is type(expected)
    assert found == expected


@pytest.mark.parametrize(("build", "number"), [("b11549", 11549), ("ggml 0.20.2", 0), ("", 0), ("b", 0)])
def test_build_number(build, number):
    assert build_number(build) == number


def test_csv_and_sql_hold_the_same_rows():
    settings = BenchSettings(llama=replace(LLAMA, model=Path('it\'s, a "model".gguf')))
    text = {name: "".join(FORMATS[name](SETUP, settings, iter(RESULTS))) for name in ("csv", "sql")}
    rows = list(csv.DictReader(io.StringIO(text["csv"])))
    with sqlite3.connect(":memory:") as database:
        database.executescript(text["sql"] + text["sql"])
        database.row_factory = sqlite3.Row
        found = [dict(row) for row in database.execute("SELECT * FROM llama_bench")]
    database.close()
    assert found[:2] == found[2:]
    for row, stored, result in zip(rows, found, RESULTS, strict=False):
        wanted = record(SETUP, settings, result)
        keys = [key for key in wanted if not key.startswith("samples_")]
        assert list(row) == list(stored) == keys
        for key in keys:
            value = ",".join(wanted[key]) if isinstance(wanted[key], list) else wanted[key]
            assert stored[key] == value
            assert row[key] == str(int(value) if isinstance(value, bool) else value)


def test_json_lines():
    lines = "".join(FORMATS["jsonl"](SETUP, SETTINGS, iter(RESULTS))).splitlines()
    assert [json.loads(line) for line in lines] == [record(SETUP, SETTINGS, result) for result in RESULTS]
