"""Flags of speculative decoding: what they become, what they refuse, and what `run` tells of it."""

import argparse
import json
import sys

import pytest

from wireherd.cli import drafting, options
from wireherd.cli.main import main
from wireherd.llm.fetch import silent
from wireherd.testing import tiny

QUICK = ("-t", "1", "-c", "256", "-fa", "on", "--no-repack", "--ignore-eos", "--temp", "0", "-n", "24")
PROMPT = "the man and the woman and the man and the woman and the"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


def parsed(*words):
    parser = argparse.ArgumentParser()
    options.add_model(parser)
    drafting.add_draft(parser)
    return drafting.draft_options(parser.parse_args(["-m", "x", *words]), silent)


def refused(capsys, *words):
    assert main(words) in {1, 2}
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_llama_cpps_names(model):
    assert parsed() is None
    found = parsed("-md", model, "--spec-draft-n-max", "8", "--spec-draft-n-min", "2", "--spec-draft-p-min", "0.5",
                   "-ngld", "3", "--rpc-draft", "a:1, b:2")  # fmt: skip
    assert (str(found.model), found.n_max, found.n_min, found.p_min) == (model, 8, 2, 0.5)
    assert (found.n_gpu_layers, found.rpc, found.lookup) == (3, ("a:1", "b:2"), False)
    found = parsed("--lookup", "--lookup-ngram-min", "1", "--lookup-ngram-max", "3")
    assert (found.model, found.lookup, found.ngram_min, found.ngram_max) == (None, True, 1, 3)
    assert (found.n_max, found.n_min, found.p_min, found.n_gpu_layers) == (16, 0, 0.75, -1)


@pytest.mark.parametrize("way", ["-md", "--lookup"])
def test_json_has_the_figures(capsys, model, way):
    words = ("-md", model, "--spec-draft-p-min", "0") if way == "-md" else ("--lookup", "--lookup-ngram-min", "1")
    found = {}
    for how, flags in (("plain", ()), ("drafted", words)):
        assert main(("run", "--json", "-m", model, "-p", PROMPT, *QUICK, *flags)) == 0
        found[how] = json.loads(capsys.readouterr().out)
    plain, drafted = found["plain"], found["drafted"]
    assert drafted["tokens"] == plain["tokens"]
    assert drafted["PN"] == plain["PN"] == plain["timings"]["prompt_n"]
    assert (plain["DN"], plain["DA"]) == (0, 0)
    assert drafted["DN"] >= drafted["DA"] == drafted["timings"]["draft_n_accepted"]
    assert drafted["PP"] > 0 < drafted["TG"]
    if way == "-md":
        assert drafted["DN"] == drafted["DA"] > 12


def test_the_figures_on_a_terminal(capsys, model, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert main(("run", "-m", model, "-p", PROMPT, *QUICK, "-md", model, "--spec-draft-p-min", "0")) == 0
    line = capsys.readouterr().err.splitlines()[-1]
    assert "[24 tokens: PN " in line
    for name in ("PP ", "TG ", "DN ", "DA "):
        assert f", {name}" in line


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--spec-draft-n-max", "4"), "-md FILE or --lookup"),
        (("--rpc-draft", "a:1"), "-md FILE or --lookup"),
        (("--lookup", "--rpc-draft", "a:1"), "give -md, too"),
        (("--lookup", "--spec-draft-n-max", "0"), "--spec-draft-n-max"),
        (("--lookup", "--spec-draft-n-min", "99"), "--spec-draft-n-min"),
        (("--lookup", "--spec-draft-p-min", "2"), "--spec-draft-p-min"),
        (("--lookup", "--lookup-ngram-min", "9"), "--lookup-ngram-min"),
        (("-md", "nowhere.gguf"), "nowhere.gguf"),
        (("-md", "nowhere"), "no model file nowhere"),
    ],
)
def test_what_makes_no_sense(capsys, model, words, reason):
    assert reason in refused(capsys, "run", "-m", model, "-p", "x", *words)


def test_another_vocabulary(capsys, model, tmp_path):
    odd = str(tiny.write(tmp_path / "odd.gguf", tiny.Shape(n_layer=1, n_vocab=500)))
    said = refused(capsys, "run", "-m", model, "-p", "x", "-md", odd)
    assert "odd.gguf cannot draft for tiny.gguf" in said
    assert "it has 500 tokens, not 300" in said
