from __future__ import annotations

import csv
import io
import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from wireherd.bench.cases import BenchSettings, Case
from wireherd.bench.report import FORMATS, Result, Setup, build_number, json_lines, markdown_lines, record
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
    assert "".join(markdown_lines(SETUP, SETTINGS, iter(RESULTS))) == (
        "| model                          |       size |     params | backend    | ngl |            test |                  t/s |\n"
        "| ------------------------------ | ---------: | ---------: | ---------- | --: | --------------: | -------------------: |\n"
        "| llama 256M Q4_1                |  93.46 MiB |   134.52 M | RPC        |  99 |           pp512 |       192.00 ± 90.51 |\n"
        "| llama 256M Q4_1                |  93.46 MiB |   134.52 M | RPC        |  99 |           tg128 |        128.00 ± 0.00 |\n"
        "\nbuild: b11549 (11549)\n"
    )


def test_columns_appear_where_settings_differ():
    llama = replace(LLAMA, n_ubatch=128, flash_attn="on", tensor_split=(3.0, 1.0), repack=False)
    header = next(iter(markdown_lines(replace(SETUP, threads=1), BenchSettings(llama=llama), iter(()))))
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
    header = next(iter(markdown_lines(replace(SETUP, backend="CPU"), SETTINGS, iter(()))))
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
    assert list(rows[0])[-1] == "rpc", "own keys stand after llama-bench's"


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
