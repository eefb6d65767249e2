"""Comparisons: what is asked for, how pairs alternate, what is printed; and real workers in the end."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from llama_bench import STANDARD

from wireherd.bench.bed import Site
from wireherd.bench.cases import BenchSettings, Case
from wireherd.bench.compare import Both, Comparer, Comparison, Wanted, sides
from wireherd.bench.compare_report import FORMATS, comparison_record
from wireherd.bench.result import Result, Setup
from wireherd.bench.runner import Sample
from wireherd.bench.traffic import Traffic
from wireherd.cli.main import main
from wireherd.errors import UsageError
from wireherd.llm.options import LlamaOptions
from wireherd.protocol.version import NEWEST, Version

LLAMA = LlamaOptions(model=Path("smol.gguf"), rpc=("a:1",))
SETTINGS = BenchSettings(llama=LLAMA, prompts=(), generated=(8,), repetitions=3)
SETUP = Setup("b11549", "A processor", "RPC", "llama", 1000, 1000, 1, 1)
WANTED = Wanted("set-tensor", "sync", "async")
BOTH = Both(
    WANTED,
    SETUP,
    replace(SETTINGS, llama=replace(LLAMA, set_tensor="sync")),
    SETUP,
    SETTINGS,
)
FOUND = Comparison(
    WANTED,
    Case(n_gen=8),
    Result(Case(n_gen=8), (200, 300, 260), "2026-12-01T00:00:00Z", Traffic(1, "8.0+herd", 240)),
    Result(Case(n_gen=8), (100, 100, 130), "2026-12-01T00:00:00Z", Traffic(1, "8.0+herd", 24)),
    (2.0, 3.0, 2.0),
)


@pytest.mark.parametrize(
    "text",
    [
        "set-tensor=sync,async",
        "graph-cache=0,1024",
        "graph-cache-policy=reset,lru",
        "protocol=5.0,herd",
        "split=layer,tensor",
        "draft=off,on",
        "workers=0,1",
        "rpc=a:1,b:2;c:3,d:4",
    ],
)
def test_keys(text):
    wanted = Wanted.parse(text)
    separator = ";" if text.startswith("rpc") else ","
    assert f"{wanted.key}={wanted.a}{separator}{wanted.b}" == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "speed=1,2",
        "set-tensor",
        "set-tensor=sync",
        "set-tensor=sync,never",
        "graph-cache=0,-1",
        "graph-cache=0,99999999999",
        "protocol=1.0,herd",
        "protocol=7.0,new",
        "split=layer,row",
        "rpc=a,b",
        "draft=on,off,on",
        "workers=1,65",
    ],
)
def test_no_keys(text):
    with pytest.raises(UsageError):
        Wanted.parse(text)


def test_what_the_modes_are():
    a, b = sides(Wanted("graph-cache", "0", "64"), SETTINGS, Site(("a:1",)))
    assert (a.settings.llama.graph_cache, b.settings.llama.graph_cache) == (0, 64)
    assert a.site == b.site == Site(("a:1",))
    a, b = sides(Wanted("protocol", "7.0", "herd"), SETTINGS, Site(fresh=2))
    assert a.site == Site(fresh=2, protocol=Version.parse("7.0"), plain=True)
    assert b.site == Site(fresh=2, protocol=NEWEST, plain=False)
    a, b = sides(Wanted("rpc", "x:1,y:2", "workers"), SETTINGS, Site(fresh=2), ("stock {rpc}", ""))
    assert (a.site, b.site, a.driver, b.driver) == (Site(("x:1", "y:2")), Site(fresh=2), "stock {rpc}", "")


@pytest.mark.parametrize(
    ("wanted", "site"),
    [
        (Wanted("protocol", "7.0", "herd"), Site(("a:1",))),
        (Wanted("set-tensor", "sync", "sync"), Site(fresh=1)),
        (Wanted("split", "layer", "tensor"), Site()),
        (Wanted("draft", "off", "on"), Site(fresh=1)),
        (Wanted("rpc", "a:1", "workers"), Site()),
    ],
)
def test_modes_that_make_no_sense(wanted, site):
    with pytest.raises(UsageError):
        sides(wanted, SETTINGS, site)


class Recorded:
    """Stands for a session: notes when it runs, and takes as long as it is told."""

    def __init__(self, name: str, times: list[int], order: list[str]) -> None:
        self.settings = SETTINGS
        self.name, self.times, self.order = name, iter(times), order

    def setup(self) -> Setup:
        return SETUP

    def warm_up(self, case: Case) -> None:
        self.order.append(f"warm {self.name}")

    def run(self, case: Case) -> Sample:
        self.order.append(self.name)
        return Sample(next(self.times), Traffic(1, "8.0+herd", 10))


def test_pairs_alternate_and_ratios_are_taken_pair_by_pair():
    order: list[str] = []
    comparer = Comparer.__new__(Comparer)
    comparer.wanted = WANTED
    comparer.a, comparer.b = Recorded("a", [200, 300, 260], order), Recorded("b", [100, 100, 130], order)
    (found,) = comparer.comparisons()
    assert order == ["warm a", "warm b", "a", "b", "b", "a", "a", "b"]
    assert found.ratios == (2.0, 3.0, 2.0)
    assert found.ratio == 2.0
    assert found.a.traffic.round_trips == 30
    assert tuple(found.interval) == (2.0, 3.0, 0.75)


def test_json_has_one_object_a_test():
    (row,) = json.loads("".join(FORMATS["json"](BOTH, iter([FOUND]))))
    assert row == comparison_record(BOTH, FOUND)
    assert (row["compare"], row["ratio"], row["ratio_min"], row["ratio_max"]) == ("set-tensor", 2.0, 2.0, 3.0)
    assert list(row["a"])[: len(STANDARD)] == list(row["b"])[: len(STANDARD)] == STANDARD
    assert (row["a"]["set_tensor"], row["b"]["set_tensor"]) == ("sync", "async")
    assert (row["a"]["round_trips_per_token"], row["b"]["round_trips_per_token"]) == (10.0, 1.0)
    (line,) = "".join(FORMATS["jsonl"](BOTH, iter([FOUND]))).splitlines()
    assert json.loads(line) == row


def test_csv_and_sql_have_a_row_for_each_mode():
    text = {name: "".join(FORMATS[name](BOTH, iter([FOUND]))) for name in ("csv", "sql")}
    rows = list(csv.DictReader(io.StringIO(text["csv"])))
    with sqlite3.connect(":memory:") as database:
        database.executescript(text["sql"])
        database.row_factory = sqlite3.Row
        stored = [dict(row) for row in database.execute("SELECT * FROM llama_bench_compare")]
    database.close()
    for found in (rows, stored):
        assert [row["compare_mode"] for row in found] == ["sync", "async"]
        assert [float(row["ratio"]) for row in found] == [2.0, 2.0]
        assert [float(row["round_trips_per_token"]) for row in found] == [10.0, 1.0]


def test_the_table_shows_columns_that_either_side_needs():
    local = replace(SETTINGS, llama=replace(LLAMA, rpc=(), split_mode="none"))
    both = Both(WANTED, replace(SETUP, backend="CPU"), local, SETUP, SETTINGS)
    lines = "".join(FORMATS["md"](both, iter([FOUND]))).splitlines()
    names, _, a, b = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines[:4])
    assert len(names) == len(a) == len(b)
    assert {"sm", "ngl", "trips", "set-tensor"} <= set(names)
    assert (a[names.index("sm")], b[names.index("sm")]) == ("none", "layer")
    assert (a[-2:], b[-2:]) == (["", ""], ["2.000", "2.000 - 3.000"])
    assert names[-1] == "75 % interval", "three pairs do not settle more"


# ---- real workers


def run(capsys, *words):
    code = main(["bench", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_over_a_link_waiting_costs_round_trips(capsys, tiny_model):
    code, out, err = run(
        capsys,
        *("-m", tiny_model, "--workers", "1", "-t", "1", "-p", "0", "-n", "6", "-r", "3", "--link", "5"),
        *("--compare", "set-tensor=sync,async", "-o", "json", "-oe", "md", "--progress"),
    )
    assert code == 0, err
    (row,) = json.loads(out)
    assert row["b"]["link"] == "5 ms"
    assert row["a"]["round_trips_per_token"] > row["b"]["round_trips_per_token"] >= 1.0
    assert row["ratio"] > 1.5, "a model of two layers is all waiting"
    assert all(ns > 6 * 10_000_000 for ns in row["b"]["samples_ns"]), "each token there and back at least"
    assert row["ratio_min"] <= row["ratio"] <= row["ratio_max"]
    assert "pair 3/3, async" in err
    assert "| async" in err


def test_protocols_have_workers_of_their_own(capsys, tiny_model):
    code, out, err = run(
        capsys,
        *("-m", tiny_model, "--workers", "1", "-t", "1", "-p", "8", "-n", "0", "-r", "1"),
        *("--compare", "protocol=5.0,herd", "-o", "json"),
    )
    assert code == 0, err
    (row,) = json.loads(out)
    assert (row["a"]["protocol"], row["b"]["protocol"]) == ("5.0", f"{NEWEST.short}+herd")
    assert row["a"]["workers"] == row["b"]["workers"] == 1


DRIVER = """
import json, sys, time
assert sys.argv[1] == "a:1,b:2", sys.argv
print(json.dumps({"build": "b9999"}), flush=True)
for line in sys.stdin:
    case = json.loads(line)
    if case["n_gen"] == 3: print(json.dumps({"error": "three is too many"}), flush=True)
    else: print(json.dumps({"ns": 1000 * (case["n_prompt"] + case["n_gen"])}), flush=True)
"""


def driven(tmp_path, tiny_model, generated):
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    command = f"{sys.executable} {script} {{rpc}}"
    return (
        *("-m", tiny_model, "-t", "1", "-p", "0", "-n", generated, "-r", "2", "-o", "json", "-ngl", "0"),
        *("--compare", "rpc=a:1,b:2;a:1,b:2", "--driver-a", command, "--driver-b", command),
    )


def test_programs_can_be_compared(capsys, tmp_path, tiny_model):
    code, out, err = run(capsys, *driven(tmp_path, tiny_model, "2"))
    assert code == 0, err
    (row,) = json.loads(out)
    assert (row["a"]["build_commit"], row["a"]["build_number"]) == ("b9999", 9999)
    assert row["a"]["samples_ns"] == [2000, 2000]
    assert row["ratio"] == 1.0


def test_a_program_says_what_is_wrong(capsys, tmp_path, tiny_model):
    code, _, err = run(capsys, *driven(tmp_path, tiny_model, "3"))
    assert code == 1
    assert err.strip().endswith("three is too many")


@pytest.mark.parametrize(
    "flags",
    [
        ("--compare", "nonsense"),
        ("--compare", "split=layer,tensor"),
        ("--workers", "1", "--rpc", "a:1"),
        ("--worker-threads", "2"),
        ("--link", "3"),
        ("--link", "much", "--workers", "1"),
        ("--driver-a", "true"),
        ("--plot", "there/is/none.png"),
        ("--plot", "words.txt"),
        ("--text", "nowhere"),
        ("--workers", "1", "--worker-protocol", "1.0"),
        ("--compare", "rpc=x:1;x:1", "--driver-a", "'", "--driver-b", "'"),
        ("--compare", "set-tensor=sync,async", "--workers", "1", "--profile"),
    ],
)
def test_usage_errors_are_one_sentence(capsys, tiny_model, flags):
    code, out, err = run(capsys, "-m", tiny_model, "-p", "1", "-n", "0", *flags)
    assert (code, out) == (2, ""), err
    assert len(err.strip().splitlines()) == 1


def test_a_link_lies_between_workers_too(capsys, tiny_model):
    code, out, err = run(
        capsys,
        *("-m", tiny_model, "--workers", "2", "-t", "1", "-p", "0", "-n", "3", "-r", "2", "--link", "5"),
        *("--compare", "split=layer,tensor", "-o", "json"),
    )
    assert code == 0, err
    (row,) = json.loads(out)
    tensor = row["b"]
    assert tensor["split_mode"] == "tensor"
    assert tensor["round_trips_per_token"] <= 2, "the client waits for logits only, of both at once"
    # Two layers are four sums, and the logits are asked for and come back. A worker that alone has a part of a sum waits
    # for nobody, so not every sum costs a hop; were the workers side by side, a token would take two hops.
    assert all(ns > 3 * (2 + 2) * 5_000_000 for ns in tensor["samples_ns"])


def test_drafts_are_measured_behind_a_text(capsys, tmp_path, tiny_model):
    text = tmp_path / "text"
    text.write_text("one two three, one two three, one two three, one two")
    flags = ("-m", tiny_model, "-t", "1", "-n", "12", "-r", "2", "--lookup", "--text", str(text))
    code, out, err = run(capsys, *flags, "--compare", "draft=off,on", "-o", "json", "-oe", "md")
    assert code == 0, err
    (row,) = json.loads(out)
    assert (row["mode_a"], row["mode_b"], row["test"]) == ("off", "on", "tg12")
    assert row["a"]["text_draft_n"] == 0
    assert row["a"]["text_prompt_n"] == row["b"]["text_prompt_n"] > 10
    assert 0 <= row["b"]["text_draft_n_accepted"] <= row["b"]["text_draft_n"]
    assert all(name in err for name in ("PN", "PP", "TG", "DN", "DA"))
    code, out, err = run(capsys, *flags, "-o", "jsonl")
    assert code == 0, err
    assert json.loads(out)["text_prompt_n"] == row["a"]["text_prompt_n"]


@pytest.mark.parametrize("flags", [("-p", "8"), ("-d", "8"), ("-pg", "8,8"), ("--compare", "set-tensor=sync,async")])
def test_drafts_are_measured_alone(capsys, tiny_model, flags):
    code, out, err = run(capsys, "-m", tiny_model, "-n", "4", "-t", "1", "--lookup", *flags)
    assert (code, out) == (2, ""), err
    assert len(err.strip().splitlines()) == 1
